"""toytrans' own models, checked as anybody's module would be."""

from toytrans.config.names import FaultName
from toytrans.config.schema import Config
from toytrans.tokens import Vocabulary
from toytrans.training.faults import build_model

from . import END, faulty, sound

VOCABULARY = Vocabulary(tuple(str(k) for k in range(17)))
SEEN_FROM_OUTSIDE: dict[FaultName, str] = {
    "no_causal": "future",
    "triangle_off_by_one": "future",
    "pad_visible": "pads rows",
    "mask_flipped": "pads future rows",
    "no_position": "order",
    "no_residual": "sublayers",
    "wrong_scale": "scale",
    "no_scale": "scale",
}


def our_model(fault=None, **model):
    """A tiny model of ours with 20 ids."""
    model = {"d_model": 16, "n_heads": 2, "d_ff": 16, "positions": "sinusoidal"} | model
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 1}
    if model["positions"] == "learned":
        layers["max_positions"] = 600
    data = {"task": "copy", "symbols": 7, "train_length": [1, 6]}
    sections = {"fault": fault, "data": data, "model": layers | model}
    return build_model(Config.model_validate(sections), VOCABULARY)


def _positions(name):
    def maker():
        return our_model(positions=name)

    maker.__name__, maker.__doc__ = f"ours_{name}", f"Our model with {name} positions."
    register = faulty("order") if name == "none" else sound()
    register(maker)


def _fault(name, checks):
    def maker():
        return our_model(name)

    maker.__name__, maker.__doc__ = f"ours_{name}", f"Our model with the fault {name}."
    faulty(checks)(maker)


for _name in ("none", "sinusoidal", "learned", "rotary", "t5", "anchored"):
    _positions(_name)
for _name, _checks in SEEN_FROM_OUTSIDE.items():
    _fault(_name, _checks)


@sound()
def ours_post_norm():
    """Our model with norms behind the sums."""
    return our_model(norm="post")


@sound()
def ours_with_pads_closed_as_queries():
    """Our model with pads closed as keys and queries."""
    return our_model(pad_mask="keys_and_queries")


@faulty()
def ours_with_the_end_closed():
    """Our model, its source's end closed with the pads."""
    model = our_model()
    inner = model.forward

    def forward(src, tgt_in):
        return inner(src.masked_fill(src == END, 0), tgt_in)

    model.forward = forward
    return model
