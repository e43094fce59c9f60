"""Sub-layers: residual connections, norms and feed-forward, found by the names of modules."""

import contextlib
import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from toytrans.checks.batch import Batch, largest
from toytrans.checks.copies import zeroed
from toytrans.checks.embeddings import embeddings_changed, embeddings_of
from toytrans.checks.result import CannotJudge, NotApplicable, Result, measured
from toytrans.checks.scale import attentions
from toytrans.checks.seen import attention_seen
from toytrans.checks.subject import Ids

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


Ends = dict[str, nn.Module]
"""The last matrices of sub-layers, by their names."""


def _ends(batch: Batch) -> tuple[Ends, Ends]:
    """Those of attention and of feed-forward whose names are known."""
    module = batch.model.module
    modules = {} if module is None else dict(module.named_modules())
    attention = {name: part for name, part in modules.items() if ATTENTION_END.search(name)}
    known = {name for name in modules if FEED_FORWARD_END.search(name) and not EXPERT.search(name)}
    return attention, {name: modules[name] for name in modules if attention and name in known}


def _of(half: str, ends: Ends) -> list[nn.Module]:
    """Those in the "enc"oder or the "dec"oder, by the word that a name says first."""
    found = ((HALF.search(name), module) for name, module in ends.items())
    return [module for word, module in found if word is not None and word[0].startswith(half)]


def input_passes_by(batch: Batch) -> Result:
    """With every sub-layer silenced, logits still depend on the input: residual connections
    carry it past (He et al. 2016; Vaswani et al. 2017, section 3.1)."""
    attention, forward = _ends(batch)
    halves = {half: _of(half, attention | forward) for half in ("enc", "dec")}
    is_told = sum(map(len, halves.values())) == len(attention | forward)
    if not is_told or not all(halves.values()) or not batch.facts.has_source:
        return _input_passes_attention(batch)
    whole = batch.facts.is_textbook or all(_of(h, e) for h in halves for e in (attention, forward))
    src = torch.where(torch.isin(batch.src, batch.symbols), batch.other(batch.src), batch.src)
    tgt_in = torch.cat((batch.tgt_in[:, :1], batch.other(batch.tgt_in[:, 1:])), 1)
    changed = batch.real.clone()
    changed[:, 0] = False
    asked = {
        "enc": (Ids(src, batch.tgt_in), batch.real),
        "dec": (Ids(batch.src, tgt_in), changed),
    }
    by = {}
    for half, (ids, where) in asked.items():
        with silenced(halves[half]):
            by[half] = batch.differ(batch.ask(*ids), batch.ask(*batch.ids), where)
    least = min(by, key=lambda half: by[half])
    if not by[least] > batch.tolerance and not whole:
        raise CannotJudge(
            f"with the {least}oder's attention silenced its input changes nothing; needs layers of "
            "attention and feed-forward, with known names, on both sides"
        )
    return measured(
        by[least],
        batch.tolerance,
        "with every sub-layer silenced the input still reaches the logits, past encoder and "
        "decoder",
        f"with the {least}oder's sub-layers silenced its input changes nothing: a residual "
        "connection is missing (x + sublayer(x))",
        must_change=True,
    )


def _input_passes_attention(batch: Batch) -> Result:
    """The same of layers whose names are not known, where what attention gives is zero."""
    facts = batch.facts
    src, tgt_in, _ = batch.model.batch([(batch.row(4), batch.row(9))])
    src = src[:, facts.real_source(src)[0] & facts.has_source]
    tgt_in = tgt_in[:, facts.real_inputs(tgt_in)[0]]
    queries, keys = tgt_in.shape[1], src.shape[1]
    others = torch.where(torch.isin(src, batch.symbols), batch.other(src), src)
    later = torch.cat((tgt_in[:, :1], batch.other(tgt_in[:, 1:])), 1)
    sides = {
        "encoder": ({(keys, keys)}, Ids(others, tgt_in)),
        "decoder": ({(queries, queries), (queries, keys)}, Ids(src, later)),
    }
    by = {}
    for side, (silent, changed) in sides.items():
        logits = []
        for ids in (Ids(src, tgt_in), changed):
            handed = ids.src.clone(), ids.tgt_in.clone()
            with (
                batch.copy.without_dropout_and_with_state_kept(),
                attention_seen(None, *handed, silent=silent) as seen,
            ):
                logits.append(batch.model.ask(*handed))
        if sum(a.is_attention and a.shape in silent for a in seen) > 1:
            by[side] = largest(batch.moved(*logits)[:, 1:])
    if not by:
        raise NotApplicable("no attention is seen in more than one layer")
    least = min(by, key=lambda side: by[side])
    return measured(
        by[least],
        batch.tolerance,
        "without attention the input still reaches the logits",
        f"without its attention the {least}'s input changes nothing: a residual connection is "
        "missing (x + sublayer(x))",
        must_change=True,
    )


def scale_is_normed(batch: Batch) -> Result:
    """Embeddings a million times as large give no larger logits than a thousand times: layer
    normalisation holds them (Ba et al. 2016)."""
    sizes = []
    for factor in (1e3, 1e6):

        def change(_: str, embedded: Tensor, factor: float = factor) -> Tensor:
            return embedded * factor

        with embeddings_changed(batch, change, embeddings_of(batch)) as met:
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
    attention, ends = _ends(batch)
    if not ends and not batch.facts.is_textbook:
        if batch.model.module is None or not attentions(batch):
            raise NotApplicable("needs layers of attention and feed-forward")
        raise CannotJudge("no feed-forward sub-layer has a name that is known")
    by = {}
    for name, module in ends.items():
        with silenced([module]):
            by[name] = batch.differ(batch.ask(*batch.ids), batch.logits, batch.real)
    least = min(by, key=lambda name: by[name], default="none of the layers has one;")
    count = sum(1 for name in attention if not CROSS.search(name))  # of self-attention
    missing = batch.facts.is_textbook and len(ends) < count
    return measured(
        0.0 if missing else by[least],
        batch.tolerance,
        f"{len(by)} feed-forward sub-layers, each moves the logits",
        f"{len(ends)} feed-forward sub-layers in {count} layers: some layer lacks its own"
        if missing
        else f"{least} moves nothing: its feed-forward sub-layer is bypassed",
        must_change=True,
    )


def silenced(modules: Iterable[nn.Module]) -> contextlib.AbstractContextManager[None]:
    """Their weights and biases are zero meanwhile."""
    return zeroed(parameter for module in modules for parameter in module.parameters())
