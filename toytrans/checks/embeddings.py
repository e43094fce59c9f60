"""What a model's embeddings hold: changed on the way, or in the place of pads alone."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.checks.batch import Batch
from toytrans.checks.result import CannotJudge, NotAsked

NOT_USED = "the embedding layer given is not what the model embeds its ids with"


def embeddings_of(batch: Batch) -> tuple[nn.Module, ...]:
    """Those of source and target, or all that torch's class tells. Raises NotAsked where none are
    known."""
    if not (known := batch.model.embeddings or _tables(batch)):
        raise NotAsked(embedding="the embedding layer")
    return tuple(dict.fromkeys(known))


def _tables(batch: Batch) -> tuple[nn.Module, ...]:
    parts = () if batch.model.module is None else batch.model.module.modules()
    return tuple(part for part in parts if isinstance(part, nn.Embedding))


Hook = Callable[[nn.Module, Tensor, Any], Any]
"""Embedding, ids that it is asked for, what it makes of them -> what goes on in its place."""


@contextlib.contextmanager
def _hooked(modules: Iterable[nn.Module], hook: Hook) -> Iterator[None]:
    """Embeddings whose ids, given by position or by name, go through a hook."""

    def hook_of_torch(module: nn.Module, given: Any, named: Any, output: Any) -> Any:
        ids = next((v for v in (*given, *named.values()) if isinstance(v, Tensor)), None)
        return output if ids is None else hook(module, ids, output)

    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_hook(hook_of_torch, with_kwargs=True))
        yield


@contextlib.contextmanager
def embeddings_changed(batch: Batch, edit: Callable[[str, Tensor], Tensor]) -> Iterator[set[str]]:
    """What the embeddings make of the batch's source and target, (B, L, D), goes through `edit`,
    which is told the side, "src" or "tgt"; what they make of other ids, those of a loop say, stays
    as it is. Gives the sides that were met.

    Raises CannotJudge where there was none.
    """
    met: set[str] = set()
    why = [NOT_USED]

    def hook(_: nn.Module, ids: Tensor, output: Any) -> Any:
        for side, wanted in (("src", batch.src), ("tgt", batch.tgt_in)):
            turned = not torch.equal(ids, wanted)
            if not wanted.numel() or (turned and not torch.equal(ids, wanted.T)):
                continue
            if output.shape[:2] != ids.shape:
                why[:] = ["the embedding's output is not batch first; needs one that is"]
                return output
            met.add(side)
            changed = edit(side, output.transpose(0, 1) if turned else output)
            return changed.transpose(0, 1) if turned else changed
        why[:] = [
            f"the embedding is asked for ids {tuple(ids.shape)}, not for the source or the target "
            "as they are"
        ]
        return output

    with _hooked(embeddings_of(batch), hook):
        yield met
    if not met:
        raise CannotJudge(why[0])


@contextlib.contextmanager
def noise_in_pads(batch: Batch) -> Iterator[None]:
    """What the embeddings make of pads is noise meanwhile, on both sides, a hundred times as large.
    Their weights, which may be the output layer's as well, stay. Raises CannotJudge where a side is
    not met."""
    facts, sides = batch.facts, _sides(batch)
    wanted = {"src", "tgt"} if facts.has_source else {"tgt"}
    pads = {"src": facts.source_pad, "tgt": facts.pad_id}
    tables = [part for part in sides if isinstance(part, nn.Embedding)]
    if set().union(*(sides[part] for part in tables)) >= wanted:
        sides = {part: sides[part] for part in tables}  # which may be in a module that was given
    met = set().union(*sides.values())
    if not met:
        raise CannotJudge(NOT_USED)
    if met < wanted:
        side = "source" if "tgt" in met else "target"
        raise CannotJudge(f"the {side} is embedded by another module, or at another width")
    real = torch.cat((batch.src[batch.real_source], batch.tgt_in[batch.real]))
    is_ambiguous = bool(torch.isin(real, torch.tensor([*pads.values()])).any())

    def hook(module: nn.Module, ids: Tensor, output: Tensor) -> Tensor:
        of = [pads[side] for side in sides[module]]
        closed, is_known = torch.isin(ids, torch.tensor(of)), not is_ambiguous
        for side, real in ((batch.src, batch.real_source), (batch.tgt_in, batch.real)):
            for laid_out, inside in ((side, real), (side.T, real.T)):
                if torch.equal(ids, laid_out):
                    closed, is_known = closed & ~inside, True
        if not is_known:
            raise CannotJudge("a pad's id, as a start or an end, stands at a real place too")
        noise = batch.noise(output) * 100 * output.abs().amax()
        return torch.where(closed[..., None], noise, output)

    with _hooked([module for module in sides if sides[module]], hook):
        yield


def _sides(batch: Batch) -> dict[nn.Module, set[str]]:
    """The embeddings, and the sides that each embeds: those whose symbols are what it is asked for,
    at any width. One of characters is asked for others."""
    known = (*embeddings_of(batch), *_tables(batch))
    asked: dict[nn.Module, list[list[int]]] = {part: [] for part in known}

    def note(module: nn.Module, ids: Tensor, output: Any) -> Any:
        if output.shape[:-1] == ids.shape:  # positions may take the ids for their shape
            asked[module].append(ids.flatten().tolist())
        return output

    with _hooked(asked, note):
        batch.ask(batch.src, batch.tgt_in)

    def real(ids: Iterable[int]) -> list[int]:
        return sorted(i for i in ids if i not in (batch.facts.source_pad, batch.facts.pad_id))

    own = {
        "src": real(batch.src[batch.real_source].tolist()),
        "tgt": real(batch.tgt_in[batch.real].tolist()),
    }
    both = sorted(own["src"] + own["tgt"])
    found = {}
    for module, calls in asked.items():
        wholes = [real(ids) for ids in (*calls, chain(*calls))]  # at once, or step by step
        found[module] = {
            side for side in own if own[side] and (own[side] in wholes or both in wholes)
        }
    return found
