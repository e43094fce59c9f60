"""Where a failure first shows: the module, and its heads; and the smallest example of it."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from toytrans.errors import UserError
from toytrans.insight.proofs.batch import Examples, apart, largest
from toytrans.insight.proofs.report import Witness
from toytrans.insight.proofs.subject import ATTENTION_END

HEADS = ("num_heads", "n_heads", "num_attention_heads", "nhead", "heads", "n_head")
MOST_ASKED = 60
"""Calls that are spent on making an example smaller."""

Ids = tuple[Tensor, Tensor]


class Seen(NamedTuple):
    """A module's output or input, in the order in which modules end."""

    name: str
    value: Tensor
    context: Tensor | None


def first_module(x: Examples, witness: Witness) -> str:
    """Which module's output first differs where it must not, in words; "" where none is known."""
    module = x.subject.module
    if module is None:
        return ""
    try:
        with torch.enable_grad():  # with it torch takes no shortcut
            before, after = (_outputs(x, module, ids) for ids in (witness.before, witness.after))
    except Exception:  # a foreign model under hooks
        return ""
    if [seen.name for seen in before] != [seen.name for seen in after]:
        return ""
    for old, new in zip(before, after, strict=True):
        pair = _compared(x, witness, old.name, old.value, new.value)
        if pair is None or pair[0].shape != pair[1].shape:
            continue
        by = largest(apart(pair[0], pair[1]).nan_to_num(1.0))
        if by > 1e-7 * max(largest(pair[0].nan_to_num()), 1e-30):
            return _in_words(x, module, witness, old, new)
    return ""


def _in_words(x: Examples, module: nn.Module, witness: Witness, old: Seen, new: Seen) -> str:
    name = re.sub(r"^model\.(?=.)", "", old.name)
    if not name:
        return f"in {type(module).__name__}.forward itself, outside its modules"
    layer = re.search(r"\.(\d+)\.", f".{name}.")
    words = f"in {name}" + (f" (layer {int(layer[1]) + 1})" if layer else "")
    if old.context is None or new.context is None:
        return words
    parent = module.get_submodule(old.name.rpartition(".")[0])
    count = next((int(getattr(parent, a)) for a in HEADS if hasattr(parent, a)), 0)
    pair = _compared(x, witness, old.name, old.context, new.context)
    if count < 2 or pair is None or pair[0].shape != pair[1].shape or pair[0].shape[-1] % count:
        return words
    by = [largest(part.nan_to_num(1.0)) for part in apart(*pair).chunk(count, -1)]
    heads = [head for head, value in enumerate(by) if value > 1e-7 * max(max(by), 1e-30)]
    if not heads:
        return words
    listed = "all heads" if len(heads) == count else f"head {', '.join(map(str, heads))}"
    return f"{words}, {listed}"


def _outputs(x: Examples, module: nn.Module, ids: Ids) -> list[Seen]:
    """What every module gives to a batch, in the order in which they end."""
    seen: list[Seen] = []

    def hook(name: str, is_end: bool) -> Callable[..., None]:
        def keep(_: nn.Module, given: Any, output: Any) -> None:
            value = _tensor(output)
            if value is not None:
                context = given[0].detach().clone() if is_end and given else None
                seen.append(Seen(name, value.detach().clone(), context))

        return keep

    with contextlib.ExitStack() as stack:
        for name, part in module.named_modules():
            handle = part.register_forward_hook(hook(name, bool(ATTENTION_END.search(name))))
            stack.callback(handle.remove)
        x.subject.call(ids[0].clone(), ids[1].clone())
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
    x: Examples, witness: Witness, name: str, old: Tensor, new: Tensor
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
        places = list(_places(x, witness, side))
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
    encoder, decoder = name.find("enc"), name.find("dec")
    is_source = encoder >= 0 and (decoder < 0 or encoder < decoder)
    return (0, 1) if is_source or "src" in name else (1, 0)


def _batch_first(value: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    if value.dim() < 3 or 0 in shape:
        return None
    if tuple(value.shape[:2]) == shape:
        return value
    return value.transpose(0, 1) if tuple(value.shape[:2]) == shape[::-1] else None


def _places(
    x: Examples, witness: Witness, side: int
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """(row, place) before and after that must hold the same."""
    before, after = witness.before[side], witness.after[side]
    real = x.subject.real_source(before) if side == 0 else x.subject.real_inputs(before)
    if witness.what == "alone":
        inside = real[witness.row].nonzero()[:, 0].tolist()
        yield from (((witness.row, p), (0, n)) for n, p in enumerate(inside[: after.shape[1]]))
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


def smallest(x: Examples, witness: Witness) -> str:
    """A pair of the failing batch, made as short as it still fails, in words."""
    try:
        with torch.no_grad():
            return {"future": _future, "prefix": _prefix, "pads": _pads}.get(
                witness.what, _nothing
            )(x, witness)
    except (UserError, IndexError, RuntimeError):  # it no longer answers, or no longer fails
        return ""


def _nothing(x: Examples, witness: Witness) -> str:
    if witness.what != "alone":
        return ""
    src, tgt_in = witness.after
    found = largest(x.moved(x.ask(src, tgt_in), x.logits[witness.row][x.real[witness.row]][None]))
    return (
        f"{_shown(x, src, tgt_in)} alone and in row {witness.row} of the batch: {found:.2g} apart"
    )


def _shown(x: Examples, src: Tensor, tgt_in: Tensor) -> str:
    target = f"tgt_in {tgt_in[0].tolist()}"
    return (
        f"src {src[0].tolist()}, {target}" if x.subject.has_source else f"ids {tgt_in[0].tolist()}"
    )


def _shrunk(
    x: Examples, ids: Ids, place: int, fails: Callable[[Tensor, Tensor, int], float]
) -> tuple[Tensor, Tensor, int]:
    """Ids (1, S), (1, T) and a place without what is not needed for failing."""
    src, tgt_in = ids
    budget = MOST_ASKED
    going = not x.subject.equal_lengths
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
        if int(torch.isin(src, x.symbols).sum()) > 1:
            middle = (src.shape[1] - 1) // 2
            cuts = [cut for cut in dict.fromkeys((middle, 1)) if cut]
            shorter += [
                (src[:, cut:], tgt_in, place)
                for cut in cuts
                if bool(torch.isin(src[:, cut:], x.symbols).any())
            ]
        for candidate in shorter:
            budget -= 1
            with contextlib.suppress(UserError):
                if fails(*candidate) > x.tolerance:
                    src, tgt_in, place = candidate
                    going = True
                    break
    return src, tgt_in, place


def _future(x: Examples, witness: Witness) -> str:
    moved = x.moved(x.ask(*witness.after), x.ask(*witness.before))
    row = int(moved.nan_to_num(1e9).amax(1).argmax()) if len(moved) > 1 else 0
    src, tgt_in = _trimmed(x, *(ids[row][None] for ids in witness.before))
    changes = (witness.after[1][row] != tgt_in[0]).nonzero()[:, 0].tolist()

    def moves(src: Tensor, tgt_in: Tensor, place: int) -> float:
        other = tgt_in.clone()
        other[:, place] = _next(x, int(tgt_in[0, place]))
        by = x.moved(x.ask(src, other), x.ask(src, tgt_in))[0, :place]
        return largest(by[x.subject.real_inputs(tgt_in)[0, :place]])

    place = next((p for p in changes if moves(src, tgt_in, p) > x.tolerance), None)
    if place is None:
        return ""
    src, tgt_in, place = _shrunk(x, (src, tgt_in), place, moves)
    token = int(tgt_in[0, place])
    other = tgt_in.clone()
    other[:, place] = _next(x, token)
    by = x.moved(x.ask(src, other), x.ask(src, tgt_in))[0, :place]
    at = int(by.nan_to_num(1e9).argmax())
    return (
        f"{_shown(x, src, tgt_in)}: token {place} from {token} to {_next(x, token)}, and output "
        f"{at} moves by {float(by[at]):.2g}"
    )


def _trimmed(x: Examples, src: Tensor, tgt_in: Tensor) -> Ids:
    """A pair (1, S), (1, T) without its pads, where both may be of any length."""
    if x.subject.equal_lengths:
        return src, tgt_in
    src = src[:, x.subject.real_source(src)[0]] if x.subject.has_source else src
    return src, tgt_in[:, x.subject.real_inputs(tgt_in)[0]]


def _next(x: Examples, token: int) -> int:
    place = int((x.symbols == token).int().argmax())
    return int(x.symbols[(place + 1) % len(x.symbols)])


def _prefix(x: Examples, witness: Witness) -> str:
    length = witness.after[1].shape[1]
    by = x.moved(x.ask(*witness.after), x.ask(*witness.before)[:, :length])
    row = int(by.nan_to_num(1e9).masked_fill(~x.real[:, :length], 0).amax(1).argmax())
    src, _ = _trimmed(x, *(ids[row][None] for ids in witness.before))
    tgt_in = witness.before[1][row][None]

    def moves(src: Tensor, tgt_in: Tensor, place: int) -> float:
        short = x.ask(src, tgt_in[:, :place])
        return largest(x.moved(short, x.ask(src, tgt_in)[:, :place]))

    if not moves(src, tgt_in, length) > x.tolerance:
        return ""
    src, tgt_in, length = _shrunk(x, (src, tgt_in), length, moves)
    return (
        f"{_shown(x, src, tgt_in)}: its first {length} alone give logits "
        f"{moves(src, tgt_in, length):.2g} apart"
    )


def _pads(x: Examples, witness: Witness) -> str:
    extra = [witness.after[side].shape[1] - witness.before[side].shape[1] for side in (0, 1)]
    if witness.shift:
        return ""
    pads = (x.subject.source_pad, x.subject.pad_id)
    width = witness.before[1].shape[1]
    by = x.moved(x.ask(*witness.after)[:, :width], x.logits).masked_fill(~x.real, 0)
    row = int(by.nan_to_num(1e9).amax(1).argmax())
    src, tgt_in = _trimmed(x, *(ids[row][None] for ids in witness.before))

    def moves(src: Tensor, tgt_in: Tensor, place: int) -> float:
        longer = [
            nn.functional.pad(ids, (0, n), value=pad)
            for ids, n, pad in zip((src, tgt_in), extra, pads, strict=True)
        ]
        return largest(x.moved(x.ask(*longer)[:, : tgt_in.shape[1]], x.ask(src, tgt_in)))

    if not moves(src, tgt_in, tgt_in.shape[1] - 1) > x.tolerance:
        return ""
    src, tgt_in, _ = _shrunk(x, (src, tgt_in), tgt_in.shape[1] - 1, moves)
    behind = [f"{n} pads behind {name}" for n, name in zip(extra, ("src", "tgt_in"), strict=True)
              if n]  # fmt: skip
    return (
        f"{_shown(x, src, tgt_in)}: {' and '.join(behind)} move an output by "
        f"{moves(src, tgt_in, 0):.2g}"
    )
