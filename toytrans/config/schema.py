"""The description of a run: typed, strict, each key described once and each default written once.

A key that is null may take its value from other keys: test_length is five beyond train_length, say.
Each section derives these values when it is validated, so a saved `config.yaml` holds every value.
`load` reads files and overrides. `keys` is the whole as a table.
"""

import ast
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from toytrans.config.hidden_fault import is_hidden
from toytrans.config.names import (
    CrossPositionName,
    FaultName,
    FormatName,
    PadMask,
    PositionName,
    TaskName,
)
from toytrans.errors import UserError
from toytrans.user_code import absolute, is_reference, shown

# What the sections share ---------------------------------------------------------------------


LONGEST = 2**16
Length = Annotated[int, Field(ge=0, le=LONGEST)]
Range = Annotated[tuple[Length, Length], Strict(False)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[int, Field(ge=1, le=10**9)]
Examples = Annotated[int, Field(ge=1, le=10**7)]
Symbols = Annotated[int, Field(ge=1, le=10**5)]
Size = Annotated[int, Field(ge=1, le=2**20)]
Depth = Annotated[int, Field(ge=1, le=1000)]
Proportion = Annotated[float, Field(ge=0, le=1)]


def refusal(key: str, reason: str) -> PydanticCustomError:
    """What a validator raises for a key of its section, or for a path from there."""
    return PydanticCustomError("refusal", "{reason}", {"key": key, "reason": reason})


T = TypeVar("T")


def _paths(value: Any) -> str | tuple[str, str]:
    match value:
        case str():
            return str(Path(value).absolute())
        case [str(), str()]:
            return str(Path(value[0]).absolute()), str(Path(value[1]).absolute())
    raise refusal("", f"found {value!r}, expected text, or a list of two, say [a.src, a.tgt]")


Paths = str | tuple[str, str]
AbsolutePaths = Annotated[Paths, BeforeValidator(_paths)]
"""A file, or two files of parallel text, saved with absolute paths."""


def _own(text: str) -> str:
    try:
        return absolute(text)
    except ValueError as error:
        raise refusal("", str(error)) from None


def _or_own(value: Any, built_in: ValidatorFunctionWrapHandler) -> str:
    if isinstance(value, str) and is_reference(value):
        return _own(value)
    return str(built_in(value))


Own = Annotated[str, AfterValidator(_own), Field(title="own code")]
"""Code of the user's: FILE.py:NAME, saved with an absolute path."""

OrOwn = Annotated[T, WrapValidator(_or_own), PlainSerializer(str), Field(title="or own code")]
"""Something built in, by its name, or code of the user's."""


def _or_hidden(value: Any, named: ValidatorFunctionWrapHandler) -> str:
    return value if isinstance(value, str) and is_hidden(value) else str(named(value))


OrHidden = Annotated[
    FaultName, WrapValidator(_or_hidden), PlainSerializer(str), Field(title="or hidden name")
]
"""A fault, by its name or hidden as in an exercise. The config keeps the text as it was given."""


class Section(BaseModel):
    """Part of a config. Unknown keys, loose types and changes are refused.

    The text below a key says what it means; `keys` reads it.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
    )

    @field_validator("*")
    @classmethod
    def _refuse_subnormal(cls, value: Any) -> Any:
        """Training takes such numbers for 0, and so would the reader of a saved config."""
        if isinstance(value, float) and 0 < abs(value) < sys.float_info.min:
            raise refusal("", f"found {value}, too small for a number that is not 0")
        return value

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        self._derive()
        self._check()
        return self

    def _derive(self) -> None:
        """Set the keys that are null and follow from others."""

    def _check(self) -> None:
        """Raise `refusal` where keys contradict each other."""

    def _set(self, **derived: Any) -> None:
        """Set those of the keys that are null. `model_fields_set` names what was stated alone."""
        for name, value in derived.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)


# data ---------------------------------------------------------------------------------------


class TaskLimits(NamedTuple):
    """What a config must know of a task.

    target_growth, target_slack: a source of S symbols becomes at most target_growth S +
    target_slack tokens, its end included. shortest: symbols of the shortest source.
    fewest_symbols: least data.symbols; there are no numbers in base 1. symbols: its default.
    """

    target_growth: int = 1
    target_slack: int = 1
    shortest: int = 0
    fewest_symbols: int = 1
    symbols: int | None = 10


TASK_LIMITS: dict[str, TaskLimits] = {
    "addition": TaskLimits(shortest=3, fewest_symbols=2),
    "multiplication": TaskLimits(shortest=3, fewest_symbols=2),
    "parity": TaskLimits(shortest=1, fewest_symbols=2, symbols=2),
    "stack": TaskLimits(fewest_symbols=2, symbols=2),
    "reverse_nlplike": TaskLimits(symbols=8000),
    "duplicate": TaskLimits(target_growth=2),
    "lexicon": TaskLimits(target_growth=2),
}
"""Of the tasks whose limits are not all usual. They stand here because a config is checked without
the code of tasks, which needs torch."""

MOST_IDS = 2**27
"""Ids of a validation or test split, padded to its longest sequence; less than fills a machine."""


class FilesConfig(Section):
    """Pairs read from files."""

    train: AbsolutePaths
    """Training file. Format text takes [SOURCE, TARGET]."""
    valid: AbsolutePaths | None = None
    """Validation file. null holds out 5% of train, chosen by the seed."""
    test: AbsolutePaths | None = None
    """Test file. null means no test data."""
    format: FormatName | None = None
    """File format. null takes it from the name of the training file."""


class DataConfig(Section):
    """Which pairs, how long, how many."""

    task: OrOwn[TaskName] | None = None
    """Synthetic task, or your own: FILE.py:NAME. Do not set data.files too."""
    files: FilesConfig | None = None
    """Pairs read from files. Do not set data.task too."""
    symbols: Symbols | None = None
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

    def _derive(self) -> None:
        if self.task is not None:
            self._set(train_length=(1, 20), valid_examples=1000, test_examples=1000)
            self._set(valid_length=self.train_length, symbols=self.limits.symbols)

    @property
    def limits(self) -> TaskLimits:
        """Those of the task. Of the user's, its code alone knows them; `misfit` is told then."""
        if is_reference(self.task):
            return TaskLimits(symbols=None)
        return TASK_LIMITS.get(self.task or "", TaskLimits())

    def _check(self) -> None:
        if (self.task is None) == (self.files is None):
            problem = "task and files exclude each other" if self.task else "nothing to learn from"
            raise refusal("", f"{problem}; name data.task or data.files")
        if self.task is None:
            for name in ("symbols", "train_length", "valid_length", "test_length"):
                if getattr(self, name) is not None:
                    raise refusal(name, "belongs to data.task, not to data.files")
            return
        fewest = self.limits.fewest_symbols
        if self.symbols is not None and self.symbols < fewest:
            raise refusal("symbols", f"{self.task} needs at least {fewest}")
        for split, span in self.lengths.items():
            if span[0] > span[1]:
                reason = f"{list(span)} starts above its end; swap the two"
                raise refusal(f"{split}_length", reason)

    @property
    def lengths(self) -> dict[str, tuple[int, int]]:
        """Shortest and longest source of each split of a task, in symbols."""
        spans = {"train": self.train_length, "valid": self.valid_length, "test": self.test_length}
        return {split: span for split, span in spans.items() if span is not None}

    @property
    def examples(self) -> dict[str, int | None]:
        """Number of pairs of each split; None = no limit."""
        numbers = (self.train_examples, self.valid_examples, self.test_examples)
        return dict(zip(("train", "valid", "test"), numbers, strict=True))


# model --------------------------------------------------------------------------------------

MOST_PARAMETERS = 10**9
"""Far more than a toy needs, and less than would fill a machine."""


class ModelConfig(Section):
    """The model."""

    d_model: Annotated[int, Field(ge=1, le=2**16)] = 64
    """Width D of embeddings and layers."""
    n_heads: Size = 4
    """Number of attention heads. It must divide d_model."""
    n_encoder_layers: Depth = 2
    """Number of encoder layers."""
    n_decoder_layers: Depth = 2
    """Number of decoder layers."""
    d_ff: Size = 256
    """Inner width of the feed-forward sub-layer."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout rate for embeddings, sub-layers and attention weights."""
    class_: Own | None = Field(None, alias="class")
    """Your own model, FILE.py:NAME, in place of the transformer."""
    positions: OrOwn[PositionName] = "sinusoidal"
    """Position scheme of embeddings and self-attention, or your own. sinusoidal is the paper's;
    anchored is told where each output's source stands."""
    cross_positions: OrOwn[CrossPositionName] | None = None
    """Position scheme of cross-attention, or your own. null means anchored if positions is
    anchored, else none."""
    source_bos: bool | None = None
    """Start sources with BOS. null means true if positions or cross_positions is anchored, else
    false. Set it where your own positions count from BOS."""
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

    def _derive(self) -> None:
        ours = self.class_ is None  # a model of the user's heeds what it likes
        anchored = ours and self.positions == "anchored"
        cross = self.cross_positions or ("anchored" if anchored else "none")
        self._set(cross_positions=cross, score_cap=1.0 if anchored else 0.0)
        self._set(source_bos=anchored or (ours and cross == "anchored"))
        if ours and (self.random_positions or self.positions == "learned"):
            self._set(max_positions=2048 if self.random_positions else 512)

    def _check(self) -> None:
        if self.class_ is not None:
            return
        if self.d_model % self.n_heads:
            divisors = [h for h in range(1, self.d_model + 1) if self.d_model % h == 0]
            near = sorted(sorted(divisors, key=lambda h: abs(h - self.n_heads))[:3])
            raise refusal(
                "n_heads",
                f"{self.n_heads} heads do not divide d_model {self.d_model}; "
                f"take {' or '.join(map(str, near))}",
            )
        self._check_positions()

    def _check_positions(self) -> None:
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise refusal("d_model", f"sinusoidal positions need an even width, not {self.d_model}")
        if self.random_positions and self.positions not in ("sinusoidal", "learned"):
            raise refusal("random_positions", "belongs to positions: sinusoidal or learned")
        if not self.source_bos and "anchored" in (self.positions, self.cross_positions):
            raise refusal("source_bos", "anchored positions count from BOS; leave it out")
        own = is_reference(self.positions) or is_reference(self.cross_positions)
        has_table = own or self.random_positions or self.positions == "learned"
        if self.max_positions is not None and not has_table:
            reason = "belongs to positions: learned, and to random_positions"
            raise refusal("max_positions", reason)
        if self.positions == "rotary" and self.d_model // self.n_heads % 2:
            width = self.d_model // self.n_heads
            raise refusal("positions", f"rotary rotates pairs: heads of even width, not {width}")

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
        """Longest sequence with its ends; None = any. Random positions leave gaps."""
        if self.max_positions is None or not self.random_positions:
            return self.max_positions
        return self.max_positions // 4


# train --------------------------------------------------------------------------------------


class TrainConfig(Section):
    """The training."""

    max_steps: Annotated[int, Field(ge=0, le=10**9)] = 1000
    """Number of optimiser steps."""
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    """Stop after so many seconds of training. null means no limit."""
    lr: Annotated[float, Field(gt=0)] = 3e-3
    """Learning rate at its peak, after warm-up."""
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "linear"
    """Course of the learning rate after warm-up. linear and cosine end at 2% of lr."""
    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps of linear warm-up. null means 100, or a third of max_steps if that is less."""
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Largest norm of the gradient; larger ones are scaled down. null: no clip."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of AdamW on matrices."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the label's probability that is spread over the vocabulary."""
    accumulate: Annotated[int, Field(ge=1, le=2**10)] = 1
    """Number of batches whose gradients are added up for one step."""
    eval_every: Positive | None = None
    """Steps between two evaluations. null means a quarter of max_steps."""
    log_every: Positive = 10
    """Steps between two records in metrics.jsonl."""
    stop_at_exact_match: Proportion | None = None
    """Stop when the exact match on validation data is this high. null: never."""
    patience: Positive | None = None
    """Stop after so many evaluations without a better one. null means never."""
    keep_checkpoints: Annotated[int, Field(ge=1, le=10**4)] = 2
    """Number of newest checkpoints to keep. The best one is kept as well. Reports show attention at
    each."""
    precision: Literal["auto", "fp32", "bf16", "fp64"] = "auto"
    """Precision of matrix products. auto takes bf16 if the device has instructions for it, except
    on a CPU up to d_model 64; else fp32."""
    cuda_graphs: bool = False
    """Record a step once for each shape of a batch, and replay it with one launch. For a CUDA
    device."""

    def _derive(self) -> None:
        self._set(warmup_steps=min(100, self.max_steps // 3))
        self._set(eval_every=max(1, self.max_steps // 4))

    def _check(self) -> None:
        if self.warmup_steps is not None and self.warmup_steps > self.max_steps:
            raise refusal(
                "warmup_steps",
                f"{self.warmup_steps} steps of warm-up are more than "
                f"train.max_steps {self.max_steps}; lower it or leave it out",
            )


# The whole -----------------------------------------------------------------------------------

OWN_CODE = ("data.task", "model.class", "model.positions", "model.cross_positions")
"""Keys that may name code of the user's."""

DEVICE = r"^(auto|cpu|cuda|cuda:\d+|mps)$"


class Config(Section):
    """One run."""

    seed: Seed = 0
    """Seed of the initial weights and dropout, and of the data unless data.seed is set."""
    device: Annotated[str, Field(pattern=DEVICE)] = "auto"
    """auto | cpu | cuda | cuda:N | mps"""
    fault: OrHidden | None = None
    """A mistake planted on purpose: its name (see `toytrans explain faults`), or the hidden
    name that an exercise has. null means none."""
    data: DataConfig
    """The pairs: where they come from, how long, how many."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """The model: sizes, positions, layers."""
    train: TrainConfig = Field(default_factory=TrainConfig)
    """The training: steps, learning rate, limits, precision."""

    def _derive(self) -> None:
        data = self.data.model_copy()  # what was given stays as it is
        if data.train_length is not None:
            low, high = data.train_length
            data._set(test_length=(low, max(high, min(high + 5, self._room(data.limits)))))
        object.__setattr__(self, "data", data)

    def _check(self) -> None:
        if self.fault is not None and self.model.class_ is not None:
            raise refusal("fault", "faults are made in toytrans' models; leave out model.class")
        if self.data.task is not None and (found := self.misfit(self.data.limits)):
            raise refusal(*found)

    def misfit(self, limits: TaskLimits) -> tuple[str, str] | None:
        """A key of the lengths or numbers that do not fit the task, the position table or memory,
        and why. limits: those of the task."""
        for split, span in self.data.lengths.items():
            if span[1] < limits.shortest:
                needs = f"{shown(self.data.task or '')} needs a source length of {limits.shortest}"
                return f"data.{split}_length", f"{needs} or more"
            if reason := self.too_long(span[1], limits):
                return f"data.{split}_length", reason
            examples = self.data.examples[split]
            if split != "train" and examples is not None and examples * span[1] > MOST_IDS:
                return f"data.{split}_examples", (
                    f"{examples:,} pairs of up to {span[1]:,} symbols are more than {MOST_IDS:,} "
                    f"ids; lower it, or data.{split}_length"
                )
        return None

    def too_long(self, symbols: int, limits: TaskLimits) -> str:
        """Why a source of so many symbols, or its target, does not fit the position table; "" where
        both do."""
        room = self._room(limits)
        if symbols <= room:
            return ""
        return (
            f"{symbols} symbols are more than the {max(room, 0)} that model.max_positions "
            f"{self.model.max_positions} leaves room for; raise it, or take positions without a "
            "table"
        )

    def _room(self, limits: TaskLimits) -> int:
        """Source symbols whose source and target both fit the position table, ends included."""
        most = self.model.max_length
        if most is None:
            return sys.maxsize
        target = (most - limits.target_slack) // limits.target_growth
        return min(most - 1 - self.source_bos, target)

    @property
    def references(self) -> dict[str, str]:
        """The code of the user's that it names, by key."""
        data, model = self.data, self.model
        named = (data.task, model.class_, model.positions, model.cross_positions)
        pairs = zip(OWN_CODE, named, strict=True)
        return {key: text for key, text in pairs if text and is_reference(text)}

    @property
    def data_seed(self) -> int:
        """The seed of the pairs, their splits and their batches."""
        return self.seed if self.data.seed is None else self.data.seed

    def without_seeds(self) -> "Config":
        """What the runs of one group have in common: all but both seeds and the device."""
        data = self.data.model_copy(update={"seed": None})
        return self.model_copy(update={"seed": 0, "device": "auto", "data": data})

    @property
    def source_bos(self) -> bool:
        """Whether sources start with BOS."""
        return bool(self.model.source_bos)


# The keys as a table -------------------------------------------------------------------------

WORDS = {int: "integer", float: "number", bool: "boolean", str: "string"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


class Key(NamedTuple):
    """A key of a config, or a section, whose type is "section".

    default, range: as YAML. names: that it chooses among.
    """

    path: str
    meaning: str
    type: str
    default: str = ""
    range: str = ""
    names: tuple[str, ...] = ()

    @property
    def section(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@cache
def keys() -> tuple[Key, ...]:
    """All sections and keys, each section before its keys."""
    return tuple(_keys_of(Config, ""))


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a config, for editors."""
    schema = Config.model_json_schema()
    for (section, name), meaning in _meanings().items():
        part = schema if section == "Config" else schema["$defs"][section]
        part["properties"][name.rstrip("_")]["description"] = meaning
    return schema


@cache
def _meanings() -> dict[tuple[str, str], str]:
    """What stands below each key in this file, by section and key."""
    classes = ast.parse(Path(__file__).read_bytes()).body
    return {
        (section.name, ast.unparse(key.target)): " ".join(ast.literal_eval(text.value).split())
        for section in classes
        if isinstance(section, ast.ClassDef)
        for key, text in pairwise(section.body)
        if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def _keys_of(section: type[Section], prefix: str) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        path, meaning = prefix + (field.alias or name), _meanings()[section.__name__, name]
        kinds = (field.annotation, *get_args(field.annotation))
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        if inner:
            yield Key(path, meaning, "section", "required" * field.is_required())
            yield from _keys_of(inner[0], f"{path}.")
            continue
        kind, names, bounds = _kind_of(field.annotation, field)
        default = str(field.default)  # true, false and null are written otherwise in YAML
        if field.default is None or isinstance(field.default, bool):
            default = "null" if field.default is None else default.lower()
        default = "required" if field.is_required() else default
        yield Key(path, meaning, kind, default, bounds or ", ".join(names), names)


def _kind_of(kind: Any, field: FieldInfo | None) -> tuple[str, tuple[str, ...], str]:
    """Type of a value in words, names that it chooses among, and bounds; of a list, those of its
    values. field: what is said of the type beside it."""
    if get_origin(kind) is Annotated:
        kind, *said = get_args(kind)
        field = next((each for each in said if isinstance(each, FieldInfo)), None)
        return _kind_of(kind, field)
    title = (field.title or "") if field else ""
    if get_origin(kind) in (Union, UnionType):
        parts = [_kind_of(part, None) for part in get_args(kind) if part is not NoneType]
        kinds, names, ranges = zip(*parts, strict=True)
        return " or ".join(kinds), tuple(chain(*names)), "; ".join(filter(None, ranges))
    if get_origin(kind) is Literal:
        return f"name {title}".strip(), get_args(kind), ""
    if get_origin(kind) is tuple:
        return "list of 2", (), _kind_of(get_args(kind)[0], None)[2]
    found = [
        f"{sign} {getattr(limit, name):,}"
        for name, sign in BOUNDS.items()
        for limit in (field.metadata if field else ())
        if hasattr(limit, name)
    ]
    return title or WORDS.get(kind, ""), (), ", ".join(found)


def nearest_key(section: str, name: str) -> str:
    """The key most like this one, first of its own section, then anywhere; empty without one."""
    for candidates in ([key for key in keys() if key.section == section], keys()):
        names = {key.name: key.path for key in candidates}
        near = get_close_matches(name, names, n=1)
        near += [known for known in names if name.startswith(known) and len(known) > 1]
        if near:
            return names[near[0]]
    return ""
