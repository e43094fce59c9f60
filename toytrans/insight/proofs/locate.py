"""Where a failure first shows: the module, and its heads; and the smallest example of it."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from toytrans.errors import UserError
from toytrans.insight.proofs.answers import apart, calm, largest
from toytrans.insight.proofs.batch import ProofBatch
from toytrans.insight.proofs.model_under_test import ATTENTION_END, half_of
from toytrans.insight.proofs.report import Witness

HEADS = ("num_heads", "n_heads", "num_attention_heads", "nhead", "heads", "n_head")
MOST_ASKED = 60
"""Calls that are spent on making an example smaller."""

Ids = tuple[Tensor, Tensor]


class ModuleOutput(NamedTuple):
    """A module's output or input, in the order in which modules end."""

    name: str
    value: Tensor
    context: Tensor | None


def first_module(batch: ProofBatch, witness: Witness) -> str:
    """Which module's output first differs where it must not, in words; "" where none is known."""
    module = batch.model.module
    if module is None:
        return ""
    try:
        with torch.enable_grad():  # with it torch takes no shortcut
            before, after = (
                _outputs(batch, module, ids) for ids in (witness.before, witness.after)
            )
    except Exception:  # a foreign model under hooks
        return ""
    if [seen.name for seen in before] != [seen.name for seen in after]:
        return ""
    for old, new in zip(before, after, strict=True):
        pair = _compared(batch, witness, old.name, old.value, new.value)
        if pair is None or pair[0].shape != pair[1].shape:
            continue
        by = largest(apart(pair[0], pair[1]).nan_to_num(1.0))
        if by > _rounding(pair[0]) * max(largest(pair[0].nan_to_num()), 1e-30):
            return _in_words(batch, module, witness, old, new)
    return ""


def _rounding(value: Tensor) -> float:
    """The share of the largest number that rounding may move, by dtype."""
    return min(max(1e-7, 100 * torch.finfo(value.dtype).eps), 1e-2)


def _in_words(
    batch: ProofBatch, module: nn.Module, witness: Witness, old: ModuleOutput, new: ModuleOutput
) -> str:
    name = re.sub(r"^model\.(?=.)", "", old.name)
    if not name:
        return f"in {type(module).__name__}.forward itself, outside its modules"
    layer = re.search(r"\.(\d+)\.", f".{name}.")
    where = f"in {name}" + (f" (layer {int(layer[1]) + 1})" if layer else "")
    if old.context is None or new.context is None:
        return where
    parent = module.get_submodule(old.name.rpartition(".")[0])
    count = next((int(getattr(parent, a)) for a in HEADS if hasattr(parent, a)), 0)
    pair = _compared(batch, witness, old.name, old.context, new.context)
    if count < 2 or pair is None or pair[0].shape != pair[1].shape or pair[0].shape[-1] % count:
        return where
    by = [largest(part.nan_to_num(1.0)) for part in apart(*pair).chunk(count, -1)]
    heads = [
        head for head, value in enumerate(by) if value > _rounding(pair[0]) * max(max(by), 1e-30)
    ]
    if not heads:
        return where
    listed = "all heads" if len(heads) == count else f"head {', '.join(map(str, heads))}"
    return f"{where}, {listed}"


def _outputs(batch: ProofBatch, module: nn.Module, ids: Ids) -> list[ModuleOutput]:
    """What every module gives to a batch, in the order in which they end."""
    seen: list[ModuleOutput] = []

    def hook(name: str, is_end: bool) -> Callable[..., None]:
        def keep(_: nn.Module, given: Any, output: Any) -> None:
            value = _tensor(output)
            if value is not None:
                context = given[0].detach().clone() if is_end and given else None
                seen.append(ModuleOutput(name, value.detach().clone(), context))

        return keep

    with contextlib.ExitStack() as stack:
        for name, part in module.named_modules():
            handle = part.register_forward_hook(hook(name, bool(ATTENTION_END.search(name))))
            stack.callback(handle.remove)
        stack.enter_context(calm(batch.variant))
        batch.model.call(ids[0].clone(), ids[1].clone())
    return seen


def _tensor(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, tuple | list):
        return next((t for part in output if (t := _tensor(part)) is not None), None)
    if hasattr(output, "values") and callable(output.values):
        return next((t for part in output.values() if (t := _tensor(part)) is not None), None)
    return None


def _compared(
    batch: ProofBatch, witness: Witness, name: str, old: Tensor, new: Tensor
) -> tuple[Tensor, Tensor] | None:
    """The parts of two outputs that must be equal, (N, ...) each; None for outputs of no known
    side."""
    for side in _sides(name):
        ids = witness.before[side], witness.after[side]
        turned = [
            _batch_first(value, tuple(of.shape)) for value, of in zip((old, new), ids, strict=True)
        ]
        if turned[0] is None or turned[1] is None:
            continue
        places = list(_places(batch, witness, side))
        if not places:
            return None
        a, b = zip(*places, strict=True)
        return tuple(
            value[tuple(torch.tensor(index).T)]  # type: ignore[index]
            for value, index in zip(turned, (a, b), strict=True)
        )  # type: ignore[return-value]
    return None


def _sides(name: str) -> tuple[int, ...]:
    """Source 0 and target 1, the likelier first."""
    return (0, 1) if half_of(name) == "encoder" or "src" in name else (1, 0)


def _batch_first(value: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    if value.dim() < 3 or 0 in shape:
        return None
    if tuple(value.shape[:2]) == shape:
        return value
    return value.transpose(0, 1) if tuple(value.shape[:2]) == shape[::-1] else None


def _places(
    batch: ProofBatch, witness: Witness, side: int
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """(row, place) before and after that must hold the same."""
    before, after = witness.before[side], witness.after[side]
    real = batch.model.real_source(before) if side == 0 else batch.model.real_inputs(before)
    if witness.what == "alone":
        inside = real[witness.row].nonzero()[:, 0].tolist()
        kept = inside if after.shape[1] == before.shape[1] else range(len(inside))
        yield from (((witness.row, p), (0, n)) for p, n in zip(inside, kept, strict=True))
        return
    count = len(before)
    same = (before == after).all(0) if before.shape == after.shape else None
    stop = before.shape[1]
    if witness.what == "future" and side == 1 and same is not None:
        stop = int(same.int().cumprod(0).sum())
    if witness.what == "prefix" and side == 1:
        stop = after.shape[1]
    shift = witness.shift if side == 1 else 0
    for row in range(count):
        other = count - 1 - row if witness.what == "order" else row
        for place in real[row].nonzero()[:, 0].tolist():
            if place < stop:
                yield (row, place), (other, place + shift)


# The smallest example --------------------------------------------------------------------------


def smallest(batch: ProofBatch, witness: Witness) -> str:
    """A pair of the failing batch, made as short as it still fails, in words."""
    try:
        with torch.no_grad():
            ways = {"future": _future, "prefix": _prefix, "pads": _pads, "alone": _alone}
            return ways[witness.what](batch, witness) if witness.what in ways else ""
    except (UserError, IndexError, RuntimeError):  # it no longer answers, or no longer fails
        return ""


def _alone(batch: ProofBatch, witness: Witness) -> str:
    src, tgt_in = witness.after
    alone, together = batch.ask(src, tgt_in), batch.logits[witness.row][None]
    real = batch.real[witness.row][None]
    if alone.shape == together.shape:
        by = batch.differ(alone, together, real)
    else:
        by = largest(batch.moved(alone, together[:, real[0]]))
    shown = _shown(batch, src, tgt_in)
    return f"{shown} alone and in row {witness.row} of the batch: {by:.2g} apart"


def _shown(batch: ProofBatch, src: Tensor, tgt_in: Tensor) -> str:
    target = f"tgt_in {tgt_in[0].tolist()}"
    return (
        f"src {src[0].tolist()}, {target}"
        if batch.model.has_source
        else f"ids {tgt_in[0].tolist()}"
    )


def _shrunk(
    batch: ProofBatch, ids: Ids, place: int, fails: Callable[[Tensor, Tensor, int], float]
) -> tuple[Tensor, Tensor, int]:
    """Ids (1, S), (1, T) and a place without what is not needed for failing."""
    src, tgt_in = ids
    budget = MOST_ASKED
    going = not batch.model.equal_lengths
    while going and budget > 0:
        going = False
        shorter: list[tuple[Tensor, Tensor, int]] = []
        if tgt_in.shape[1] > place + 1:
            shorter.append((src, tgt_in[:, : place + 1], place))
        half = place // 2
        shorter += [
            (src, torch.cat((tgt_in[:, :1], tgt_in[:, 1 + cut :]), 1), place - cut)
            for cut in dict.fromkeys((half, 1))
            if 0 < cut < place
        ]
        if int(torch.isin(src, batch.symbols).sum()) > 1:
            middle = (src.shape[1] - 1) // 2
            cuts = [cut for cut in dict.fromkeys((middle, 1)) if cut]
            shorter += [
                (src[:, cut:], tgt_in, place)
                for cut in cuts
                if bool(torch.isin(src[:, cut:], batch.symbols).any())
            ]
        for candidate in shorter:
            budget -= 1
            with contextlib.suppress(UserError):
                if fails(*candidate) > batch.tolerance:
                    src, tgt_in, place = candidate
                    going = True
                    break
    return src, tgt_in, place


def _future(batch: ProofBatch, witness: Witness) -> str:
    moved = batch.moved(batch.ask(*witness.after), batch.ask(*witness.before))
    row = int(moved.nan_to_num(1e9).amax(1).argmax()) if len(moved) > 1 else 0
    src, tgt_in = _trimmed(batch, *(ids[row][None] for ids in witness.before))
    changes = (witness.after[1][row] != tgt_in[0]).nonzero()[:, 0].tolist()

    def moves(src: Tensor, tgt_in: Tensor, place: int) -> float:
        other = tgt_in.clone()
        other[:, place] = _next(batch, int(tgt_in[0, place]))
        by = batch.moved(batch.ask(src, other), batch.ask(src, tgt_in))[0, :place]
        return largest(by[batch.model.real_inputs(tgt_in)[0, :place]])

    place = next((p for p in changes if moves(src, tgt_in, p) > batch.tolerance), None)
    if place is None:
        return ""
    src, tgt_in, place = _shrunk(batch, (src, tgt_in), place, moves)
    token = int(tgt_in[0, place])
    other = tgt_in.clone()
    other[:, place] = _next(batch, token)
    by = batch.moved(batch.ask(src, other), batch.ask(src, tgt_in))[0, :place]
    at = int(by.nan_to_num(1e9).argmax())
    return (
        f"{_shown(batch, src, tgt_in)}: token {place} from {token} to {_next(batch, token)}, and "
        f"output {at} moves by {float(by[at]):.2g}"
    )


def _trimmed(batch: ProofBatch, src: Tensor, tgt_in: Tensor) -> Ids:
    """A pair (1, S), (1, T) without its pads, where both may be of any length."""
    if batch.model.equal_lengths:
        return src, tgt_in
    src = src[:, batch.model.real_source(src)[0]] if batch.model.has_source else src
    return src, tgt_in[:, batch.model.real_inputs(tgt_in)[0]]


def _next(batch: ProofBatch, token: int) -> int:
    place = int((batch.symbols == token).int().argmax())
    return int(batch.symbols[(place + 1) % len(batch.symbols)])


def _prefix(batch: ProofBatch, witness: Witness) -> str:
    length = witness.after[1].shape[1]
    by = batch.moved(batch.ask(*witness.after), batch.ask(*witness.before)[:, :length])
    real = batch.model.real_inputs(witness.before[1])[:, :length]
    row = int(by.nan_to_num(1e9).masked_fill(~real, 0).amax(1).argmax())
    src, _ = _trimmed(batch, *(ids[row][None] for ids in witness.before))
    tgt_in = witness.before[1][row][None]

    def moves(src: Tensor, tgt_in: Tensor, place: int) -> float:
        short = batch.ask(src, tgt_in[:, :place])
        return largest(batch.moved(short, batch.ask(src, tgt_in)[:, :place]))

    if not moves(src, tgt_in, length) > batch.tolerance:
        return ""
    src, tgt_in, length = _shrunk(batch, (src, tgt_in), length, moves)
    return (
        f"{_shown(batch, src, tgt_in)}: its first {length} alone give logits "
        f"{moves(src, tgt_in, length):.2g} apart"
    )


def _pads(batch: ProofBatch, witness: Witness) -> str:
    extra = [witness.after[side].shape[1] - witness.before[side].shape[1] for side in (0, 1)]
    if witness.shift:
        return ""
    pads = (batch.model.source_pad, batch.model.pad_id)
    width = witness.before[1].shape[1]
    by = batch.moved(batch.ask(*witness.after)[:, :width], batch.ask(*witness.before))
    by = by.masked_fill(~batch.model.real_inputs(witness.before[1]), 0)
    row = int(by.nan_to_num(1e9).amax(1).argmax())
    src, tgt_in = _trimmed(batch, *(ids[row][None] for ids in witness.before))

    def moves(src: Tensor, tgt_in: Tensor, place: int) -> float:
        longer = [
            nn.functional.pad(ids, (0, n), value=pad)
            for ids, n, pad in zip((src, tgt_in), extra, pads, strict=True)
        ]
        return largest(
            batch.moved(batch.ask(*longer)[:, : tgt_in.shape[1]], batch.ask(src, tgt_in))
        )

    if not moves(src, tgt_in, tgt_in.shape[1] - 1) > batch.tolerance:
        return ""
    src, tgt_in, _ = _shrunk(batch, (src, tgt_in), tgt_in.shape[1] - 1, moves)
    names = ("src", "tgt_in" if batch.model.has_source else "them")
    behind = [f"{n} pads behind {name}" for n, name in zip(extra, names, strict=True) if n]
    return (
        f"{_shown(batch, src, tgt_in)}: {' and '.join(behind)} move an output by "
        f"{moves(src, tgt_in, 0):.2g}"
    )
