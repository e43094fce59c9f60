"""What `model.kind` does to the other keys of its section: defaults, size, keys without effect."""

from typing import TYPE_CHECKING, Any

from toytrans.choices import ModelKind
from toytrans.config_section import refusal

if TYPE_CHECKING:
    from toytrans.config import ModelConfig

OWN: dict[ModelKind, dict[str, Any]] = {
    "transformer": {},
    "rnn": {"cell": "gru", "rnn_attention": "bahdanau"},
    "conv": {"kernel_size": 3},
}
"""Keys of one kind alone, and what null means there."""

POSITIONS: dict[ModelKind, tuple[str, ...]] = {
    "rnn": ("none",),
    "conv": ("learned", "sinusoidal", "none"),
}
"""The positions that a kind can use, its default first."""

UNUSED: dict[str, Any] = {
    "n_heads": 4,
    "d_ff": 256,
    "cross_positions": "none",
    "score_cap": 0.0,
    "share_layers": False,
    "norm": "pre",
    "activation": "relu",
    "backward": "autograd",
}
"""Keys that only a transformer heeds, and their values in other kinds."""


def defaults(model: "ModelConfig") -> dict[str, Any]:
    """Values that follow from the kind."""
    values = {name: value for name, value in OWN[model.kind].items() if not getattr(model, name)}
    if model.kind in POSITIONS and "positions" not in model.model_fields_set:
        values["positions"] = POSITIONS[model.kind][0]
    return values


def check(model: "ModelConfig") -> None:
    """Raise a refusal for a key that the kind does not heed."""
    kind = model.kind
    for owner, names in OWN.items():
        for name in names:
            if owner != kind and getattr(model, name) is not None:
                raise refusal(name, f"belongs to model.kind: {owner}, not {kind}")
    if kind == "transformer":
        return
    if model.class_ is not None:
        raise refusal("kind", "a model of your own is of no kind; leave out kind or class")
    if model.positions not in POSITIONS[kind]:
        wanted = " or ".join(POSITIONS[kind])
        raise refusal(
            "positions", f"{model.positions} has no effect in model.kind: {kind}; take {wanted}"
        )
    for name, value in UNUSED.items():
        if getattr(model, name) != value:
            raise refusal(name, f"has no effect in model.kind: {kind}; leave it out")
    if kind == "rnn" and model.d_model % 2:
        raise refusal("d_model", f"each direction takes half of it: even, not {model.d_model}")


def layer_sizes(model: "ModelConfig") -> tuple[int, int]:
    """About how many parameters an encoder layer and a decoder layer have."""
    square = model.d_model**2
    if model.kind == "rnn":
        gates = 3 if model.cell == "gru" else 4
        return gates * 3 * square // 2, gates * 3 * square
    if model.kind == "conv":
        convolution = 2 * (model.kernel_size or 1) * square
        return convolution, convolution + square
    inner = 2 * model.d_model * model.d_ff
    return 4 * square + inner, 8 * square + inner
