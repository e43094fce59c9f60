"""The gradients of real outputs with respect to the embeddings of pads and of later tokens."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from toytrans.checks.batch import Batch, largest, worst
from toytrans.checks.embeddings import embeddings_changed, embeddings_of
from toytrans.checks.result import CannotJudge, NotApplicable, Result, measured

FUTURE = "the future"


def towards(of_future: bool) -> Callable[[Batch], Result]:
    """The check that gradients towards the future, or towards pads, are zero."""

    def ask(batch: Batch) -> Result:
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
    """The largest gradients towards pads and the future, that towards any token, and a remark. Of
    longer batches those in eval mode and fp64 alone, and none beyond 66 places."""
    embeddings_of(batch)
    exact = batch.dtype == torch.float64 and not batch.model.training
    if not batch.is_short and not (exact and batch.tgt_in.shape[1] <= 66):
        raise NotApplicable("gradients of longer batches are taken in eval mode and fp64 alone")
    leaves: dict[str, list[Tensor]] = {}

    def edit(side: str, embedded: Tensor) -> Tensor:
        leaf = embedded.detach().requires_grad_()
        leaves.setdefault(side, []).append(leaf)
        return leaf.clone()  # which a model may change in place

    with torch.enable_grad(), embeddings_changed(batch, edit):
        logits = batch.model.ask(*batch.ids)
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
    step = width // 4 if width > 8 else 1
    for place in range(0, width, step) if "tgt" in leaves else ():
        gradient = _gradient(weighed[:, place].sum(), leaves["tgt"])
        later = torch.arange(width) > (place if batch.facts.is_causal else width)
        closed_pads = gradient[batch.real[:, place]][(~batch.real & ~later)[batch.real[:, place]]]
        size = max(size, largest(gradient.nan_to_num()))
        by[pads] = worst((by.get(pads, 0.0), largest(closed_pads)))
        by[FUTURE] = worst((by.get(FUTURE, 0.0), largest(gradient[:, later])))
    module = batch.model.module
    if module is not None and math.isnan(worst(by.values())):
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        found = torch.autograd.grad(weighed.sum(), weights, allow_unused=True)
        if all(bool(part.isfinite().all()) for part in found if part is not None):
            raise CannotJudge("gradients of embeddings are NaN, and those of the weights are not")
    return by, size, detached


def _gradient(value: Tensor, leaves: list[Tensor]) -> Tensor:
    """Of a value with respect to leaves (B, L, ...), the largest of each place: (B, L)."""
    gradients = torch.autograd.grad(
        value, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.stack([part.abs().flatten(2).amax(2) for part in gradients]).amax(0)
