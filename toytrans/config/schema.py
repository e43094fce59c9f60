"""The keys of a config: what each means, which values it takes, and what holds if it is left out.

A `Config` is the file as it was given. A key that was left out has its default; where the default
follows from other keys it stays None, and `toytrans.resolve` fills it. The result is a `Settings`:
the same keys with nothing left open, from which data and models are made. Names of tasks, position
schemes and schedules are judged where these are, not here, so that a misspelt key is found before
torch is imported. The text below a key is what `toytrans explain`, the docs and editors show; they
get it from `toytrans.config.keys`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    Strict,
    model_validator,
)

from toytrans.config.faults import FAULTS, check_fault_name
from toytrans.config.yaml import KeyOrigins
from toytrans.errors import BadKey, UserError
from toytrans.references import absolute, is_reference

# The values of keys --------------------------------------------------------------------------

LONGEST = 2**16
Length = Annotated[int, Field(ge=0, le=LONGEST)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[int, Field(ge=1, le=10**9)]
Examples = Annotated[int, Field(ge=1, le=10**7)]
Size = Annotated[int, Field(ge=1, le=2**20)]
Layers = Annotated[int, Field(ge=1, le=1000)]
Beta = Annotated[float, Field(ge=0, lt=1)]


def _in_order(span: tuple[int, int]) -> tuple[int, int]:
    low, high = span
    if low > high:
        raise ValueError(f"[{low}, {high}] starts above its end; swap the two")
    return span


Range = Annotated[tuple[Length, Length], Strict(False), AfterValidator(_in_order)]
"""The shortest and the longest length."""


def _shown_as(kind: str) -> Any:
    """Text of some kind, in the words of the table of keys and of the JSON Schema."""
    return Field(json_schema_extra={"format": kind})


def _absolute_paths(value: Any) -> str | tuple[str, str]:
    match value:
        case str():
            return str(Path(value).absolute())
        case [str(), str()]:
            return str(Path(value[0]).absolute()), str(Path(value[1]).absolute())
    raise ValueError(f"found {value!r}, expected text, or a list of two, say [a.src, a.tgt]")


Paths = str | tuple[str, str]
AbsolutePaths = Annotated[Paths, BeforeValidator(_absolute_paths)]
"""A file, or two files of parallel text, with absolute paths."""


def _absolute_path(path: str) -> str:
    return str(Path(path).absolute())


def _name_or_code(text: str) -> str:
    return absolute(text) if is_reference(text) else text


NameOrCode = Annotated[str, AfterValidator(_name_or_code), _shown_as("name or own code")]
"""Something built in, by its name, or code of the user's."""

Fault = Annotated[
    str,
    AfterValidator(check_fault_name),
    Field(json_schema_extra={"format": "name or hidden name", "enum": list(FAULTS)}),
]
Symbols = Literal["blanks", "characters"]
PadMask = Literal["keys", "keys_and_queries"]


class Section(BaseModel):
    """Part of a config. Unknown keys, loose types and changes are refused."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )


# data ---------------------------------------------------------------------------------------


class FilesConfig(Section):
    """Pairs read from files."""

    train: AbsolutePaths
    """Training file. Format text takes [SOURCE, TARGET]."""
    valid: AbsolutePaths | None = None
    """Validation file. null holds out 5% of train, chosen by the seed."""
    test: AbsolutePaths | None = None
    """Test file. null means no test data."""
    format: Literal["text", "tsv", "csv", "jsonl", "scan"] | None = None
    """File format. null takes it from the name of each file; two files are text."""
    columns: Annotated[tuple[Positive, Positive], Strict(False)] | None = None
    """Columns of source and target in tsv and csv, counted from 1. null means [1, 2], and that
    there are no others."""
    header: bool = False
    """The first row of tsv or csv names the columns, and is left out."""
    fields: Annotated[tuple[str, str], Strict(False)] | None = None
    """Fields of source and target in jsonl. A dot reaches inside: translation.de. null means
    [src, tgt]."""
    split: Symbols | Annotated[tuple[Symbols, Symbols], Strict(False)] = "blanks"
    """What a symbol of text is: what stands between blanks, or each character, with ▁ for a
    blank. A list says it for source and target."""
    unknown: Literal["error", "symbol"] = "error"
    """What a symbol is that training lacks: an error, or the symbol <unk>."""
    min_frequency: Positive = 1
    """Symbols that occur in training less often are <unk> too. Needs unknown: symbol."""


class DataConfig(Section):
    """Which pairs, how long, how many."""

    task: NameOrCode | None = None
    """Synthetic task, or your own: FILE.py:NAME. Do not set data.files too."""
    files: FilesConfig | None = None
    """Pairs read from files. Do not set data.task too."""
    symbols: Annotated[int, Field(ge=1, le=10**5)] | None = None
    """Number of symbols of the task. null means 10; 2 for parity and stack; 8000 for
    reverse_nlplike; what your own task says."""
    train_length: Range | None = None
    """Shortest and longest training source, in symbols. null means [1, 20]."""
    valid_length: Range | None = None
    """Lengths of validation sources. null means train_length."""
    test_length: Range | None = None
    """Lengths of test sources. null means train_length and 5 symbols beyond."""
    train_examples: Examples | None = None
    """Number of training pairs. null means new pairs without end for a task, all pairs of a
    file."""
    valid_examples: Examples | None = None
    """Number of validation pairs. null means 1000 for a task, all pairs of a file."""
    test_examples: Examples | None = None
    """Number of test pairs. null means 1000 for a task, all pairs of a file."""
    batch_tokens: Annotated[int, Field(ge=1, le=2**24)] = 4096
    """Size of a batch in padded tokens: rows times (S + T)."""
    seed: Seed | None = None
    """Seed of pairs, splits and batches alone. null means the seed of the run."""
    disjoint: bool = True
    """Keep validation and test sources out of the training data."""

    @model_validator(mode="after")
    def _names_one_source_of_pairs(self) -> Self:
        if (self.task is None) == (self.files is None):
            what = "nothing to learn from" if self.task is None else "task and files at once"
            raise BadKey("data", f"{what}; name data.task or data.files")
        return self

    @property
    def lengths(self) -> dict[str, tuple[int, int]]:
        """Shortest and longest source in symbols, of each split whose lengths are known here."""
        spans = {"train": self.train_length, "valid": self.valid_length, "test": self.test_length}
        return {split: span for split, span in spans.items() if span is not None}

    @property
    def examples(self) -> dict[str, int | None]:
        """Number of pairs of each split; None means that there is no limit."""
        numbers = (self.train_examples, self.valid_examples, self.test_examples)
        return dict(zip(("train", "valid", "test"), numbers, strict=True))


class DataSettings(DataConfig):
    """The section `data` with nothing left open.

    A task has its symbols and all its lengths. Files have neither, because what is in them decides.
    """

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.task is not None:
            for name in ("symbols", "train_length", "valid_length", "test_length"):
                if getattr(self, name) is None:
                    raise BadKey(f"data.{name}", "missing; take the file that the training wrote")
        return self


# model --------------------------------------------------------------------------------------

MOST_PARAMETERS = 10**9
"""Far more than a toy needs, and less than would fill a machine."""


class ModelConfig(Section):
    """The model."""

    d_model: Annotated[int, Field(ge=1, le=2**16)] = 64
    """Width D of embeddings and layers."""
    n_heads: Size = 4
    """Number of attention heads. It must divide d_model."""
    n_encoder_layers: Layers = 2
    """Number of encoder layers."""
    n_decoder_layers: Layers = 2
    """Number of decoder layers."""
    d_ff: Size = 256
    """Inner width of the feed-forward sub-layer."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout rate for embeddings, sub-layers and attention weights."""
    class_: Annotated[str, AfterValidator(absolute), _shown_as("own code")] | None = Field(
        None, alias="class"
    )
    """Your own model, FILE.py:NAME, in place of the transformer."""
    positions: NameOrCode = "sinusoidal"
    """Position scheme of embeddings and self-attention, or your own. sinusoidal is the paper's;
    anchored is told where each output's source stands."""
    cross_positions: NameOrCode | None = None
    """Position scheme of cross-attention, or your own. null means that of positions if it measures
    cross-attention too, as anchored does, else none."""
    source_bos: bool | None = None
    """Start sources with BOS. null means true if a scheme of positions counts from BOS, as anchored
    does, else false."""
    random_positions: bool = False
    """Train with sorted random positions instead of 0, 1, 2. Only for sinusoidal and learned
    positions."""
    max_positions: Size | None = None
    """Rows of the learned position table (null means 512), or the range of random positions (null
    means 2048). Of your own positions or model: the most places; null means any number."""
    score_cap: Annotated[float, Field(ge=0)] | None = None
    """Attention scores become cap * tanh(score / cap). 0 turns this off. null means 1 if positions
    is anchored, else 0."""
    share_layers: bool = False
    """Use the weights of one layer for the whole depth of a stack."""
    norm: Literal["pre", "post"] = "post"
    """Layer norm before each sub-layer, or after the residual sum as in the paper."""
    activation: Literal["relu", "gelu", "gelu_tanh"] = "relu"
    """Activation of the feed-forward sub-layer."""
    tie_embeddings: bool = True
    """Use one table for source embedding, target embedding and output."""
    pad_mask: PadMask = "keys"
    """Mask pads as keys only, or as keys and queries."""
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0
    """Exponent of the length in beam search, where an output scores its log-probability divided by
    length ** length_penalty. 0 compares log-probabilities as they are."""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.class_ is None and self.d_model % self.n_heads:
            divisors = [h for h in range(1, self.d_model + 1) if self.d_model % h == 0]
            near = sorted(sorted(divisors, key=lambda h: abs(h - self.n_heads))[:3])
            raise BadKey(
                "model.n_heads",
                f"{self.n_heads} heads do not divide d_model {self.d_model}; "
                f"take {' or '.join(map(str, near))}",
            )
        return self

    def check_size(self, vocabulary: int) -> None:
        """Raise UserError where a model with V ids has more than MOST_PARAMETERS parameters. How
        many a model of the user's has is known when it is built."""
        if self.class_ is not None:
            return
        attention, feed_forward = 4 * self.d_model**2, 2 * self.d_model * self.d_ff
        encoder, decoder = attention + feed_forward, 2 * attention + feed_forward
        if not self.share_layers:
            encoder, decoder = encoder * self.n_encoder_layers, decoder * self.n_decoder_layers
        ids = vocabulary * (1 if self.tie_embeddings else 3) + (self.max_positions or 0)
        size = ids * self.d_model + encoder + decoder
        if size > MOST_PARAMETERS:
            raise UserError(
                f"model: {size:,} parameters, {vocabulary:,} symbols; at most "
                f"{MOST_PARAMETERS:,}: lower d_model, d_ff, the layers or the symbols"
            )

    @property
    def max_length(self) -> int | None:
        """Longest sequence with its ends; None means any. Random positions leave gaps."""
        if self.max_positions is None or not self.random_positions:
            return self.max_positions
        return self.max_positions // 4


class ModelSettings(ModelConfig):
    """The section `model` with nothing left open.

    max_positions alone may still be None, which means that sequences of any length fit. Three keys
    have plain defaults here, so that a program can write `ModelSettings(d_model=32)` without
    `resolve`; they fit every scheme of positions but `anchored`.
    """

    cross_positions: NameOrCode = "none"
    source_bos: bool = False
    score_cap: Annotated[float, Field(ge=0)] = 0.0


# train --------------------------------------------------------------------------------------


class TrainConfig(Section):
    """The training."""

    init: Annotated[str, AfterValidator(_absolute_path), _shown_as("run directory")] | None = None
    """Run whose best weights and vocabulary the training starts with. null means fresh weights."""
    max_steps: Annotated[int, Field(ge=0, le=10**9)] = 1000
    """Number of optimiser steps."""
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    """Stop after so many seconds of training. null means no limit."""
    lr: Annotated[float, Field(gt=0)] = 3e-3
    """Learning rate at its peak, after warm-up."""
    schedule: Annotated[str, _shown_as("name")] = "linear"
    """Course of the learning rate after warm-up. `toytrans explain schedules` says what each is."""
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps of linear warm-up. null means 100, or a third of max_steps if that is less."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest norm of the gradient; larger ones are scaled down. null: no clip."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of AdamW on matrices."""
    betas: Annotated[tuple[Beta, Beta], Strict(False)] = (0.9, 0.98)
    """How much AdamW keeps of the running means of the gradient and of its square at each step."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """What AdamW adds to the root of the mean square that it divides by."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the label's probability that is spread over the vocabulary."""
    accumulate: Annotated[int, Field(ge=1, le=2**10)] = 1
    """Number of batches whose gradients are added up for one step."""
    eval_every: Positive | None = None
    """Steps between two evaluations. null means a quarter of max_steps."""
    log_every: Positive = 10
    """Steps between two records in metrics.jsonl."""
    stop_at_exact_match: Annotated[float, Field(ge=0, le=1)] | None = None
    """Stop when the exact match on validation data is this high. null: never."""
    patience: Positive | None = None
    """Stop after so many evaluations without a better one. null means never."""
    keep_checkpoints: Annotated[int, Field(ge=1, le=10**4)] = 2
    """Number of newest checkpoints to keep. The best one is kept as well."""
    precision: Literal["auto", "fp32", "bf16", "fp64"] = "auto"
    """Precision of matrix products. auto takes bf16 if the device has instructions for it, except
    on a CPU up to d_model 64; else fp32."""

    @model_validator(mode="after")
    def _warm_up_ends(self) -> Self:
        if self.warmup_steps is not None and self.warmup_steps > self.max_steps:
            raise BadKey(
                "train.warmup_steps",
                f"{self.warmup_steps} steps of warm-up are more than "
                f"train.max_steps {self.max_steps}; lower it or leave it out",
            )
        return self


class TrainSettings(TrainConfig):
    """The section `train` with nothing left open."""

    warmup_steps: Annotated[int, Field(ge=0)]
    eval_every: Positive


# The whole -----------------------------------------------------------------------------------


class Config(Section):
    """One run, as it was described."""

    seed: Seed = 0
    """Seed of the initial weights and dropout, and of the data unless data.seed is set."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda|cuda:\d+|mps)$")] = "auto"
    """auto | cpu | cuda | cuda:N | mps"""
    fault: Fault | None = None
    """A mistake planted on purpose: its name (see `toytrans explain faults`), or the hidden
    name that an exercise has. null means none."""
    data: DataConfig
    """The pairs: where they come from, how long, how many."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The model: sizes, positions, layers."""
    train: TrainConfig = Field(default_factory=TrainConfig)
    """The training: steps, learning rate, limits, precision."""

    _origins: KeyOrigins = PrivateAttr(default_factory=KeyOrigins)

    @property
    def origins(self) -> KeyOrigins:
        """Where its keys were written; empty for a config that was made in Python."""
        return self._origins

    def with_origins(self, origins: KeyOrigins) -> Self:
        """This config, which knows from now on where its keys were written."""
        self._origins = origins
        return self

    @model_validator(mode="after")
    def _plants_faults_in_our_models(self) -> Self:
        if self.fault is not None and self.model.class_ is not None:
            raise BadKey("fault", "faults are made in toytrans' models; leave out model.class")
        return self

    @property
    def references(self) -> dict[str, str]:
        """The code of the user's that it names, by key."""
        named = {
            "data.task": self.data.task,
            "model.class": self.model.class_,
            "model.positions": self.model.positions,
            "model.cross_positions": self.model.cross_positions,
        }
        return {key: text for key, text in named.items() if text and is_reference(text)}

    @property
    def data_seed(self) -> int:
        """The seed of the pairs, their splits and their batches."""
        return self.seed if self.data.seed is None else self.data.seed


class Settings(Config):
    """One run with nothing left open: what a run directory keeps in resolved.yaml."""

    data: DataSettings
    model: ModelSettings
    train: TrainSettings


# Some keys ------------------------------------------------------------------------------------

MAY_DIFFER = (
    "device",
    "model.length_penalty",
    "train.max_steps",
    "train.max_seconds",
    "train.stop_at_exact_match",
    "train.patience",
    "train.keep_checkpoints",
)
"""What may change when a run is resumed: limits, and what changes no step of the training."""

OWN_CODE = ("data.task", "model.class", "model.positions", "model.cross_positions")
"""Keys that may name code of the user's."""
