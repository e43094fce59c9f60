"""Proofs about sub-layers: residual connections, norms and feed-forward."""

import contextlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from toytrans.insight.proofs.answers import largest
from toytrans.insight.proofs.batch import ProofBatch
from toytrans.insight.proofs.copies import zeroed
from toytrans.insight.proofs.internals import (
    embeddings_changed,
    given_embeddings,
)
from toytrans.insight.proofs.model_under_test import Layers, half_of
from toytrans.insight.proofs.report import CannotJudge, NotApplicable, Outcome


def input_passes_by(batch: ProofBatch) -> Outcome:
    """(o) With every sub-layer silenced, logits still depend on the input: residual connections
    carry it past (He et al. 2016; Vaswani et al. 2017, section 3.1)."""
    layers = _layers(batch)
    ends = layers.attention_ends | layers.feed_forward_ends
    sides = {_side(name) for name in ends}
    if sides != {"encoder", "decoder"} or not batch.model.has_source:
        raise NotApplicable("needs an encoder and a decoder whose layers have known names")
    whole = batch.model.ours is not None or all(
        {_side(name) for name in part} == sides
        for part in (layers.attention_ends, layers.feed_forward_ends)
    )
    by = {}
    other_src, other_tgt = batch.src.clone(), batch.tgt_in.clone()
    inside = torch.isin(batch.src, batch.symbols)
    other_src[inside] = batch.other(batch.src[inside])
    other_tgt[:, 1:] = batch.other(batch.tgt_in[:, 1:])
    changed = batch.real.clone()
    changed[:, 0] = False
    for side in ("encoder", "decoder"):
        chosen = [module for name, module in ends.items() if _side(name) == side]
        with silenced(chosen):
            before = batch.ask(batch.src, batch.tgt_in)
            if side == "encoder":
                moved = batch.moved(batch.ask(other_src, batch.tgt_in), before)[batch.real]
            else:
                moved = batch.moved(batch.ask(batch.src, other_tgt), before)[changed]
        by[side] = largest(moved)
    least = min(by, key=lambda side: by[side])
    if not by[least] > batch.tolerance and not whole:
        raise CannotJudge(
            f"with the {least}'s attention silenced its input changes nothing; needs layers of "
            "attention and feed-forward, with known names, on both sides"
        )
    return Outcome(
        by[least],
        batch.tolerance,
        "with every sub-layer silenced the input still reaches the logits, past encoder and "
        "decoder",
        f"with the {least}'s sub-layers silenced its input changes nothing: a residual "
        "connection is missing (x + sublayer(x))",
        must_change=True,
    )


def scale_is_normed(batch: ProofBatch) -> Outcome:
    """(p) Embeddings a million times as large give no larger logits than a thousand times: layer
    normalisation holds them (Ba et al. 2016)."""
    sizes = []
    for factor in (1e3, 1e6):

        def change(_: str, embedded: Tensor, factor: float = factor) -> Tensor:
            return embedded * factor

        with embeddings_changed(batch, change, given_embeddings(batch)) as met:
            logits = batch.ask(batch.src, batch.tgt_in)[batch.real]
        sizes.append(largest(logits[:, batch.kept & (logits.abs() < 1e30).all(0)]))
    ratio = sizes[1] / max(sizes[0], 1e-30)
    if not ratio <= 10 and not _norms_were_there(batch):
        raise CannotJudge(
            f"embeddings 1,000 times as large make logits {ratio:,.0f} times as large: nothing "
            "normalises what the layers pass on, which may be meant"
        )
    if batch.model.has_source and met != {"src", "tgt"}:
        raise CannotJudge("needs the embeddings of both source and target (embedding=...)")
    return Outcome(
        ratio,
        10.0,
        f"embeddings 1,000 times as large: logits {ratio:.2f} times as large",
        f"embeddings 1,000 times as large make logits {ratio:,.0f} times as large: nothing "
        "normalises what the layers pass on; are the layer norms applied?",
    )


def _norms_were_there(batch: ProofBatch) -> bool:
    """Whether norms belong into the model: it is ours, or a layer of torch's or of Hugging Face's
    holds nothing where its norm should be."""
    module = batch.model.module
    if batch.model.ours is not None or module is None:
        return batch.model.ours is not None
    return any(
        type(parent).__module__.startswith(("torch.nn", "transformers."))
        and "norm" in name.lower()
        and isinstance(part, nn.Identity)
        for parent in module.modules()
        for name, part in parent.named_children()
    )


def feed_forward_at_work(batch: ProofBatch) -> Outcome:
    """(q) Silencing the feed-forward sub-layer of any layer changes the logits."""
    layers = _layers(batch)
    ends = layers.feed_forward_ends
    if not ends and batch.model.ours is None:
        raise NotApplicable("needs feed-forward layers with known names")
    by = {}
    for name, module in ends.items():
        with silenced([module]):
            by[name] = batch.differ(batch.ask(batch.src, batch.tgt_in), batch.logits, batch.real)
    least = min(by, key=lambda name: by[name], default="none of the layers has one;")
    missing = batch.model.ours is not None and len(ends) < layers.count
    return Outcome(
        0.0 if missing else by[least],
        batch.tolerance,
        f"{len(by)} feed-forward sub-layers, each moves the logits",
        f"{len(ends)} feed-forward sub-layers in {layers.count} layers: some layer lacks its own"
        if missing
        else f"{least} moves nothing: its feed-forward sub-layer is bypassed",
        must_change=True,
    )


def silenced(modules: Iterable[nn.Module]) -> contextlib.AbstractContextManager[None]:
    """Their weights and biases are zero meanwhile."""
    return zeroed(parameter for module in modules for parameter in module.parameters())


def _side(name: str) -> str:
    half = half_of(name)
    if half is None:
        raise NotApplicable(f"needs names that tell encoder from decoder; {name} does not")
    return half


def _layers(batch: ProofBatch) -> Layers:
    if batch.model.layers is None:
        raise NotApplicable("needs layers with known names, which a plain callable does not show")
    return batch.model.layers
