"""The one description of a run: typed, strict, each default written once.

Values that follow from others (a test length five beyond training, say) are filled in by the
sections themselves, so a saved `config.yaml` holds every value. Files and overrides become a
`Config` in `config_file`.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, field_validator, model_validator

from toytrans.choices import (
    AnchorName,
    Backward,
    CrossPositionName,
    FaultName,
    FormatName,
    PadMask,
    PositionName,
    TaskName,
)
from toytrans.config_errors import refusal
from toytrans.errors import UserError

TARGET_GROWTH = {"duplicate": 2, "lexicon": 2}
"""Target symbols that one source symbol can become, where it is more than one."""

SHORTEST_SOURCE = {"addition": 3, "multiplication": 3, "parity": 1}
"""Source symbols that a task needs at least, where it is more than none."""

FEWEST_SYMBOLS = {"addition": 2, "multiplication": 2, "parity": 2, "stack": 2}
"""The smallest data.symbols of a task, where it is more than one: no numbers in base 1."""

USUAL_SYMBOLS = {"parity": 2, "stack": 2, "reverse_nlplike": 8000}
"""data.symbols where a config does not say it, where it is not 10."""

COUNTING: tuple[AnchorName, ...] = ("count", "count_end", "fertility", "fertility_end")
"""Anchors at places that a head has learned to count."""

ANCHOR_CYCLE: tuple[AnchorName, ...] = ("start", "end", "wrap", "start")

MOST_PARAMETERS, MOST_IDS = 10**9, 2**27
"""Of a model; of a split of valid or test, padded to its longest sequence. Far more than a toy
needs, and less than would fill a machine."""

Length = Annotated[int, Field(ge=0, le=2**16)]
Range = Annotated[tuple[Length, Length], Strict(False)]
Paths = str | Annotated[tuple[str, str], Strict(False)]
Positive = Annotated[int, Field(ge=1, le=10**9)]
Examples = Annotated[int, Field(ge=1, le=10**7)]
Symbols = Annotated[int, Field(ge=1, le=10**5)]
Size = Annotated[int, Field(ge=1, le=2**20)]
Depth = Annotated[int, Field(ge=1, le=1000)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Part of a config: unknown keys, loose types and changes are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _refuse_subnormal(cls, value: Any) -> Any:
        """Training takes such numbers for 0, and so would the reader of a saved config."""
        if isinstance(value, float) and 0 < abs(value) < sys.float_info.min:
            raise refusal("", f"found {value}, too small for a number that is not 0")
        return value

    def _fill(self, **values: Any) -> None:
        """Give fields that were left null the value that follows from the others."""
        for name, value in values.items():
            if getattr(self, name) is None:
                self.__dict__[name] = value

    def _refuse(self, names: Sequence[str], reason: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise refusal(name, reason)


class FilesConfig(Section):
    """Pairs read from files."""

    train: Paths = Field(description="Training file. Format text takes [SOURCE, TARGET].")
    valid: Paths | None = Field(
        None, description="Validation file. null holds out 5% of train, chosen by the seed."
    )
    test: Paths | None = Field(None, description="Test file. null means no test data.")
    format: FormatName | None = Field(
        None, description="File format. null takes it from the name of the training file."
    )


class DataConfig(Section):
    """Which pairs, how long, how many."""

    task: TaskName | None = Field(None, description="Synthetic task. Excludes files.")
    files: FilesConfig | None = Field(None, description="Pairs read from files. Excludes task.")
    symbols: Symbols | None = Field(
        None,
        description="Number of symbols of the task. null means 10; 2 for parity and stack; 8000 "
        "for reverse_nlplike.",
    )
    train_length: Range | None = Field(
        None, description="Shortest and longest training source, in symbols. null means [1, 20]."
    )
    valid_length: Range | None = Field(
        None, description="Lengths of validation sources. null means train_length."
    )
    test_length: Range | None = Field(
        None, description="Lengths of test sources. null means train_length and 5 symbols beyond."
    )
    train_examples: Examples | None = Field(
        None,
        description="Number of training pairs. null means new pairs without end for a task, all "
        "pairs of a file.",
    )
    valid_examples: Examples | None = Field(
        None,
        description="Number of validation pairs. null means 1000 for a task, all pairs of a file.",
    )
    test_examples: Examples | None = Field(
        None, description="Number of test pairs. null means 1000 for a task, all pairs of a file."
    )
    batch_tokens: Annotated[int, Field(ge=1, le=2**24)] = Field(
        4096, description="Size of a batch in padded tokens: rows times (S + T)."
    )
    disjoint: bool = Field(
        True, description="Keep validation and test sources out of the training data."
    )

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        if (self.task is None) == (self.files is None):
            both = "task and files exclude each other" if self.task else "nothing to learn from"
            raise refusal("", f"{both}; name data.task or data.files")
        if self.files:
            of_tasks = ("symbols", "train_length", "valid_length", "test_length")
            self._refuse(of_tasks, "belongs to data.task, not to data.files")
            return self
        self._fill(train_length=(1, 20), valid_examples=1000, test_examples=1000)
        assert self.task and self.train_length
        self._fill(symbols=USUAL_SYMBOLS.get(self.task, 10), valid_length=self.train_length)
        if self.symbols is not None and self.symbols < FEWEST_SYMBOLS.get(self.task, 1):
            raise refusal("symbols", f"{self.task} needs at least {FEWEST_SYMBOLS[self.task]}")
        shortest = SHORTEST_SOURCE.get(self.task, 0)
        for name in ("train_length", "valid_length", "test_length"):
            if (span := getattr(self, name)) is None:
                continue
            if span[0] > span[1]:
                raise refusal(name, f"{list(span)} starts above its end; swap the two")
            if span[1] < shortest:
                raise refusal(name, f"{self.task} needs a source length of {shortest} or more")
        return self

    def longest(self) -> int:
        """The largest source length that a task is asked for in any split."""
        spans = (self.train_length, self.valid_length, self.test_length)
        return max((span[1] for span in spans if span), default=0)


class ModelConfig(Section):
    """The transformer."""

    d_model: Annotated[int, Field(ge=1, le=2**16)] = Field(
        64, description="Width D of embeddings and layers."
    )
    n_heads: Size = Field(4, description="Number of attention heads. It must divide d_model.")
    n_encoder_layers: Depth = Field(2, description="Number of encoder layers.")
    n_decoder_layers: Depth = Field(2, description="Number of decoder layers.")
    d_ff: Size = Field(256, description="Inner width of the feed-forward sub-layer.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Dropout rate for embeddings, sub-layers and attention weights.",
    )
    positions: PositionName = Field(
        "anchored", description="Position scheme of embeddings and self-attention."
    )
    cross_positions: CrossPositionName | None = Field(
        None,
        description="Position scheme of cross-attention. null means anchored if positions is "
        "anchored, else none.",
    )
    cross_anchors: Annotated[tuple[AnchorName, ...], Strict(False)] | None = Field(
        None,
        description="One anchor per head of cross-attention, anchored positions only. null "
        "repeats start, end, wrap, start.",
    )
    random_positions: bool = Field(
        False,
        description="Train with sorted random positions instead of 0, 1, 2. Only for sinusoidal "
        "and learned positions.",
    )
    max_positions: Size | None = Field(
        None,
        description="Rows of the learned position table (null means 512), or the range of random "
        "positions (null means 2048).",
    )
    score_cap: Annotated[float, Field(ge=0)] | None = Field(
        None,
        description="Attention scores become cap * tanh(score / cap). 0 turns this off. null "
        "means 1 if positions is anchored, else 0.",
    )
    bias_gain: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="Factor of the learned position bias, anchored positions only. null means 16.",
    )
    slope: Annotated[float, Field(ge=0)] | None = Field(
        None,
        description="Penalty on a score for each place between key and anchor, anchored "
        "positions only. null means 1.",
    )
    share_layers: bool = Field(
        False, description="Use the weights of one layer for the whole depth of a stack."
    )
    norm: Literal["pre", "post"] = Field(
        "pre", description="Layer norm before each sub-layer, or after the residual sum."
    )
    activation: Literal["relu", "gelu", "gelu_tanh"] = Field(
        "relu", description="Activation of the feed-forward sub-layer."
    )
    tie_embeddings: bool = Field(
        True, description="Use one table for source embedding, target embedding and output."
    )
    pad_mask: PadMask = Field("keys", description="Mask pads as keys only, or as keys and queries.")
    backward: Backward = Field(
        "autograd", description="Compute gradients by autograd, or by the formulas derived by hand."
    )

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        if self.d_model % self.n_heads:
            divisors = [h for h in range(1, self.d_model + 1) if self.d_model % h == 0]
            near = sorted(sorted(divisors, key=lambda h: abs(h - self.n_heads))[:3])
            raise refusal(
                "n_heads",
                f"{self.n_heads} heads do not divide d_model {self.d_model}; "
                f"take {' or '.join(map(str, near))}",
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise refusal("d_model", f"sinusoidal positions need an even width, not {self.d_model}")
        if self.random_positions and self.positions not in ("sinusoidal", "learned"):
            raise refusal("random_positions", "belongs to positions: sinusoidal or learned")
        if self.random_positions:
            self._fill(max_positions=2048)
        elif self.positions == "learned":
            self._fill(max_positions=512)
        else:
            self._refuse(
                ("max_positions",), "belongs to positions: learned, and to random_positions"
            )
        if self.positions == "rotary" and self.d_model // self.n_heads % 2:
            width = self.d_model // self.n_heads
            raise refusal("positions", f"rotary turns pairs: heads of even width, not {width}")
        self._fill(cross_positions="anchored" if self.positions == "anchored" else "none")
        if self.is_anchored:
            cycle = tuple(ANCHOR_CYCLE[h % len(ANCHOR_CYCLE)] for h in range(self.n_heads))
            cap = 1.0 if self.positions == "anchored" else 0.0
            self._fill(cross_anchors=cycle, score_cap=cap, bias_gain=16.0, slope=1.0)
        else:
            anchored = ("cross_anchors", "bias_gain", "slope")
            self._refuse(anchored, "belongs to positions: anchored, or to such cross_positions")
            self._fill(score_cap=0.0)
        if self.counts and self.cross_positions == "none":
            raise refusal("cross_anchors", "counts need cross_positions: anchored, not none")
        if self.counts and self.backward == "by_hand":
            raise refusal("backward", f"by_hand derives no {', '.join(COUNTING)}; take autograd")
        if self.cross_anchors is not None and len(self.cross_anchors) != self.n_heads:
            raise refusal(
                "cross_anchors",
                f"{len(self.cross_anchors)} anchors for {self.n_heads} heads; name one per head",
            )
        return self

    def check_size(self, vocabulary: int) -> None:
        """Raise UserError where the matrices of a model with V ids hold more numbers than
        MOST_PARAMETERS."""
        width, inner = self.d_model, 2 * self.d_model * self.d_ff
        layers = (4 * width**2 + inner, 8 * width**2 + inner)
        depths = (self.n_encoder_layers, self.n_decoder_layers)
        ids = vocabulary * (1 if self.tie_embeddings else 3) + (self.max_positions or 0)
        size = ids * width + sum(
            layer * (1 if self.share_layers else depth)
            for layer, depth in zip(layers, depths, strict=True)
        )
        if size > MOST_PARAMETERS:
            raise UserError(
                f"model: {size:,} parameters, {vocabulary:,} symbols; at most "
                f"{MOST_PARAMETERS:,}: lower d_model, d_ff, the layers or the symbols"
            )

    @property
    def room(self) -> int | None:
        """Places that a sequence may have; None = any number. Random places leave gaps."""
        if self.max_positions is None or not self.random_positions:
            return self.max_positions
        return self.max_positions // 4

    @property
    def counts(self) -> bool:
        """Whether a head of cross-attention learns to count."""
        return not set(COUNTING).isdisjoint(self.cross_anchors or ())

    @property
    def is_anchored(self) -> bool:
        """Whether any attention counts from the ends of the source."""
        return "anchored" in (self.positions, self.cross_positions)


class TrainConfig(Section):
    """The training."""

    max_steps: Annotated[int, Field(ge=0, le=10**9)] = Field(
        1000, description="Number of optimiser steps."
    )
    max_seconds: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Stop after so many seconds of training. null means no limit."
    )
    lr: Annotated[float, Field(gt=0)] = Field(
        3e-3, description="Learning rate at its peak, after warm-up."
    )
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = Field(
        "linear",
        description="Course of the learning rate after warm-up. linear and cosine end at 2% of lr.",
    )
    warmup_steps: Annotated[int, Field(ge=0)] | None = Field(
        None,
        description="Steps of linear warm-up. null means 100, or a third of max_steps if that is "
        "less.",
    )
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        1.0, description="Largest norm of the gradient; larger ones are scaled down. null: no clip."
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Weight decay of AdamW on matrices."
    )
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of the label's probability that is spread over the vocabulary."
    )
    accumulate: Annotated[int, Field(ge=1, le=2**16)] = Field(
        1, description="Number of batches whose gradients are added up for one step."
    )
    eval_every: Positive | None = Field(
        None, description="Steps between two evaluations. null means a quarter of max_steps."
    )
    log_every: Positive = Field(10, description="Steps between two records in metrics.jsonl.")
    stop_at_exact_match: Share | None = Field(
        None, description="Stop when the exact match on validation data is this high. null: never."
    )
    patience: Positive | None = Field(
        None,
        description="Stop after so many evaluations without a better one. null means never.",
    )
    precision: Literal["auto", "fp32", "bf16", "fp64"] = Field(
        "auto",
        description="Precision of matrix products. auto takes bf16 if the device has instructions "
        "for it, except on a CPU up to d_model 64; else fp32.",
    )
    compile: bool = Field(False, description="Compile the model with torch.compile, for a GPU.")

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        self._fill(
            warmup_steps=min(100, self.max_steps // 3),
            eval_every=max(1, self.max_steps // 4),
        )
        if self.warmup_steps is not None and self.warmup_steps > self.max_steps:
            raise refusal(
                "warmup_steps",
                f"{self.warmup_steps} steps of warm-up are more than "
                f"train.max_steps {self.max_steps}; lower it or leave it out",
            )
        return self


class Config(Section):
    """One run."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        0, description="Seed of the data, the initial weights and dropout."
    )
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda|cuda:\d+|mps)$")] = Field(
        "auto", description="auto | cpu | cuda | cuda:N | mps"
    )
    fault: FaultName | None = Field(
        None, description="A mistake to make on purpose; see `toytrans faults`. null means none."
    )
    data: DataConfig = Field(description="The pairs: where they come from, how long, how many.")
    model: ModelConfig = Field(
        default_factory=lambda: ModelConfig(),
        description="The transformer: sizes, positions, layers.",
    )
    train: TrainConfig = Field(
        default_factory=lambda: TrainConfig(),
        description="The training: steps, learning rate, limits, precision.",
    )

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        data, rows = self.data, self.model.room
        if self.model.backward == "by_hand":
            self._resolve_by_hand()
        if self.fault == "wrong_scale" and self.model.n_heads == 1:
            raise refusal("fault", "wrong_scale is no fault with one head; take model.n_heads 2")
        if self.fault == "no_position" and self.model.positions == "none":
            raise refusal("fault", "no_position takes nothing from model.positions: none")
        if data.train_length is not None:
            low, high = data.train_length
            beyond = high + 5
            if rows is not None:
                beyond = max(high, min(beyond, self._longest_source(rows)))
            data._fill(test_length=(low, beyond))
            self._check_examples()
        if rows is not None and data.task is not None:
            longest = self._longest_source(rows)
            for name in ("train_length", "valid_length", "test_length"):
                if (span := getattr(data, name))[1] > longest:
                    raise refusal(
                        f"data.{name}",
                        f"{span[1]} symbols are more than the {longest} that "
                        f"model.max_positions {self.model.max_positions} leaves room for; raise "
                        "it, or take "
                        "positions without a table",
                    )
        return self

    def _check_examples(self) -> None:
        for split in ("valid", "test"):
            examples: int = getattr(self.data, f"{split}_examples")
            span: tuple[int, int] = getattr(self.data, f"{split}_length")
            if examples * span[1] > MOST_IDS:
                raise refusal(
                    f"data.{split}_examples",
                    f"{examples:,} pairs of up to {span[1]:,} symbols are more than {MOST_IDS:,} "
                    f"ids; lower it, or data.{split}_length",
                )

    def _resolve_by_hand(self) -> None:
        """What is computed by hand is computed in fp32 or fp64, and as it stands."""
        if self.train.precision == "bf16":
            raise refusal("train.precision", "model.backward: by_hand takes fp32 or fp64, not bf16")
        if self.train.compile:
            raise refusal("train.compile", "model.backward: by_hand is not compiled; take false")
        if self.train.precision == "auto":
            self.train.__dict__["precision"] = "fp32"

    def _longest_source(self, rows: int) -> int:
        """Source symbols whose source and target both fit a table of `rows`, EOS included."""
        return (rows - 1) // TARGET_GROWTH.get(self.data.task or "", 1)

    @property
    def source_bos(self) -> bool:
        """Whether sources start with BOS: the anchored positions count from either end."""
        return self.model.is_anchored
