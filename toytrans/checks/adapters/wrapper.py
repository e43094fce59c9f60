"""A ready wrapper for a model whose `forward` takes more than ids, to be copied by its user."""

import re
from collections.abc import Mapping
from inspect import Parameter
from typing import Any, NamedTuple

from torch import nn

from toytrans.checks.model import arguments
from toytrans.errors import UserError

MORE = re.compile(
    r"(masks?|(^|_)(pad|padding|lens?|lengths?|bias|pos|positions?|causal|cache|states?))(_|$)",
    re.IGNORECASE,
)
"""Words in names of what is no ids; tgt_padded and tgt_masked are ids."""

TARGET = re.compile(r"tgt|trg|target|dec|future|causal|look|subsequent", re.IGNORECASE)
CROSS = re.compile(r"mem|cross|enc_dec|dec_enc", re.IGNORECASE)
IN_TORCH = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class Taken(NamedTuple):
    """What a line of the wrapper is made from. ids: the names of the arguments that are ids;
    blocks: True in a mask closes, as in torch's layers; is_decoder: there is one stream, and it
    looks back."""

    ids: list[str]
    pad_id: int
    blocks: bool
    is_decoder: bool


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
    lines = [
        f"{name} takes {', '.join(more)} beside ids, and check gives it ids (B, L) alone: give "
        f"Asked(model), in which {meaning}; turn a mask round where your layers want the opposite",
        "",
        "class Asked(torch.nn.Module):",
        "    def __init__(self, model):",
        "        super().__init__()",
        "        self.model = model",
        "",
        f"    def forward(self, {', '.join(ids)}):",
        *(f"        {argument} = {_made(argument, taken)}" for argument in more),
        f"        return self.model({', '.join(passed)}){back}",
    ]
    raise UserError("\n".join(lines))


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
