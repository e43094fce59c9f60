"""What a model's embeddings hold: changed on the way, or in the place of pads alone."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.checks.batch import Batch
from toytrans.checks.result import CannotJudge, NotAsked

EmbeddingEdit = Callable[[str, Tensor], Tensor]
"""side ("src" or "tgt"), embedded ids (B, L, D) -> what goes on in their place."""


def embeddings_of(batch: Batch) -> tuple[nn.Module, ...]:
    """Those of source and target, or all that torch's class tells. Raises NotAsked where none are
    known."""
    module = batch.model.module
    parts = () if module is None else module.modules()
    tables = tuple(part for part in parts if isinstance(part, nn.Embedding))
    if not (batch.model.embeddings or tables):
        raise NotAsked(embedding="the embedding layer")
    return batch.model.embeddings or tables


@contextlib.contextmanager
def embeddings_changed(
    batch: Batch, edit: EmbeddingEdit, embeddings: Iterable[nn.Module]
) -> Iterator[set[str]]:
    """What the embeddings make of the batch's source and target goes through `edit`; what they
    make of other ids, those of a loop say, stays as it is. Gives the sides that were met.

    Raises CannotJudge where there was none.
    """
    met: set[str] = set()
    why = ["the embedding layer given is not what the model embeds its ids with"]

    def hook(_: nn.Module, given: Any, named: Any, output: Any) -> Any:
        ids = _first_tensor(given, named)
        if ids is None or not isinstance(output, Tensor):
            return output
        for side, wanted in (("src", batch.src), ("tgt", batch.tgt_in)):
            for turned in (False, True):
                if not torch.equal(ids, wanted.T if turned else wanted) or not wanted.numel():
                    continue
                if output.shape[:2] != ids.shape:
                    why[:] = [
                        f"the embedding makes {tuple(output.shape)} of ids {tuple(ids.shape)}; "
                        "needs one that is batch first"
                    ]
                    return output
                met.add(side)
                changed = edit(side, output.transpose(0, 1) if turned else output)
                return changed.transpose(0, 1) if turned else changed
        why[:] = [
            f"the embedding is asked for ids {tuple(ids.shape)}, not for the source or the target "
            "as they are"
        ]
        return output

    with contextlib.ExitStack() as stack:
        for module in dict.fromkeys(embeddings):
            stack.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        yield met
    if not met:
        raise CannotJudge(why[0])


def _first_tensor(given: Any, named: Any) -> Tensor | None:
    """The ids that a module is called with, by position or by name."""
    return next((v for v in (*given, *named.values()) if isinstance(v, Tensor)), None)


@contextlib.contextmanager
def noise_in_pads(batch: Batch) -> Iterator[None]:
    """What the embeddings make of pads is noise meanwhile, on both sides. Their weights, which may
    be the output layer's as well, stay. Raises CannotJudge where a side is not met."""
    given = embeddings_of(batch)
    tables = _tables(batch, given)
    wanted = {"src", "tgt"} if batch.facts.has_source else {"tgt"}
    if set().union(*tables.values()) >= wanted and not _pads_stand_for_more(batch):
        with _pad_rows_changed(batch, tables):
            yield
        return
    pads = {"src": ~batch.real_source, "tgt": ~batch.real}

    def edit(side: str, embedded: Tensor) -> Tensor:
        return torch.where(pads[side][..., None], _loud(batch, embedded), embedded)

    with embeddings_changed(batch, edit, given) as met:
        yield
    if met < wanted:
        side = "source" if "tgt" in met else "target"
        raise CannotJudge(f"the {side} is embedded by another module, or at another width")


def _loud(batch: Batch, like: Tensor) -> Tensor:
    """Noise a hundred times as large as some embeddings."""
    return batch.noise(like) * 100 * like.abs().amax()


def _tables(batch: Batch, given: Iterable[nn.Module]) -> dict[nn.Embedding, set[str]]:
    """The tables in the model and in what was given, and the sides that each embeds: those whose
    symbols are what it is asked for, at any width. One of characters is asked for others."""
    modules = [part for whole in (batch.model.module, *given) if whole for part in whole.modules()]
    asked: dict[nn.Embedding, list[list[int]]] = {
        part: [] for part in modules if isinstance(part, nn.Embedding)
    }

    def note(table: nn.Embedding, given: Any, named: Any) -> None:
        if (ids := _first_tensor(given, named)) is not None:  # positions may take a shape
            asked[table].append(ids.flatten().tolist())

    with contextlib.ExitStack() as stack:
        for table in asked:
            stack.enter_context(table.register_forward_pre_hook(note, with_kwargs=True))
        batch.ask(batch.src, batch.tgt_in)

    def real(ids: Iterable[int]) -> list[int]:
        return sorted(i for i in ids if i not in (batch.facts.source_pad, batch.facts.pad_id))

    own = {
        "src": real(batch.src[batch.real_source].tolist()),
        "tgt": real(batch.tgt_in[batch.real].tolist()),
    }
    both = sorted(own["src"] + own["tgt"])
    found = {}
    for table, calls in asked.items():
        wholes = [real(ids) for ids in (*calls, chain(*calls))]  # at once, or step by step
        found[table] = {
            side for side in own if own[side] and (own[side] in wholes or both in wholes)
        }
    return found


def _pads_stand_for_more(batch: Batch) -> bool:
    """Whether a pad's id stands at a real place too, as a start or an end."""
    pads = torch.tensor([batch.facts.pad_id, batch.facts.source_pad])
    real = torch.cat((batch.src[batch.real_source], batch.tgt_in[batch.real]))
    return bool(torch.isin(real, pads).any())


@contextlib.contextmanager
def _pad_rows_changed(batch: Batch, tables: dict[nn.Embedding, set[str]]) -> Iterator[None]:
    """What tables make of the ids of pads is noise meanwhile."""
    pads = {"src": batch.facts.source_pad, "tgt": batch.facts.pad_id}

    def hook(_: nn.Module, given: Any, named: Any, output: Tensor, of: Tensor) -> Tensor:
        ids = _first_tensor(given, named)
        assert ids is not None  # with them the table was found
        return torch.where(torch.isin(ids, of)[..., None], _loud(batch, output), output)

    with contextlib.ExitStack() as stack:
        for table, sides in tables.items():
            if sides:
                of = torch.tensor([pads[side] for side in sorted(sides)])
                changed = partial(hook, of=of)
                stack.enter_context(table.register_forward_hook(changed, with_kwargs=True))
        yield
