"""What `model.kind` does to the other keys of its section: defaults, size, keys without effect.

model: a `ModelConfig`, which imports this module.
"""

from typing import Any

from toytrans.config.names import ModelKind

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

UNUSED = (
    *("n_heads", "d_ff", "share_layers", "norm", "activation", "backward"),
    *("cross_positions", "score_cap"),
)
"""Keys that only a transformer heeds."""


def defaults(model: Any) -> dict[str, Any]:
    """Values that follow from the kind."""
    values = {name: value for name, value in OWN[model.kind].items() if not getattr(model, name)}
    if model.kind in POSITIONS and "positions" not in model.model_fields_set:
        values["positions"] = POSITIONS[model.kind][0]
    return values


def check(model: Any) -> None:
    """Raise a refusal for a key that the kind does not heed."""
    from toytrans.config.schema import refusal

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
        wanted = ", ".join(POSITIONS[kind])
        raise refusal(
            "positions", f"{model.positions} has no effect in model.kind: {kind}; take {wanted}"
        )
    for name in UNUSED:
        value = getattr(model, name)
        if value != type(model).model_fields[name].default and value not in ("none", 0.0):
            raise refusal(name, f"has no effect in model.kind: {kind}; leave it out")
    if kind == "rnn" and model.d_model % 2:
        raise refusal(
            "d_model", f"an rnn reads in two directions, half of it each: even, not {model.d_model}"
        )


def layer_sizes(model: Any) -> tuple[int, int]:
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
