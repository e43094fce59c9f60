"""The gradients of real outputs with respect to the embeddings of pads and of later tokens."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from toytrans.checks.batch import Batch, largest, worst
from toytrans.checks.embeddings import embeddings_changed, embeddings_of
from toytrans.checks.result import CannotJudge, NotApplicable, Result, measured

LONGEST = 66
"""Places of the longest batch whose gradients are computed."""

MOST_PLACES = 4
"""Outputs of a long target of which gradients are taken, at least."""

FUTURE = "the future"


def towards(of_future: bool) -> Callable[[Batch], Result]:
    """The check that gradients towards the future, or towards pads, are zero."""

    def ask(batch: Batch) -> Result:
        if of_future and not batch.facts.is_causal:
            raise NotApplicable("an encoder sees both sides: it has no future to hide")
        if "gradients" not in batch.kept:
            batch.kept["gradients"] = _reached(batch)
        by, size, detached = batch.kept["gradients"]
        mine = {name: value for name, value in by.items() if (name == FUTURE) == of_future}
        if not mine:
            raise NotApplicable("the embedding of no target is met")
        least = size * batch.tolerance / batch.typical_logit
        reached = [name for name, value in mine.items() if not value <= least]
        most = worst(mine.values())
        exactly = "exactly zero" if most == 0 else "zero but for rounding"
        return measured(
            most,
            least if most else 0.0,
            f"gradients towards {', '.join(mine)} are {exactly}{detached}",
            f"real outputs depend on {' and '.join(reached)}: attention weights there are not "
            "zero; is the mask added before softmax, in every layer, the right way round?",
        )

    return ask


def _reached(batch: Batch) -> tuple[dict[str, float], float, str]:
    """The largest gradients towards pads and the future, that towards any token, and a remark."""
    embeddings = embeddings_of(batch)
    if not _is_worth_it(batch):
        raise NotApplicable("gradients of longer batches are taken in eval mode and fp64 alone")
    with batch.copy.without_dropout_and_with_state_kept():
        return _gradients(batch, embeddings)


def _is_worth_it(batch: Batch) -> bool:
    """Of longer batches those in eval mode and fp64, and none beyond some length."""
    if batch.is_short:
        return True
    exact = batch.dtype == torch.float64 and not batch.copy.training
    return exact and batch.tgt_in.shape[1] <= LONGEST


def _gradients(
    batch: Batch, embeddings: tuple[nn.Module, ...]
) -> tuple[dict[str, float], float, str]:
    leaves: dict[str, list[Tensor]] = {}

    def edit(side: str, embedded: Tensor) -> Tensor:
        leaf = embedded.detach().requires_grad_()
        leaves.setdefault(side, []).append(leaf)
        return leaf.clone()  # which a model may change in place

    with torch.enable_grad(), embeddings_changed(batch, edit, embeddings):
        logits = batch.model.ask(batch.src.clone(), batch.tgt_in.clone())
    if not logits.requires_grad:
        raise CannotJudge("needs gradients, and the model answers without (torch.no_grad?)")
    plain = logits.detach()
    counts = batch.as_infinite(plain).isfinite() | plain.isnan()
    weighed = torch.where(counts & batch.counted_ids, logits * batch.noise(logits), 0.0)
    weighed = weighed.sum(-1) * batch.real
    pads = "target pads" if batch.facts.has_source else "pads"
    by: dict[str, float] = {}
    size, detached = 0.0, ""
    if "src" in leaves:
        gradient = _gradient(weighed.sum(), leaves["src"])
        by["source pads"] = largest(gradient[~batch.real_source])
        size = largest(gradient[batch.real_source].nan_to_num())
        detached = "" if size else "; none reaches the source: is it detached on purpose?"
    width = logits.shape[1]
    step = max(1, width // MOST_PLACES) if width > 2 * MOST_PLACES else 1
    for place in range(0, width, step) if "tgt" in leaves else ():
        gradient = _gradient(weighed[:, place].sum(), leaves["tgt"])
        later = torch.arange(width) > place if batch.facts.is_causal else torch.zeros(width).bool()
        here = batch.real[:, place]
        closed_pads = gradient[here][(~batch.real & ~later)[here]]
        size = max(size, largest(gradient.nan_to_num()))
        by[pads] = worst((by.get(pads, 0.0), largest(closed_pads)))
        by[FUTURE] = worst((by.get(FUTURE, 0.0), largest(gradient[:, later])))
    if math.isnan(worst(by.values())) and _weights_have_gradients(batch, weighed.sum()):
        raise CannotJudge("gradients of embeddings are NaN, and those of the weights are not")
    return by, size, detached


def _weights_have_gradients(batch: Batch, value: Tensor) -> bool:
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
