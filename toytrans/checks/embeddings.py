"""What a model's embeddings hold is changed on the way: noise in the place of pads, and gradients
of real outputs towards pads and later tokens."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.checks.batch import Batch, largest, worst
from toytrans.checks.result import CannotJudge, NotApplicable, NotAsked, Result, measured

FUTURE = "the future"


@contextlib.contextmanager
def embeddings_changed(batch: Batch, edit: Callable[[str, Tensor], Tensor]) -> Iterator[set[str]]:
    """What the embeddings make of the batch's source and target, (B, L, D), goes through `edit`,
    which is told the side, "src" or "tgt"; what they make of other ids, those of a loop say, stays
    as it is. Gives the sides that were met.

    Raises NotAsked where no embeddings are known, CannotJudge where no side was met.
    """
    module = batch.model.module
    parts = () if module is None else module.modules()
    known = batch.model.embeddings or [part for part in parts if isinstance(part, nn.Embedding)]
    if not known:
        raise NotAsked(embedding="the embedding layer")
    met: set[str] = set()
    why = ["the embedding layer given is not what the model embeds its ids with"]

    def hook(_: nn.Module, given: Any, named: Any, output: Any) -> Any:
        ids = next((v for v in (*given, *named.values()) if isinstance(v, Tensor)), None)
        if ids is None:
            return output
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

    with contextlib.ExitStack() as stack:
        for part in dict.fromkeys(known):
            stack.enter_context(part.register_forward_hook(hook, with_kwargs=True))
        yield met
    if not met:
        raise CannotJudge(why[0])


@contextlib.contextmanager
def noise_in_pads(batch: Batch) -> Iterator[None]:
    """What the embeddings make of pads is noise meanwhile, on both sides, a hundred times as large.
    Raises CannotJudge where a side is not met."""

    def edit(side: str, embedded: Tensor) -> Tensor:
        real = batch.real_source if side == "src" else batch.real
        noise = batch.noise(embedded) * 100 * embedded.abs().amax()
        return torch.where(real[..., None], embedded, noise)

    with embeddings_changed(batch, edit) as met:
        yield
    for side, name in (("src", "source"), ("tgt", "target")):
        if side not in met and (side == "tgt" or batch.facts.has_source):
            raise CannotJudge(f"the {name} is embedded by another module, or at another width")


def gradients_towards(of_future: bool) -> Callable[[Batch], Result]:
    """The check that gradients towards the future, or towards pads, are zero."""

    def ask(batch: Batch) -> Result:
        if "gradients" not in batch.kept:
            batch.kept["gradients"] = _gradients(batch)
        by, size = batch.kept["gradients"]
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
            f"gradients towards {', '.join(mine)} are {exactly}",
            f"real outputs depend on {' and '.join(reached)}: attention weights there are not "
            "zero; is the mask added before softmax, in every layer, the right way round?",
        )

    return ask


def _gradients(batch: Batch) -> tuple[dict[str, float], float]:
    """The largest gradients towards pads and the future, and that towards any token. Of longer
    batches those in eval mode and fp64 alone, and none beyond 66 places."""
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
    size = 0.0
    if "src" in leaves:
        gradient = _gradient(weighed.sum(), leaves["src"])
        by["source pads"] = largest(gradient[~batch.real_source])
        size = largest(gradient[batch.real_source].nan_to_num())
    width = logits.shape[1]
    step = width // 4 if width > 8 else 1
    for place in range(0, width, step) if "tgt" in leaves else ():
        gradient = _gradient(weighed[:, place].sum(), leaves["tgt"])
        later = torch.arange(width) > (place if batch.facts.is_causal else width)
        closed_pads = gradient[batch.real[:, place]][(~batch.real & ~later)[batch.real[:, place]]]
        size = max(size, largest(gradient.nan_to_num()))
        by[pads] = worst((by.get(pads, 0.0), largest(closed_pads)))
        by[FUTURE] = worst((by.get(FUTURE, 0.0), largest(gradient[:, later])))
    return by, size


def _gradient(value: Tensor, leaves: list[Tensor]) -> Tensor:
    """Of a value with respect to leaves (B, L, ...), the largest of each place: (B, L)."""
    gradients = torch.autograd.grad(
        value, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.stack([part.abs().flatten(2).amax(2) for part in gradients]).amax(0)
