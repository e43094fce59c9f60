"""toytrans' own models, checked as anybody's module would be. Their faults are those of
tests/checks/test_check.py, and of the slow tests behind a plain function."""

from functools import partial

from toytrans.config.schema import Config
from toytrans.model.build import build_model
from toytrans.resolve import resolve
from toytrans.tokens import Vocabulary

from . import faulty, sound
from .parts import END

VOCABULARY = Vocabulary(tuple(str(k) for k in range(17)))


def our_model(fault=None, **model):
    """A tiny model of ours with 20 ids."""
    model = {"d_model": 16, "n_heads": 2, "d_ff": 16, "positions": "sinusoidal"} | model
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 1}
    data = {"task": "copy", "symbols": 7, "train_length": [1, 6]}
    sections = {"fault": fault, "data": data, "model": layers | model}
    return build_model(resolve(Config.model_validate(sections)), VOCABULARY)


for _positions in ("sinusoidal", "rotary", "t5", "anchored"):
    sound(name=f"ours {_positions}")(partial(our_model, positions=_positions))
sound(name="ours learned")(partial(our_model, positions="learned", max_positions=600))
sound(name="ours post norm")(partial(our_model, norm="post"))
_closed = partial(our_model, pad_mask="keys_and_queries")
sound(name="ours with pads closed as queries")(_closed)

faulty("order", name="ours none")(partial(our_model, positions="none"))


@faulty()
def ours_with_the_end_closed():
    model = our_model()
    inner = model.forward
    model.forward = lambda src, tgt_in: inner(src.masked_fill(src == END, 0), tgt_in)
    return model
