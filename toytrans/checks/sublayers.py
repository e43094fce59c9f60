"""Sub-layers: residual connections, norms and feed-forward, found by the names of modules."""

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from toytrans.checks.batch import Batch, largest
from toytrans.checks.copies import zeroed
from toytrans.checks.embeddings import embeddings_changed, given_embeddings
from toytrans.checks.result import CannotJudge, NotApplicable, Result, measured

# the last matrix of a sub-layer, by its name in toytrans, torch, BART and its kin, T5, BERT, and
# the Annotated Transformer
ATTENTION_END = re.compile(
    r"(att[\w.]*\.out_proj|Attention\.o|attention\.output\.dense|attn\.linears\.3)$"
)
FEED_FORWARD_END = re.compile(
    r"(feed_forward\.(3|w_2)|linear2|fc2|DenseReluDense\.wo|(?<!attention)\.output\.dense)$"
)
CROSS = re.compile(r"cross_?att|multihead_attn|encoder_attn|src_attn|EncDecAttention")
HALF = re.compile(r"(enc|dec)oder|(?<![a-z])(enc|dec)(?![a-z])")
EXPERT = re.compile(r"expert|moe|router", re.IGNORECASE)


def half_of(name: str) -> Literal["encoder", "decoder"] | None:
    """Which half of a model a module belongs to, by the word that its name says first."""
    found = HALF.search(name)
    if found is None:
        return None
    return "encoder" if found[0].startswith("enc") else "decoder"


@dataclass(frozen=True)
class Layers:
    """The last matrices of a model's sub-layers, by their names."""

    attention_ends: dict[str, nn.Module]
    feed_forward_ends: dict[str, nn.Module]

    @property
    def count(self) -> int:
        """Layers: each has one self-attention."""
        return sum(1 for name in self.attention_ends if not CROSS.search(name))

    @staticmethod
    def of(module: nn.Module | None) -> "Layers | None":
        """Those of a model whose names are known; None for others."""
        modules = {} if module is None else dict(module.named_modules())
        ends = {name: m for name, m in modules.items() if ATTENTION_END.search(name)}
        if not ends:
            return None
        forward = {
            name: m
            for name, m in modules.items()
            if FEED_FORWARD_END.search(name) and not EXPERT.search(name)
        }
        return Layers(ends, forward)


def input_passes_by(batch: Batch) -> Result:
    """With every sub-layer silenced, logits still depend on the input: residual connections
    carry it past (He et al. 2016; Vaswani et al. 2017, section 3.1)."""
    layers = _layers(batch)
    ends = layers.attention_ends | layers.feed_forward_ends
    sides = {_side(name) for name in ends}
    if sides != {"encoder", "decoder"} or not batch.facts.has_source:
        raise NotApplicable("needs an encoder and a decoder whose layers have known names")
    whole = batch.facts.is_textbook or all(
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
    return measured(
        by[least],
        batch.tolerance,
        "with every sub-layer silenced the input still reaches the logits, past encoder and "
        "decoder",
        f"with the {least}'s sub-layers silenced its input changes nothing: a residual "
        "connection is missing (x + sublayer(x))",
        must_change=True,
    )


def scale_is_normed(batch: Batch) -> Result:
    """Embeddings a million times as large give no larger logits than a thousand times: layer
    normalisation holds them (Ba et al. 2016)."""
    sizes = []
    for factor in (1e3, 1e6):

        def change(_: str, embedded: Tensor, factor: float = factor) -> Tensor:
            return embedded * factor

        with embeddings_changed(batch, change, given_embeddings(batch)) as met:
            logits = batch.ask(batch.src, batch.tgt_in)[batch.real]
        sizes.append(largest(logits[:, batch.counted_ids & (logits.abs() < 1e30).all(0)]))
    ratio = sizes[1] / max(sizes[0], 1e-30)
    if not ratio <= 10 and not _norms_were_there(batch):
        raise CannotJudge(
            f"embeddings 1,000 times as large make logits {ratio:,.0f} times as large: nothing "
            "normalises what the layers pass on, which may be meant"
        )
    if batch.facts.has_source and met != {"src", "tgt"}:
        raise CannotJudge("needs the embeddings of both source and target (embedding=...)")
    return measured(
        ratio,
        10.0,
        f"embeddings 1,000 times as large: logits {ratio:.2f} times as large",
        f"embeddings 1,000 times as large make logits {ratio:,.0f} times as large: nothing "
        "normalises what the layers pass on; are the layer norms applied?",
    )


def _norms_were_there(batch: Batch) -> bool:
    """Whether norms belong into the model: it is ours, or a layer of torch's or of Hugging Face's
    holds nothing where its norm should be."""
    module = batch.model.module
    if batch.facts.is_textbook or module is None:
        return batch.facts.is_textbook
    return any(
        type(parent).__module__.startswith(("torch.nn", "transformers."))
        and "norm" in name.lower()
        and isinstance(part, nn.Identity)
        for parent in module.modules()
        for name, part in parent.named_children()
    )


def feed_forward_at_work(batch: Batch) -> Result:
    """Silencing the feed-forward sub-layer of any layer changes the logits."""
    layers = _layers(batch)
    ends = layers.feed_forward_ends
    if not ends and not batch.facts.is_textbook:
        raise NotApplicable("needs feed-forward layers with known names")
    by = {}
    for name, module in ends.items():
        with silenced([module]):
            by[name] = batch.differ(batch.ask(batch.src, batch.tgt_in), batch.logits, batch.real)
    least = min(by, key=lambda name: by[name], default="none of the layers has one;")
    missing = batch.facts.is_textbook and len(ends) < layers.count
    return measured(
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


def _layers(batch: Batch) -> Layers:
    layers = Layers.of(batch.model.module)
    if layers is None:
        raise NotApplicable("needs layers with known names, which a plain callable does not show")
    return layers
