"""Proofs that look inside: at embeddings, gradients, attention and layers."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, get_args

import torch
from torch import Tensor, nn

from toytrans.config.names import PadMask
from toytrans.insight.proofs.answers import NoAnswer, answer, calm, largest, worst
from toytrans.insight.proofs.batch import SHORT, ProofBatch
from toytrans.insight.proofs.future import all_replaced
from toytrans.insight.proofs.report import CannotJudge, NotApplicable, NotAsked, Outcome
from toytrans.model.transformer import Transformer

Change = Callable[[str, Tensor], Tensor]
"""side ("src" or "tgt"), embedded ids (B, L, D) -> what goes on in their place."""

LONGEST_GRADIENT = 66
"""Places of the longest batch whose gradients are computed."""

MOST_GRADIENTS = 4


@contextlib.contextmanager
def embeddings_changed(
    batch: ProofBatch, change: Change, embeddings: Iterable[nn.Module]
) -> Iterator[set[str]]:
    """What the embeddings make of the batch's source and target goes through `change`; what they
    make of other ids, those of a loop say, stays as it is. Gives the sides that were met.

    Raises CannotJudge where there was none.
    """
    met: set[str] = set()
    why = ["the embedding layer given is not what the model embeds its ids with"]

    def hook(module: nn.Module, given: Any, named: Any, output: Any) -> Any:
        """What goes on in place of an embedding's output."""
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
                changed = change(side, output.transpose(0, 1) if turned else output)
                return changed.transpose(0, 1) if turned else changed
        why[:] = [
            f"the embedding is asked for ids {tuple(ids.shape)}, not for the source or the target "
            "as they are"
        ]
        return output

    hooks = [
        module.register_forward_hook(hook, with_kwargs=True) for module in dict.fromkeys(embeddings)
    ]
    try:
        yield met
    finally:
        for handle in hooks:
            handle.remove()
    if not met:
        raise CannotJudge(why[0])


def _first_tensor(given: Any, named: Any) -> Tensor | None:
    """The ids that a module is called with, by position or by name."""
    return next((v for v in (*given, *named.values()) if isinstance(v, Tensor)), None)


def given_embeddings(batch: ProofBatch) -> tuple[nn.Module, ...]:
    """Those of source and target. Raises NotAsked where they are not known."""
    if batch.model.embeddings is None:
        raise NotAsked(embedding="the embedding layer")
    return batch.model.embeddings


def pads_hold_anything(batch: ProofBatch) -> Outcome:
    """(c) Whatever stands in the embedding of a pad, real outputs stay as they are."""
    pads = {"src": ~batch.real_source, "tgt": ~batch.real}

    def change(side: str, embedded: Tensor) -> Tensor:
        noise = batch.noise(embedded) * 100 * embedded.abs().amax()
        return torch.where(pads[side][..., None], noise, embedded)

    given = given_embeddings(batch)
    tables = _tables(batch, given)
    wanted = {"src", "tgt"} if batch.model.has_source else {"tgt"}
    if set().union(*tables.values()) >= wanted and not _pads_stand_for_more(batch):
        with _pad_rows_changed(batch, tables):
            answer = batch.ask(batch.src, batch.tgt_in)
    else:
        with embeddings_changed(batch, change, given) as met:
            answer = batch.ask(batch.src, batch.tgt_in)
        if met < wanted:
            side = "source" if "tgt" in met else "target"
            raise CannotJudge(f"the {side} is embedded by another module, or at another width")
    count = sum(int(pads[side].sum()) for side in wanted)
    return Outcome(
        batch.differ(answer, batch.logits, batch.real),
        batch.tolerance,
        f"noise a hundred times as large in the place of {count} pads moves no real output",
        "real outputs change with what the embedding of a pad holds: pads are seen as keys; are "
        "the pad masks passed to encoder, decoder and cross-attention, each the right way round?",
    )


def _tables(batch: ProofBatch, given: Iterable[nn.Module]) -> dict[nn.Embedding, set[str]]:
    """The tables in the model and in what was given, and the sides that each embeds: those whose
    symbols are what it is asked for, at any width. One of characters is asked for others."""
    modules = [part for whole in (batch.model.module, *given) if whole for part in whole.modules()]
    asked: dict[nn.Embedding, list[list[int]]] = {
        part: [] for part in modules if isinstance(part, nn.Embedding)
    }

    def asked_by(src: Tensor, tgt_in: Tensor) -> dict[nn.Embedding, list[list[int]]]:
        for seen in asked.values():
            seen.clear()
        batch.ask(src, tgt_in)
        return {table: list(seen) for table, seen in asked.items()}

    with contextlib.ExitStack() as stack:
        for table, seen in asked.items():

            def note(_: nn.Module, given: Any, named: Any, seen: list[list[int]] = seen) -> None:
                if (ids := _first_tensor(given, named)) is not None:  # positions may take a shape
                    seen.append(ids.flatten().tolist())

            stack.enter_context(table.register_forward_pre_hook(note, with_kwargs=True))
        before = asked_by(batch.src, batch.tgt_in)
        other = [
            torch.where(torch.isin(ids, batch.symbols), batch.other(ids), ids)
            for ids in (batch.src, batch.tgt_in)
        ]
        by = {"src": asked_by(other[0], batch.tgt_in), "tgt": asked_by(batch.src, other[1])}
    pads = (batch.model.source_pad, batch.model.pad_id)

    def real(ids: Iterable[int]) -> list[int]:
        return sorted(i for i in ids if i not in pads)

    src, tgt = batch.src[batch.real_source].tolist(), batch.tgt_in[batch.real].tolist()
    own = {"src": real(src), "tgt": real(tgt)}

    def embeds(table: nn.Embedding, side: str) -> bool:
        calls = before[table]
        if by[side][table] == calls:
            return False
        wholes = [real(ids) for ids in (*calls, chain(*calls))]  # at once, or step by step
        return own[side] in wholes or real(src + tgt) in wholes

    return {table: {side for side in by if embeds(table, side)} for table in before}


def _pads_stand_for_more(batch: ProofBatch) -> bool:
    """Whether a pad's id stands at a real place too, as a start or an end."""
    pads = torch.tensor([batch.model.pad_id, batch.model.source_pad])
    real = torch.cat((batch.src[batch.real_source], batch.tgt_in[batch.real]))
    return bool(torch.isin(real, pads).any())


@contextlib.contextmanager
def _pad_rows_changed(batch: ProofBatch, tables: dict[nn.Embedding, set[str]]) -> Iterator[None]:
    """What tables make of pads is noise meanwhile. Their weights, which may be the output layer's
    as well, stay."""
    pads = {"src": batch.model.source_pad, "tgt": batch.model.pad_id}

    def hook(_: nn.Module, given: Any, named: Any, output: Tensor, of: Tensor) -> Tensor:
        ids = _first_tensor(given, named)
        assert ids is not None  # with them the table was found
        noise = batch.noise(output) * 100 * output.abs().amax()
        return torch.where(torch.isin(ids, of)[..., None], noise, output)

    with contextlib.ExitStack() as stack:
        for table, sides in tables.items():
            if sides:
                of = torch.tensor([pads[side] for side in sorted(sides)])
                stack.enter_context(
                    table.register_forward_hook(partial(hook, of=of), with_kwargs=True)
                )
        yield


def sees_nothing_closed(batch: ProofBatch) -> Outcome:
    """(e) No real output depends on pads or on the future: by replacing them, and where the
    embedding is at hand by the gradient as well."""
    finite = all_replaced(batch) if batch.model.is_causal else None
    if finite is not None and not finite.passed:
        return finite
    embeddings = _embeddings(batch)
    if embeddings and _is_worth_gradients(batch):
        known = batch.model.embeddings is not None
        # a model made to run without gradients may refuse them, or overwrite what they need
        refusals = (CannotJudge,) if known else (CannotJudge, NoAnswer, RuntimeError)
        with contextlib.suppress(*refusals), calm(batch.variant):
            return _gradients(batch, embeddings)
    if finite is None:
        raise CannotJudge("needs the embedding layer (embedding=...), for its gradients")
    return finite._replace(
        evidence=f"{finite.evidence} (by finite change; source pads and exact gradients need the "
        "embedding)"
    )


def _embeddings(batch: ProofBatch) -> tuple[nn.Module, ...]:
    """The embeddings that are known, or else all that torch's class tells."""
    if batch.model.embeddings is not None:
        return batch.model.embeddings
    module = batch.model.module
    parts = () if module is None else module.modules()
    return tuple(part for part in parts if isinstance(part, nn.Embedding))


def _is_worth_gradients(batch: ProofBatch) -> bool:
    """Of longer batches those in eval mode and fp64, and none beyond some length."""
    if batch.setting.length <= SHORT:
        return True
    exact = batch.dtype == torch.float64 and not batch.variant.training
    return exact and batch.tgt_in.shape[1] <= LONGEST_GRADIENT


def _gradients(batch: ProofBatch, embeddings: tuple[nn.Module, ...]) -> Outcome:
    """The gradient of a real output with respect to pads and future tokens is zero."""
    leaves: dict[str, list[Tensor]] = {}

    def change(side: str, embedded: Tensor) -> Tensor:
        leaf = embedded.detach().requires_grad_()
        leaves.setdefault(side, []).append(leaf)
        return leaf.clone()  # which a model may change in place

    with torch.enable_grad(), embeddings_changed(batch, change, embeddings):
        logits = answer(batch.model, batch.src.clone(), batch.tgt_in.clone())
    if not logits.requires_grad:
        raise CannotJudge("needs gradients, and the model answers without (torch.no_grad?)")
    counts = batch.tame(logits.detach()).isfinite() | logits.detach().isnan()
    weighed = (
        torch.where(counts & batch.kept, logits * batch.noise(logits), 0.0).sum(-1) * batch.real
    )
    pads = "target pads" if batch.model.has_source else "pads"
    by = {"source pads": 0.0, pads: 0.0, "the future": 0.0}
    size, detached = 0.0, ""
    if "src" in leaves:
        gradient = _gradient(weighed.sum(), leaves["src"])
        by["source pads"] = largest(gradient[~batch.real_source])
        size = largest(gradient[batch.real_source].nan_to_num())
        detached = "" if size else "; none reaches the source: is it detached on purpose?"
    width = logits.shape[1]
    step = max(1, width // MOST_GRADIENTS) if width > 2 * MOST_GRADIENTS else 1
    for place in range(0, width, step) if "tgt" in leaves else ():
        gradient = _gradient(weighed[:, place].sum(), leaves["tgt"])
        later = torch.arange(width) > place if batch.model.is_causal else torch.zeros(width).bool()
        here = batch.real[:, place]
        closed_pads = gradient[here][(~batch.real & ~later)[here]]
        size = max(size, largest(gradient.nan_to_num()))
        by[pads] = worst((by[pads], largest(closed_pads)))
        by["the future"] = worst((by["the future"], largest(gradient[:, later])))
    if math.isnan(worst(by.values())) and _weights_have_gradients(batch, weighed.sum()):
        raise CannotJudge("gradients of embeddings are NaN, and those of the weights are not")
    least = size * batch.tolerance / batch.size
    reached = [name for name, size in by.items() if not size <= least]
    exactly = "exactly zero" if worst(by.values()) == 0 else "zero but for rounding"
    sides = [name for name in by if not (name == "source pads" and "src" not in leaves)]
    return Outcome(
        worst(by.values()),
        least if worst(by.values()) else 0.0,
        f"replaced at once, nothing moves; gradients {exactly} towards {', '.join(sides)}"
        f"{detached}",
        f"real outputs depend on {' and '.join(reached)}: attention weights there are not zero; "
        "is the mask added before softmax, in every layer, the right way round?",
        by_gradients=True,
    )


def _weights_have_gradients(batch: ProofBatch, value: Tensor) -> bool:
    """Whether the gradients of all weights are finite: then training meets no NaN."""
    module = batch.model.module
    if module is None:
        return False
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    gradients = torch.autograd.grad(value, weights, retain_graph=True, allow_unused=True)
    return all(bool(part.isfinite().all()) for part in gradients if part is not None)


def _gradient(value: Tensor, leaves: list[Tensor]) -> Tensor:
    """Of a value with respect to leaves (B, L, ...), the largest of each place: (B, L)."""
    gradients = torch.autograd.grad(value, leaves, retain_graph=True, allow_unused=True)
    parts = [
        torch.zeros_like(leaf) if g is None else g
        for g, leaf in zip(gradients, leaves, strict=True)
    ]
    return torch.stack([part.abs().flatten(2).amax(2) for part in parts]).amax(0)


def pad_rows_do_no_harm(batch: ProofBatch) -> Outcome:
    """(g) Closing pads as keys only = as keys and queries: for the loss and every gradient."""
    model = needs_ours(batch, "the gradient of every weight under either mask")
    assert batch.tgt_out is not None
    losses, gradients, masks = [], [], []
    before = model.masks.pad_mask
    for way in get_args(PadMask):
        model.masks.pad_mask = way
        masks.append(model.masks.all(batch.src, batch.tgt_in).encoder_self)
        model.zero_grad()
        loss = batch.loss(model(batch.src, batch.tgt_in), batch.tgt_out)
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    model.masks.pad_mask = before
    model.zero_grad()
    if torch.equal(*torch.broadcast_tensors(*masks)):
        raise NotApplicable("this model closes no pads, so both masks are one")
    apart = worst(largest(a - b) for a, b in zip(*gradients, strict=True))
    numbers = sum(gradient.numel() for gradient in gradients[0])
    by_loss = abs(losses[0] - losses[1])
    return Outcome(
        worst((by_loss, apart)),
        batch.loss_tolerance(losses[0]),
        f"loss {losses[0]:.6f} under both masks, apart by {by_loss:.1e}; {numbers:,} gradients "
        f"apart by at most {apart:.1e}: pad rows do no harm",
        f"loss apart by {by_loss:.1e}, gradients by {apart:.1e}: something reads the rows of pads; "
        "does the loss ignore pad labels, and are pads closed as keys?",
    )


def needs_ours(batch: ProofBatch, what: str) -> Transformer:
    if batch.model.ours is None:
        raise NotApplicable(f"needs {what}, which only a toytrans model offers")
    return batch.model.ours
