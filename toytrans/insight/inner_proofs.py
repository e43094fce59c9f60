"""Proofs that look inside: at embeddings, layers, the cache, and the gradients of every weight."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from toytrans.config import PadMask
from toytrans.insight.adapters import Layers
from toytrans.insight.examples import Examples, answer, apart, largest, worst
from toytrans.insight.findings import NotApplicable, Outcome
from toytrans.model.attention import Attention, Sight
from toytrans.model.transformer import Transformer

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
        calls = {name: _Call(module, stack, pads) for name, module in layers.attentions.items()}
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


class _Call:
    """What an attention was asked and what it answered, and what the textbook answers."""

    def __init__(self, module: nn.Module, stack: contextlib.ExitStack, pads: Tensor) -> None:
        self.module, self.met, self.pads = module, False, pads
        self.given: tuple[Any, ...] = ()
        self.named: dict[str, Any] = {}
        self.parts: dict[str, Tensor] = {}
        self.found = torch.empty(0)
        if isinstance(module, Attention | nn.MultiheadAttention):
            stack.enter_context(
                _removing(module.register_forward_hook(self._whole, with_kwargs=True))
            )
            return
        for name in ("q_proj", "k_proj", "v_proj"):
            part = getattr(module, name)
            keep = lambda _, __, output, name=name: self.parts.__setitem__(name, output)  # noqa: E731
            stack.enter_context(_removing(part.register_forward_hook(keep)))
        stack.enter_context(_removing(module.out_proj.register_forward_pre_hook(self._context)))  # type: ignore[union-attr]

    def _whole(self, _: nn.Module, given: Any, named: Any, output: Any) -> None:
        self.given, self.named, self.met = given, named, True
        self.found = output[0] if isinstance(output, tuple) else output

    def _context(self, _: nn.Module, given: Any) -> None:
        self.found, self.met = given[0], True

    def textbook(self) -> Iterable[Tensor]:
        """The answers that are right: one, or one for every mask that may have been meant."""
        if isinstance(self.module, Attention):
            return [_textbook_of_ours(self.module, *self.given, **self.named)]
        if isinstance(self.module, nn.MultiheadAttention):
            return [_textbook_of_torch(self.module, *self.given, **self.named)]
        q, k, v = (self.parts[name] for name in ("q_proj", "k_proj", "v_proj"))
        heads = int(self.module.num_heads)  # type: ignore[arg-type]
        triangle = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()
        masks = [None, triangle]
        if self.pads.shape[1] == k.shape[1]:
            masks.append(~self.pads[:, None, None])
        return [
            softmax_attention(_heads(q, heads), _heads(k, heads), _heads(v, heads), mask)
            for mask in masks
        ]


@contextlib.contextmanager
def _removing(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    added: Tensor | None = None,
    cap: float = 0,
) -> Tensor:
    """softmax(q k / root of Dh) v in plain steps: (B, H, T, Dh) -> (B, Tq, D), heads merged.

    mask: True = may attend; a row without any gives zeros.
    """
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if added is not None:
        scores = scores + added
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhqk,bhkd->bqhd", weights, v).flatten(2)


def _heads(x: Tensor, heads: int) -> Tensor:
    parted: Tensor = x.unflatten(-1, (heads, -1)).transpose(1, 2)
    return parted


def _textbook_of_ours(
    module: Attention, x: Tensor, sight: Sight, memory: Any = None, cache: Any = None
) -> Tensor:
    weights, biases = module.in_proj.weight.chunk(3), module.in_proj.bias.chunk(3)
    q, k, v = (
        _heads(F.linear(x, w, b), module.n_heads) for w, b in zip(weights, biases, strict=True)
    )
    if memory is not None:
        k, v = memory
    else:
        q, k = (module.turn(part, range(x.shape[1])) for part in (q, k))
    merged = softmax_attention(q, k, v, sight.mask, module.bias(sight), module.cap)
    output: Tensor = module.out_proj(merged)
    return output


def _textbook_of_torch(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Tensor:
    given = [x if module.batch_first else x.transpose(0, 1) for x in (query, key, value)]
    assert module.in_proj_weight is not None
    weights, biases = module.in_proj_weight.chunk(3), [None] * 3
    if module.in_proj_bias is not None:
        biases = list(module.in_proj_bias.chunk(3))  # type: ignore[arg-type]
    q, k, v = (
        _heads(F.linear(x, w, b), module.num_heads)
        for x, w, b in zip(given, weights, biases, strict=True)
    )
    added = torch.zeros(q.shape[-2], k.shape[-2], dtype=q.dtype)
    if attn_mask is not None and attn_mask.dim() == 3:  # (B H, Tq, Tk)
        attn_mask = attn_mask.unflatten(0, (len(q), -1))
    for mask in (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None]):
        if mask is None:
            continue
        if mask.dtype == torch.bool:  # torch's own polarity: True = blocked
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -math.inf)
        added = added + mask
    merged = softmax_attention(q, k, v, None, added)
    output: Tensor = module.out_proj(merged if module.batch_first else merged.transpose(0, 1))
    return output


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
