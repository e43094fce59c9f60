"""Models that answer ids with logits in another form, and the module to write around them.

Modules are tried that hand ids over in another way, or turn the answer round. The code of the first
that gives logits (B, T, V) is shown to the model's user.
"""

import contextlib
import copy
import re
from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from toytrans.checks.adapters.wrapper import code_of, module_of
from toytrans.checks.model import RAISED, Adapter, NoAnswer, Several, arguments, logits_of
from toytrans.checks.torch_modes import undisturbed
from toytrans.errors import UserError

LABELS = re.compile(r"(tgt|trg)(_out|_y)?|targets?|labels?|y")
"""Names of arguments that hold labels: without them some models give the last place alone."""

TAKES_NO_IDS = re.compile(
    r"(same|mixed) d(ata )?type|scalar type|only Tensors of floating|must be .*float|"
    r"expected .*(float|double)|indices must|has no attribute|not subscriptable|KeyError",
    re.IGNORECASE,
)
"""What torch and Python say of ids in the place of vectors, or of a batch of another kind."""


def refuse_another_form(plain: Adapter) -> None:
    """Raises UserError where a model gives logits once another module stands around it, whose code
    stands behind a blank line of the message."""
    asked = plain.copied() or plain
    with undisturbed(asked.module), torch.no_grad():
        ids = _small_batch(asked)
        said = "" if ids is None else _why_no_logits(asked, *ids)
        if ids is None or not said or _is_several(asked, *ids):
            return
        if _is_as_long_as_the_source(asked, *ids):
            code = code_of(["ids"], ["return self.model(ids, ids)"])
            why = "that is as long as the source: give Asked(model) and kind='encoder'"
            raise UserError(f"{said}; {why}\n\n{code}")
        for code in _modules_around(asked):
            around = copy.copy(asked)
            around.call = module_of(code, asked.call)
            if not _why_no_logits(around, *ids):
                raise UserError(f"{said}; give Asked(model), which gives them\n\n{code}")


def refuse_no_ids(plain: Adapter) -> None:
    """Raises UserError where a model seems to take something else than ids."""
    asked = plain.copied() or plain
    with undisturbed(asked.module), torch.no_grad():
        ids = _small_batch(asked)
        said = "" if ids is None else _why_no_logits(asked, *ids)
    if TAKES_NO_IDS.search(said.partition(" raised ")[2]):
        raise UserError(
            f"{said}; check hands over ids, tensors (B, L) of int64: where a model takes vectors, "
            "or a batch of another kind, give a module around it that makes those from ids, as "
            "toytrans.checks.adapters.TorchTransformer does for torch.nn.Transformer"
        )


def _small_batch(asked: Adapter) -> tuple[Tensor, Tensor] | None:
    """Three pairs without pads, whose source and target have lengths of their own."""
    symbols = asked.facts.symbols() * 20
    pairs = [(symbols[row : row + 8], symbols[2 * row : 2 * row + 5]) for row in range(3)]
    with contextlib.suppress(*RAISED):
        return asked.batch(pairs)[:2]
    return None


def _why_no_logits(asked: Adapter, src: Tensor, tgt_in: Tensor) -> str:
    """Why a model gives no logits (B, T, V), in words; "" where it does."""
    try:
        asked.ask(src, tgt_in)
    except NoAnswer as error:
        return str(error)
    return ""


def _is_several(asked: Adapter, src: Tensor, tgt_in: Tensor) -> bool:
    """Whether several parts of the answer may be the logits, which only its user can tell."""
    with contextlib.suppress(*RAISED):
        return isinstance(asked.answer(*asked.placed(src, tgt_in)), Several)
    return False


def _is_as_long_as_the_source(asked: Adapter, src: Tensor, tgt_in: Tensor) -> bool:
    """Whether there are logits for each place of the source."""
    size = asked.facts.vocabulary_size
    with contextlib.suppress(*RAISED):
        logits = logits_of(asked.answer(*asked.placed(src, tgt_in)))
        return asked.facts.has_source and logits.shape == (*src.shape, size)
    return False


def _modules_around(asked: Adapter) -> Iterator[str]:
    """The code of modules that hand over ids in several ways, the plainest first, and of each that
    take the logits out of a tuple, and turn them round."""
    facts = asked.facts
    names = ["src", "tgt_in"] if facts.has_source else ["ids"]
    last = names[-1]
    taken = arguments(asked.call)[len(names) :]
    labels = [p.name for p in taken if p.default is None and LABELS.fullmatch(p.name)]
    handed = [last, *(f"{last}, {name}={last}" for name in labels)]
    # to one that cuts the last place off by itself, and to one that adds the start
    handed += [f"torch.nn.functional.pad({last}, (0, 1), value={facts.pad_id})", f"{last}[:, 1:]"]
    turns = ("", f".unflatten(0, {last}.shape)", ".transpose(1, 2)")
    for given, item, turn in product(handed, ("", "[0]"), turns):
        call = f"self.model({', '.join([*names[:-1], given])})"
        yield code_of(names, [f"return {call}{item}{turn}"])
