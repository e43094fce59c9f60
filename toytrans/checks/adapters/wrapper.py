"""A ready wrapper for a model whose `forward` takes more than ids, to be copied by its user."""

import re
from inspect import Parameter
from typing import Any

from toytrans.checks.model import arguments
from toytrans.errors import UserError

MORE = re.compile(
    r"(masks?|(^|_)(pad|padding|lens?|lengths?|bias|pos|positions?|causal|cache|states?))(_|$)",
    re.IGNORECASE,
)
"""Words in names of what is no ids; tgt_padded and tgt_masked are ids."""

TARGET = re.compile(r"tgt|trg|target|dec|future|causal|look|subsequent", re.IGNORECASE)
CROSS = re.compile(r"mem|cross|enc_dec|dec_enc", re.IGNORECASE)


def refuse_more_than_ids(model: Any, name: str, pad_id: int) -> None:
    """Raises UserError where a model must be given more than ids; behind a blank line of its
    message stands code that does so."""
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    needed = [p for p in arguments(model) if p.default is p.empty and p.kind not in variadic]
    ids = [p.name for p in needed if p.kind is not p.KEYWORD_ONLY and not MORE.search(p.name)][:2]
    more = [p.name for p in needed if p.name not in ids]
    if not ids or not more:
        return
    passed = [f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name for p in needed]
    blocks = any("padding" in argument for argument in more)
    meaning = "True = blocked, as torch's layers want it" if blocks else "True = may look"
    lines = [
        f"{name} takes {', '.join(more)} beside ids, and check gives it ids alone: give "
        f"Asked(model), in which {meaning}; turn a mask round where your layers want the opposite",
        "",
        "class Asked(torch.nn.Module):",
        "    def __init__(self, model):",
        "        super().__init__()",
        "        self.model = model",
        "",
        f"    def forward(self, {', '.join(ids)}):",
        *(f"        {argument} = {_made(argument, ids, pad_id, blocks)}" for argument in more),
        f"        return self.model({', '.join(passed)})",
    ]
    raise UserError("\n".join(lines))


def _made(name: str, ids: list[str], pad_id: int, blocks: bool) -> str:
    """A line that makes an argument from the ids."""
    is_target = bool(TARGET.search(name)) and not CROSS.search(name)
    of = ids[-1] if is_target or len(ids) == 1 else ids[0]
    square = f"torch.ones(2 * {of}.shape[1:]).bool()"
    if re.search("len", name, re.IGNORECASE):
        return f"({of} != {pad_id}).sum(1)  # (B,)"
    if re.search("padding", name, re.IGNORECASE):
        return f"{of} == {pad_id}  # (B, L)"
    if not re.search("mask|pad|causal", name, re.IGNORECASE):
        return "...  # what your training passes"
    if blocks:
        return f"{square}.triu(1)  # (L, L)" if is_target else "None"
    pads = f"({of} != {pad_id})[:, None, None]"
    return f"{pads} & {square}.tril()  # (B, 1, L, L)" if is_target else f"{pads}  # (B, 1, 1, L)"
