"""Any callable as a model under check: what can be detected in it, and what was given."""

import re
from inspect import Parameter
from typing import Any, get_args

import torch
from torch import nn

from toytrans.checks.batch import apart, largest
from toytrans.checks.subject import BY_PLACE, RAISED, Adapter, Facts, Kind, arguments, copy_of
from toytrans.errors import UserError


def of_callable(
    model: Any, known: dict[str, Any], hands: dict[str, Any], batch_first: bool | None
) -> Adapter:
    """The adapter of a callable, as it can be asked: batch first, else time first, else with source
    and target of one length. What can be asked in none of these ways stays as it is, to be refused.

    known: `Facts`; hands: other arguments of `Adapter`; batch_first: None to find it out. Raises
    UserError where something is missing.
    """
    if missing := [name for name in ("pad_id", "vocabulary_size") if name not in known]:
        raise UserError(
            f"check needs {' and '.join(missing)} of a {type(model).__name__}; "
            f"give {' and '.join(f'{name}=...' for name in missing)}"
        )
    forward = getattr(type(model), "forward", None)
    if getattr(forward, "__module__", "") == nn.Transformer.__module__:
        raise UserError(
            f"{type(model).__name__} of torch takes vectors, not ids: give "
            "toytrans.checks.adapters.TorchTransformer(model, source embedding, target embedding, "
            "output layer), or a module of your own around it"
        )
    if isinstance(model, nn.Module) and any(map(nn.parameter.is_lazy, model.parameters())):
        raise UserError(f"{type(model).__name__} has lazy layers without sizes; call it once first")
    refuse_more_than_ids(model, known["pad_id"])
    kinds = [parameter.kind for parameter in arguments(model)]
    takes_one = sum(kind in BY_PLACE for kind in kinds) == 1
    if "kind" not in known and takes_one and Parameter.VAR_POSITIONAL not in kinds:
        raise UserError(
            "the model takes ids alone; give kind='decoder' if it predicts the next token, "
            "kind='encoder' if it sees both sides"
        )
    if (kind := known.get("kind", "encoder-decoder")) not in get_args(Kind):
        raise UserError(f"kind {kind!r}: give one of {', '.join(get_args(Kind))}")
    name = getattr(model, "__name__", type(model).__name__)
    own = {"name": name, "time_first": batch_first is False}
    facts = Facts(**{"decoding_start": known.get("start_id")} | known | own)
    made = Adapter(model, facts, **hands)
    first = _rows_are_apart(made)
    if batch_first is None and not first:
        turned = made.on(model, made.embeddings, time_first=True)
        if _rows_are_apart(turned):
            return turned
    if first is None and facts.has_source:
        equal = made.on(model, made.embeddings, equal_lengths=True)
        return made if _rows_are_apart(equal) is None else equal
    return made


@torch.no_grad()
def _rows_are_apart(tested: Adapter) -> bool | None:
    """Whether the rows of a small batch do not depend on each other; None where it is not taken."""
    asked = copy_of(tested) or tested
    symbols = asked.facts.symbols()
    if len(symbols) < 2:
        return True
    many = symbols * 12
    pairs = [(many[row : row + 6], many[2 * row : 2 * row + 4]) for row in range(3)]
    try:
        src, tgt_in, _ = asked.batch(pairs)
        before = asked.ask(src, tgt_in)
        src[0], tgt_in[0] = src[0].flip(0), tgt_in[0].flip(0)
        after = asked.ask(src, tgt_in)
    except RAISED:  # whatever a foreign model raises: it is raised again when it is asked
        return None
    moved = largest(apart(after[1:], before[1:]).nan_to_num(0.0, 0.0, 0.0))
    size = largest(before.nan_to_num(0.0, 0.0, 0.0).clamp(-1e4, 1e4))
    return moved <= 1e-4 * max(size, 1e-30)


# A ready wrapper for a model whose `forward` takes more than ids --------------------------------

MORE = re.compile(
    r"(masks?|(^|_)(pad|padding|lens?|lengths?|bias|pos|positions?|causal|cache|states?))(_|$)",
    re.IGNORECASE,
)
"""Words in names of what is no ids; tgt_padded and tgt_masked are ids."""

TARGET = re.compile(r"tgt|trg|target|dec|future|causal|look|subsequent", re.IGNORECASE)
CROSS = re.compile(r"mem|cross|enc_dec|dec_enc", re.IGNORECASE)


class MoreThanIds(UserError):
    """A model must be given more than ids. wrapper: code that does so."""

    def __init__(self, message: str, wrapper: str) -> None:
        super().__init__(f"{message}\n\n{wrapper}")
        self.message, self.wrapper = message, wrapper


def refuse_more_than_ids(model: Any, pad_id: int) -> None:
    """Raises MoreThanIds where a model must be given more than ids."""
    variadic = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    needed = [p for p in arguments(model) if p.default is p.empty and p.kind not in variadic]
    ids = [p.name for p in needed if p.kind is not p.KEYWORD_ONLY and not MORE.search(p.name)][:2]
    more = [p for p in needed if p.name not in ids]
    if not ids or not more:
        return
    name = getattr(model, "__name__", type(model).__name__)
    passed = [f"{p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else p.name for p in needed]
    blocks = any("padding" in p.name for p in more)
    lines = [
        "class Asked(torch.nn.Module):",
        "    def __init__(self, model):",
        "        super().__init__()",
        "        self.model = model",
        "",
        f"    def forward(self, {', '.join(ids)}):",
        *(f"        {p.name} = {_made(p.name, ids, pad_id, blocks)}" for p in more),
        f"        return self.model({', '.join(passed)})",
    ]
    meaning = "True = blocked, as torch's layers want it" if blocks else "True = may look"
    raise MoreThanIds(
        f"{name} takes {', '.join(p.name for p in more)} beside ids, and check gives it ids alone: "
        f"give Asked(model), in which {meaning}; turn a mask round where your layers want the "
        "opposite",
        "\n".join(lines),
    )


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
