"""Proofs that look inside: at embeddings, layers, the cache, and the gradients of every weight."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import torch
from torch import Tensor, nn

from toytrans.insight.adapters import Layers
from toytrans.insight.examples import Examples, answer, apart, largest, worst
from toytrans.insight.findings import NotApplicable, Outcome
from toytrans.insight.textbook import Call
from toytrans.model.transformer import Transformer
from toytrans.names import PadMask

Change = Callable[[str, Tensor], Tensor]
"""side ("src" or "tgt"), embedded ids (B, L, D) -> what goes on in their place."""


@contextlib.contextmanager
def embeddings_changed(x: Examples, change: Change) -> Iterator[None]:
    """What the embeddings give goes through `change` on its way in.

    Raises NotApplicable where they are not at hand, or not asked for the ids of the batch.
    """
    if x.subject.embeddings is None:
        raise NotApplicable("needs the embedding layer (embedding=...)")
    source, target = x.subject.embeddings
    met: list[str] = []

    def hook(module: nn.Module, given: Any, named: Any, output: Tensor) -> Tensor:
        """What goes on in place of an embedding's output."""
        ids = next(value for value in (*given, *named.values()) if isinstance(value, Tensor))
        if output.shape[:2] != ids.shape:
            raise NotApplicable(
                f"the embedding makes {tuple(output.shape)} of ids {tuple(ids.shape)}; needs one "
                "that is batch first"
            )
        shared = source is target
        is_source = torch.equal(ids, x.src) if shared else module is source
        met.append("src" if is_source else "tgt")
        return change(met[-1], output)

    hooks = [
        module.register_forward_hook(hook, with_kwargs=True)
        for module in dict.fromkeys((source, target))
    ]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()
    if {"src", "tgt"} - set(met):
        raise NotApplicable("the embedding layer given is not what the model embeds its ids with")


def pads_hold_anything(x: Examples) -> Outcome:
    """(c) Whatever stands in the embedding of a pad, real outputs stay as they are."""
    pads = {"src": x.src == x.subject.pad_id, "tgt": ~x.real}

    def change(side: str, embedded: Tensor) -> Tensor:
        noise = x.noise(embedded) * 100 * embedded.abs().amax()
        return torch.where(pads[side][..., None], noise, embedded)

    with embeddings_changed(x, change):
        found = x.ask(x.src, x.tgt_in)
    count = int(pads["src"].sum() + pads["tgt"].sum())
    return Outcome(
        largest(apart(found, x.logits)[x.real]),
        x.tolerance,
        f"noise a hundred times as large in the place of {count} pads moves no real output",
        "real outputs change with what the embedding of a pad holds: pads are seen as keys; are "
        "the pad masks passed to encoder, decoder and cross-attention, each the right way round?",
    )


def exact_gradients(x: Examples) -> Outcome:
    """(e) The gradient of a real output with respect to pads and future tokens is exactly zero."""
    leaves: dict[str, Tensor] = {}

    def change(side: str, embedded: Tensor) -> Tensor:
        leaves[side] = embedded.detach().requires_grad_()
        return leaves[side]

    with torch.enable_grad(), embeddings_changed(x, change):
        logits = answer(x.subject, x.src, x.tgt_in)
    if not logits.requires_grad:
        raise NotApplicable("needs gradients, and the model answers without (torch.no_grad?)")
    weighed = (logits * x.noise(logits)).sum(-1) * x.real
    pads = (x.src == x.subject.pad_id)[..., None] * _gradient(weighed.sum(), leaves["src"])
    by = {"source pads": largest(pads), "target pads": 0.0, "the future": 0.0}
    for place in range(logits.shape[1]):
        gradient = _gradient(weighed[:, place].sum(), leaves["tgt"])
        later = torch.arange(logits.shape[1]) > place
        closed_pads = (~x.real & ~later)[..., None] * gradient
        by["target pads"] = worst((by["target pads"], largest(closed_pads)))
        by["the future"] = worst((by["the future"], largest(later[:, None] * gradient)))
    reached = [name for name, found in by.items() if found != 0]
    return Outcome(
        worst(by.values()),
        0.0,
        "exactly zero towards source pads, target pads and the future",
        f"real outputs depend on {' and '.join(reached)}: attention weights there are not zero; "
        "is the mask added before softmax, in every layer, the right way round?",
    )


def _gradient(value: Tensor, leaf: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(value, leaf, retain_graph=True, allow_unused=True)
    return torch.zeros_like(leaf) if found is None else found


def steps_are_the_pass(x: Examples) -> Outcome:
    """(f) Decoding step by step with the cache = one parallel pass."""
    model = _ours(x, "decoding step by step with a cache")
    with torch.no_grad():
        state = model.start(x.src, x.tgt_in.shape[1])
        steps = [model.next_logits(token[:, None], state)[:, 0] for token in x.tgt_in.unbind(1)]
    return Outcome(
        largest((torch.stack(steps, 1) - x.logits)[x.real]),
        x.tolerance,
        f"{len(steps)} steps with the cache = one masked pass",
        "a step of decoding, which has only the past, gives other logits than the parallel pass: "
        "that pass sees more or less than the past",
    )


def pad_rows_do_no_harm(x: Examples) -> Outcome:
    """(g) Closing pads as keys only = as keys and queries: for the loss and every gradient."""
    model = _ours(x, "the gradient of every weight under either mask")
    assert x.tgt_out is not None
    losses, gradients, masks = [], [], []
    before = model.masks.pad_mask
    for way in get_args(PadMask):
        model.masks.pad_mask = way
        masks.append(model.masks.all(x.src, x.tgt_in).encoder_self)
        model.zero_grad()
        loss = x.loss(model(x.src, x.tgt_in), x.tgt_out)
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
        x.loss_tolerance(losses[0]),
        f"loss {losses[0]:.6f} under both masks, apart by {by_loss:.1e}; {numbers:,} gradients "
        f"apart by at most {apart:.1e}: pad rows do no harm",
        f"loss apart by {by_loss:.1e}, gradients by {apart:.1e}: something reads the rows of pads; "
        "does the loss ignore pad labels, and are pads closed as keys?",
    )


def attention_is_scaled(x: Examples) -> Outcome:
    """(k) Each attention's output, recomputed from its own weights with scores q k / root of the
    head's width (Vaswani et al. 2017, equation 1)."""
    layers = x.subject.layers
    if layers is None or not layers.attentions:
        raise NotApplicable("needs attention layers whose projections have known names")
    src, tgt_in, _ = x.make_batch([(x.pairs[0][0], x.pairs[1][1])])
    by: dict[str, float] = {}
    size = 0.0
    with contextlib.ExitStack() as stack, torch.enable_grad():  # with it torch takes no shortcut
        pads = src == x.subject.pad_id  # there are some where the end is a pad
        calls = {name: Call(module, stack, pads) for name, module in layers.attentions.items()}
        answer(x.subject, src, tgt_in)
    with torch.no_grad():
        for name, call in calls.items():
            if call.met:
                by[name] = min(largest(call.found - wanted) for wanted in call.textbook())
                size = max(size, largest(call.found))
    if not by:
        raise NotApplicable("the attention layers do not pass through their own projections")
    name = max(by, key=lambda name: by[name])
    return Outcome(
        worst(by.values()),
        x.tolerance / max(x.size, 1e-30) * size,
        f"{len(by)} attentions recomputed from their weights: scores are q k / root of d_head",
        f"{name} gives another output than softmax(q k / root of d_head) v of its own weights; "
        "is the scale there, and is it the root of the head's width, not of d_model?",
    )


def input_passes_by(x: Examples) -> Outcome:
    """(o) With every sub-layer silenced, logits still depend on the input: residual connections
    carry it past (He et al. 2016; Vaswani et al. 2017, section 3.1)."""
    layers = _layers(x)
    ends = layers.attention_ends | layers.feed_forward_ends
    if {_side(name) for name in ends} != {"encoder", "decoder"}:
        raise NotApplicable("needs an encoder and a decoder whose layers have known names")
    by = {}
    other_src, other_tgt = x.src.clone(), x.tgt_in.clone()
    inside = torch.isin(x.src, x.symbols)
    other_src[inside] = x.other(x.src[inside])
    other_tgt[:, 1:] = x.other(x.tgt_in[:, 1:])
    changed = x.real.clone()
    changed[:, 0] = False
    for side in ("encoder", "decoder"):
        chosen = [module for name, module in ends.items() if _side(name) == side]
        with silenced(chosen):
            before = x.ask(x.src, x.tgt_in)
            if side == "encoder":
                moved = apart(x.ask(other_src, x.tgt_in), before)[x.real]
            else:
                moved = apart(x.ask(x.src, other_tgt), before)[changed]
        by[side] = largest(moved)
    least = min(by, key=lambda side: by[side])
    return Outcome(
        by[least],
        x.tolerance,
        "with every sub-layer silenced the input still reaches the logits, past encoder and "
        "decoder",
        f"with the {least}'s sub-layers silenced its input changes nothing: a residual "
        "connection is missing (x + sublayer(x))",
        must_change=True,
    )


def scale_is_normed(x: Examples) -> Outcome:
    """(p) Embeddings a million times as large give no larger logits than a thousand times: layer
    normalisation holds them (Ba et al. 2016)."""
    sizes = []
    for factor in (1e3, 1e6):

        def change(_: str, embedded: Tensor, factor: float = factor) -> Tensor:
            return embedded * factor

        with embeddings_changed(x, change):
            sizes.append(largest(x.ask(x.src, x.tgt_in)[x.real]))
    ratio = sizes[1] / max(sizes[0], 1e-30)
    return Outcome(
        ratio,
        10.0,
        f"embeddings 1,000 times as large: logits {ratio:.2f} times as large",
        f"embeddings 1,000 times as large make logits {ratio:,.0f} times as large: nothing "
        "normalises what the layers pass on; are the layer norms applied?",
    )


def feed_forward_at_work(x: Examples) -> Outcome:
    """(q) Silencing the feed-forward sub-layer of any layer changes the logits."""
    layers = _layers(x)
    ends = layers.feed_forward_ends
    if not ends and x.subject.ours is None:
        raise NotApplicable("needs feed-forward layers with known names")
    by = {}
    for name, module in ends.items():
        with silenced([module]):
            by[name] = largest(apart(x.ask(x.src, x.tgt_in), x.logits)[x.real])
    least = min(by, key=lambda name: by[name], default="none of the layers has one;")
    missing = x.subject.ours is not None and len(ends) < layers.count
    return Outcome(
        0.0 if missing else by[least],
        x.tolerance,
        f"{len(by)} feed-forward sub-layers, each moves the logits",
        f"{len(ends)} feed-forward sub-layers in {layers.count} layers: some layer lacks its own"
        if missing
        else f"{least} moves nothing: its feed-forward sub-layer is bypassed",
        must_change=True,
    )


@contextlib.contextmanager
def silenced(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Their weights and biases are zero meanwhile."""
    kept = [(p, p.detach().clone()) for module in modules for p in module.parameters()]
    try:
        for parameter, _ in kept:
            parameter.data.zero_()
        yield
    finally:
        for parameter, value in kept:
            parameter.data.copy_(value)


def _side(name: str) -> str:
    """Which half of the model a module belongs to, by what its name says first."""
    encoder, decoder = name.find("enc"), name.find("dec")
    if encoder < 0 and decoder < 0:
        raise NotApplicable(f"needs names that tell encoder from decoder; {name} does not")
    return "decoder" if decoder >= 0 and (encoder < 0 or decoder < encoder) else "encoder"


def _ours(x: Examples, what: str) -> Transformer:
    if x.subject.ours is None:
        raise NotApplicable(f"needs {what}, which only a toytrans model offers")
    return x.subject.ours


def _layers(x: Examples) -> Layers:
    if x.subject.layers is None:
        raise NotApplicable("needs layers with known names, which a plain callable does not show")
    return x.subject.layers


INNER_PROOFS: dict[str, tuple[str, Callable[[Examples], Outcome]]] = {
    "c": ("what a pad's embedding holds changes nothing", pads_hold_anything),
    "f": ("step by step with the cache = one parallel pass", steps_are_the_pass),
    "g": ("pads closed as keys = as keys and queries", pad_rows_do_no_harm),
    "k": ("scores are q k / root of d_head", attention_is_scaled),
    "o": ("residual connections carry the input", input_passes_by),
    "p": ("layer norms hold the scale", scale_is_normed),
    "q": ("every feed-forward sub-layer takes part", feed_forward_at_work),
}
