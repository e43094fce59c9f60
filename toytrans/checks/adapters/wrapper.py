"""Ready wrappers, to be copied by the user of a model whose `forward` takes more than ids, or one
batch from which it reads them."""

import re
from collections.abc import Mapping, Sequence
from inspect import Parameter
from typing import Any, NamedTuple

import torch
from torch import nn

from toytrans.checks.model import RAISED, arguments
from toytrans.errors import UserError

ASKED = """class Asked(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, {ids}):{body}"""
"""A module around a model."""

MORE = re.compile(
    r"(masks?|(^|_)(pad|padding|lens?|lengths?|bias|pos|positions?|causal|cache|states?))(_|$)",
    re.IGNORECASE,
)
"""Words in names of what is no ids; tgt_padded and tgt_masked are ids."""

TARGET = re.compile(r"tgt|trg|target|dec|future|causal|look|subsequent", re.IGNORECASE)
CROSS = re.compile(r"mem|cross|enc_dec|dec_enc", re.IGNORECASE)
IN_TORCH = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)

BATCH = re.compile(r"batch|inputs?|data|sample|examples?|features", re.IGNORECASE)
"""Names of a single argument that holds all that a model takes."""

MOST_NAMES = 8
"""So many names are looked for in one."""


class Taken(NamedTuple):
    """What a line of the wrapper is made from. ids: the names of the arguments that are ids;
    blocks: True in a mask closes, as in torch's layers; is_decoder: there is one stream, and it
    looks back."""

    ids: list[str]
    pad_id: int
    blocks: bool
    is_decoder: bool


# Code ------------------------------------------------------------------------------------------


def code_of(ids: Sequence[str], lines: Sequence[str]) -> str:
    """The code of a module around a model; lines: what its forward does."""
    body = "".join(f"\n        {line}" for line in lines)
    return ASKED.format(ids=", ".join(ids), body=body)


def module_of(code: str, model: Any) -> Any:
    """The module around a model whose code is shown. It is run as it is shown, so that what is
    found out with it holds for who pastes it."""
    names: dict[str, Any] = {"torch": torch}
    exec(code, names)
    return names["Asked"](model)


# More than ids ---------------------------------------------------------------------------------


def refuse_more_than_ids(model: Any, name: str, known: Mapping[str, Any], given: set[str]) -> None:
    """Raises UserError where a model must be given more than ids; behind a blank line of its
    message stands code that does so. known: facts; given: arguments that `inputs=` makes."""
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    needed = [p for p in arguments(model) if p.default is p.empty and p.kind not in variadic]
    needed = [p for p in needed if p.name not in given]
    ids = [p.name for p in needed if p.kind is not p.KEYWORD_ONLY and not MORE.search(p.name)]
    most = 2 if known.get("kind", "encoder-decoder") == "encoder-decoder" else 1
    if len(ids) > most:  # the last one is the target, and those between are more sources
        ids = [ids[0], ids[-1]] if most == 2 else ids[:1]
    more = [p.name for p in needed if p.name not in ids]
    if not ids or not more:
        return
    parts = [*model.modules()] if isinstance(model, nn.Module) else []
    of_torch = any(isinstance(part, IN_TORCH) for part in parts)
    blocks = of_torch or any("padding" in argument for argument in more)
    taken = Taken(ids, known["pad_id"], blocks, known.get("kind") == "decoder")
    is_time_first = any(getattr(part, "batch_first", True) is False for part in parts)
    turned = [f"{each}.T" if is_time_first and each in ids else each for each in ids + more]
    shown = dict(zip(ids + more, turned, strict=True))
    passed = [
        f"{p.name}={shown[p.name]}" if p.kind is p.KEYWORD_ONLY else shown[p.name] for p in needed
    ]
    meaning = "True = blocked, as torch's layers want it" if blocks else "True = may look"
    back = ".transpose(0, 1)  # batch first again" if is_time_first else ""
    lines = [f"{argument} = {_made(argument, taken)}" for argument in more]
    code = code_of(ids, [*lines, f"return self.model({', '.join(passed)}){back}"])
    raise UserError(
        f"{name} takes {', '.join(more)} beside ids, and check gives it ids (B, L) alone: give "
        f"Asked(model), in which {meaning}; turn a mask round where your layers want the opposite"
        f"\n\n{code}"
    )


def _made(name: str, taken: Taken) -> str:
    """A line that makes an argument from the ids."""
    ids, pad_id, blocks, is_decoder = taken
    is_target = (bool(TARGET.search(name)) or is_decoder) and not CROSS.search(name)
    of = ids[-1] if is_target or len(ids) == 1 else ids[0]
    square = f"torch.ones(2 * {of}.shape[1:]).bool()"
    if re.search("len", name, re.IGNORECASE):
        return f"({of} != {pad_id}).sum(1)  # (B,)"
    if name in ("attention_mask", "decoder_attention_mask"):
        return f"({of} != {pad_id}).long()  # (B, L), 1 = may look"
    if re.search("padding|pad_mask", name, re.IGNORECASE):
        return f"{of} == {pad_id}  # (B, L)" if blocks else f"{of} != {pad_id}  # (B, L)"
    if not re.search("mask|pad|causal", name, re.IGNORECASE):
        return "...  # what your training passes"
    if blocks:
        return f"{square}.triu(1)  # (L, L)" if is_target else "None"
    pads = f"({of} != {pad_id})[:, None, None]"
    return f"{pads} & {square}.tril()  # (B, 1, L, L)" if is_target else f"{pads}  # (B, 1, 1, L)"


# One batch -------------------------------------------------------------------------------------


def refuse_one_batch(model: Any, name: str, known: Mapping[str, Any]) -> None:
    """Raises UserError where a model takes one argument from which it reads ids by their names, as
    from a dict or an object with attributes; behind a blank line of its message stands code that
    makes one of ids. known: facts."""
    needed = [p.name for p in arguments(model) if p.default is p.empty]
    if len(needed) != 1 or not BATCH.fullmatch(needed[0]):
        return
    is_pair = known.get("kind", "encoder-decoder") == "encoder-decoder"
    taken = Taken(["src", "tgt_in"] if is_pair else ["ids"], known["pad_id"], False, False)
    for holder in ("dict", "types.SimpleNamespace"):
        code = _code_of_batch(model, holder, taken, known["vocabulary_size"])
        if code is not None:
            raise UserError(
                f"{name} takes {needed[0]}, from which it reads by names, and check hands over ids "
                "(B, L) by their place: give Asked(model), and look whether the names get what "
                f"they stand for\n\n{code}"
            )


def _code_of_batch(model: Any, holder: str, taken: Taken, size: int) -> str | None:
    """The code of a module that hands its ids over in a holder, under the names that the model is
    seen to miss, one after the other; None where the model wants something else."""
    symbols = torch.arange(24) % (size - 1) + 1
    ids = [symbols[:12].view(2, 6), symbols[12:22].view(2, 5)][: len(taken.ids)]
    names: list[str] = []
    while len(names) < MOST_NAMES:
        code = _code_of_holder(holder, names, taken)
        try:
            with torch.no_grad():
                module_of(code, model)(*ids)
            return code if names else None
        except (KeyError, AttributeError) as error:
            missed = error.name if isinstance(error, AttributeError) else error.args[0]
        except RAISED:  # whatever a foreign model raises: it wants no such holder
            return None
        if not isinstance(missed, str) or missed in names or not missed.isidentifier():
            return None
        names.append(missed)
    return None


def _code_of_holder(holder: str, names: Sequence[str], taken: Taken) -> str:
    """The code of a module that hands over so many names."""
    more = {name: _made(name, taken) for name in names if MORE.search(name)}
    target = re.compile(f"{TARGET.pattern}|label|_y$|out", re.IGNORECASE)
    ids = {name: taken.ids[-1 if target.search(name) else 0] for name in names}
    values = ", ".join(f"{name}={name if name in more else ids[name]}" for name in names)
    lines = [*(f"{name} = {line}" for name, line in more.items())]
    code = code_of(taken.ids, [*lines, f"return self.model({holder}({values}))"])
    return f"import types\n\n\n{code}" if holder.startswith("types") else code
