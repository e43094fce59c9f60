"""The description of a run: typed, strict, each default written once.

A key that is null may take its value from other keys: test_length is five beyond train_length, say.
Each section derives these values when it is validated, so a saved `config.yaml` holds every value.
`config_file` reads files and overrides.
"""

import sys
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from toytrans import config_kinds as kinds
from toytrans.choices import (
    AnchorName,
    Backward,
    CrossPositionName,
    ModelKind,
    PadMask,
    PositionName,
)
from toytrans.config_data import MOST_IDS, MOST_TOKENS, DataConfig
from toytrans.config_section import (
    Depth,
    OrOwn,
    OrSealed,
    Own,
    Section,
    Seed,
    Size,
    refusal,
)
from toytrans.config_train import TrainConfig
from toytrans.errors import UserError
from toytrans.user_code import is_reference

COUNTING: tuple[AnchorName, ...] = ("count", "count_end", "fertility", "fertility_end")
"""Anchors whose places a head learns to count."""

ANCHOR_CYCLE: tuple[AnchorName, ...] = ("start", "end", "wrap", "start")

MOST_PARAMETERS = 10**9
"""Far more than a toy needs, and less than would fill a machine."""


class ModelConfig(Section):
    """The model."""

    kind: ModelKind = Field(
        "transformer",
        description="The model: transformer; rnn, a recurrent network with attention; or conv, "
        "ConvS2S.",
    )
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
    class_: Own | None = Field(
        None,
        alias="class",
        description="Your own model, FILE.py:NAME, in place of the transformer.",
    )
    cell: Literal["gru", "lstm"] | None = Field(
        None, description="Cells of kind rnn. null means gru."
    )
    rnn_attention: Literal["bahdanau", "luong"] | None = Field(
        None,
        description="Attention of kind rnn: additive, before each step; or general, after all "
        "steps. null means bahdanau.",
    )
    kernel_size: Annotated[int, Field(ge=1, le=64)] | None = Field(
        None, description="Places that a convolution of kind conv sees. null means 3."
    )
    positions: OrOwn[PositionName] = Field(
        "anchored",
        description="Position scheme of embeddings and self-attention, or your own. Left out, it "
        "is none in kind rnn and learned in kind conv.",
    )
    cross_positions: OrOwn[CrossPositionName] | None = Field(
        None,
        description="Position scheme of cross-attention, or your own. null means anchored if "
        "positions is anchored, else none.",
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
        "positions (null means 2048). Of your own positions or model: the most places; null means "
        "any number.",
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

    def _derived(self) -> dict[str, Any]:
        derived = kinds.defaults(self)
        positions = derived.get("positions", self.positions)
        anchored = positions == "anchored" and self.class_ is None
        derived |= self._defaults(cross_positions="anchored" if anchored else "none")
        if self.random_positions or positions == "learned":
            derived |= self._defaults(max_positions=2048 if self.random_positions else 512)
        if not (anchored or self.cross_positions == "anchored"):
            return derived | self._defaults(score_cap=0.0)
        heads = range(min(self.n_heads, self.d_model))
        cycle = tuple(ANCHOR_CYCLE[h % len(ANCHOR_CYCLE)] for h in heads)
        cap = 1.0 if anchored else 0.0
        return derived | self._defaults(
            cross_anchors=cycle, score_cap=cap, bias_gain=16.0, slope=1.0
        )

    def _check(self) -> None:
        kinds.check(self)
        if self.kind == "transformer" and self.d_model % self.n_heads:
            divisors = [h for h in range(1, self.d_model + 1) if self.d_model % h == 0]
            near = sorted(sorted(divisors, key=lambda h: abs(h - self.n_heads))[:3])
            raise refusal(
                "n_heads",
                f"{self.n_heads} heads do not divide d_model {self.d_model}; "
                f"take {' or '.join(map(str, near))}",
            )
        self._check_positions()
        if self.class_ is not None and self.backward == "by_hand":
            raise refusal("backward", "by_hand derives no model of your own; take autograd")
        if self.is_anchored:
            self._check_anchors()
        else:
            names = ("cross_anchors", "bias_gain", "slope")
            self._refuse(names, "belongs to positions: anchored, or to such cross_positions")

    def _check_positions(self) -> None:
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise refusal("d_model", f"sinusoidal positions need an even width, not {self.d_model}")
        if self.random_positions and self.positions not in ("sinusoidal", "learned"):
            raise refusal("random_positions", "belongs to positions: sinusoidal or learned")
        own = self.class_ is not None or is_reference(self.positions)
        if not (own or self.random_positions or self.positions == "learned"):
            reason = "belongs to positions: learned, and to random_positions"
            self._refuse(("max_positions",), reason)
        if self.positions == "rotary" and self.d_model // self.n_heads % 2:
            width = self.d_model // self.n_heads
            raise refusal("positions", f"rotary rotates pairs: heads of even width, not {width}")

    def _check_anchors(self) -> None:
        if self.counts and self.cross_positions == "none":
            raise refusal("cross_anchors", "counts need cross_positions: anchored, not none")
        if self.counts and self.backward == "by_hand":
            raise refusal("backward", f"by_hand derives no {', '.join(COUNTING)}; take autograd")
        if self.cross_anchors is not None and len(self.cross_anchors) != self.n_heads:
            raise refusal(
                "cross_anchors",
                f"{len(self.cross_anchors)} anchors for {self.n_heads} heads; name one per head",
            )

    def check_size(self, vocabulary: int) -> None:
        """Raise UserError where a model with V ids has more than MOST_PARAMETERS parameters. How
        many a model of the user's has is known when it is built."""
        if self.class_ is not None:
            return
        depths = (self.n_encoder_layers, self.n_decoder_layers)
        ids = vocabulary * (1 if self.tie_embeddings else 3) + (self.max_positions or 0)
        size = ids * self.d_model + sum(
            layer * (1 if self.share_layers else depth)
            for layer, depth in zip(kinds.layer_sizes(self), depths, strict=True)
        )
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

    @property
    def counts(self) -> bool:
        """Whether a head of cross-attention learns to count."""
        return not set(COUNTING).isdisjoint(self.cross_anchors or ())

    @property
    def is_anchored(self) -> bool:
        """Whether any attention has anchored positions."""
        return self.class_ is None and "anchored" in (self.positions, self.cross_positions)


DEVICE = r"^(auto|cpu|cuda|cuda:\d+|mps)$"


class Config(Section):
    """One run."""

    seed: Seed = Field(
        0,
        description="Seed of the initial weights and dropout, and of the data unless data.seed is "
        "set.",
    )
    device: Annotated[str, Field(pattern=DEVICE)] = Field(
        "auto", description="auto | cpu | cuda | cuda:N | mps"
    )
    fault: OrSealed | None = Field(
        None,
        description="A mistake planted on purpose: its name (see `toytrans faults`), or the seal "
        "of an exercise, which hides the name. null means none.",
    )
    data: DataConfig = Field(description="The pairs: where they come from, how long, how many.")
    model: ModelConfig = Field(
        default_factory=ModelConfig,
        description="The model: kind, sizes, positions, layers.",
    )
    train: TrainConfig = Field(
        default_factory=TrainConfig,
        description="The training: steps, learning rate, limits, precision.",
    )

    def _derived(self) -> dict[str, Any]:
        data, train = self.data, self.train
        if data.train_length is not None and data.test_length is None:
            low, high = data.train_length
            beyond = max(high, min(high + 5, self._longest_source()))
            data = data.model_copy(update={"test_length": (low, beyond)})
        if self.model.backward == "by_hand" and train.precision == "auto":
            train = train.model_copy(update={"precision": "fp32"})
        return {"data": data, "train": train}

    def _check(self) -> None:
        if self.model.backward == "by_hand" and self.train.precision == "bf16":
            reason = "model.backward: by_hand takes fp32 or fp64, not bf16"
            raise refusal("train.precision", reason)
        if self.fault is not None and self.model.class_ is not None:
            raise refusal("fault", "faults are made in toytrans' models; leave out model.class")
        if self.data.task is not None:
            self._check_lengths()
        self._check_step()

    def _check_lengths(self) -> None:
        """Whether the lengths of a task fit a position table and memory."""
        data, longest = self.data, self._longest_source()
        for name in ("train_length", "valid_length", "test_length"):
            if (span := getattr(data, name))[1] > longest:
                raise refusal(
                    f"data.{name}",
                    f"{span[1]} symbols are more than the {longest} that "
                    f"model.max_positions {self.model.max_positions} leaves room for; raise it, or "
                    "take positions without a table",
                )
        for split in ("valid", "test"):
            examples, span = getattr(data, f"{split}_examples"), getattr(data, f"{split}_length")
            if examples * span[1] > MOST_IDS:
                raise refusal(
                    f"data.{split}_examples",
                    f"{examples:,} pairs of up to {span[1]:,} symbols are more than {MOST_IDS:,} "
                    f"ids; lower it, or data.{split}_length",
                )

    def _check_step(self) -> None:
        """Whether the batches of one step fit memory. All are there before the first is used:
        each is divided by the number of tokens of all."""
        data, count = self.data, self.train.accumulate
        longest = (1 + data.limits.growth) * (data.train_length or (0, 0))[1] + 3
        tokens = max(data.batch_tokens, longest)
        if count > 1 and count * tokens > MOST_TOKENS:
            raise refusal(
                "train.accumulate",
                f"{count:,} batches of up to {tokens:,} tokens are more than the {MOST_TOKENS:,} "
                "of one step; lower it, data.batch_tokens or data.train_length",
            )

    def _longest_source(self) -> int:
        """Source symbols whose source and target both fit the position table, EOS included."""
        if self.model.max_length is None:
            return sys.maxsize
        return (self.model.max_length - 1) // self.data.limits.growth

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

    def without_seeds(self) -> "Config":
        """What the runs of one group have in common: all but both seeds and the device."""
        data = self.data.model_copy(update={"seed": None})
        return self.model_copy(update={"seed": 0, "device": "auto", "data": data})

    @property
    def source_bos(self) -> bool:
        """Whether sources start with BOS: anchored positions count from both ends."""
        return self.model.is_anchored
