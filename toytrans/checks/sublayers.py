"""Sub-layers: residual connections, norms and feed-forward."""

import re

import torch
from torch import Tensor, nn

from toytrans.checks.attention import attention_seen, attentions
from toytrans.checks.batch import Batch, embeddings_changed, largest
from toytrans.checks.result import Result, Told, measured, unsure
from toytrans.checks.subject import Ids, zeroed

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


def _ends(batch: Batch) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """The last matrices of attention and of feed-forward whose names are known."""
    module = batch.model.module
    modules = {} if module is None else dict(module.named_modules())
    attention = {name: part for name, part in modules.items() if ATTENTION_END.search(name)}
    known = {name for name in modules if FEED_FORWARD_END.search(name) and not EXPERT.search(name)}
    return attention, {name: modules[name] for name in modules if attention and name in known}


def input_passes_by(batch: Batch) -> Result:
    """With attention silenced, and feed-forward where both halves have names that are known, logits
    still depend on the input: residual connections carry it past (He et al. 2016; Vaswani et al.
    2017, section 3.1)."""
    ids = batch.pair(4, 9)
    src = torch.where(torch.isin(ids.src, batch.symbols), batch.other(ids.src), ids.src)
    later = torch.cat((ids.tgt_in[:, :1], batch.other(ids.tgt_in[:, 1:])), 1)
    # of each half how many queries its attentions have, other ids, and the feed-forward weights
    sides = {"decoder": (ids.tgt_in.shape[1], Ids(ids.src, later), list[Tensor]())}
    if batch.facts.has_source:
        sides = {"encoder": (ids.src.shape[1], Ids(src, ids.tgt_in), list[Tensor]())} | sides
    attention, forward = _ends(batch)
    for name, module in forward.items():
        if word := HALF.search(name):  # the first that a name says
            for side in sides:
                sides[side][2].extend(module.parameters() if side.startswith(word[0]) else ())
    is_named, by = all(weights for _, _, weights in sides.values()), {}
    for side, (queries, changed, weights) in sides.items():
        logits = []
        for asked in (ids, changed):
            handed = asked.src.clone(), asked.tgt_in.clone()
            off = zeroed(weights if is_named else ())
            with off, attention_seen(None, *handed, silent=queries) as seen:
                logits.append(batch.model.ask(*handed))
        count = sum(each.is_attention and each.shape[0] == queries for each in seen)
        if count > 1 or (count and is_named):  # a single one may be no layer of a stack
            by[side] = largest(batch.moved(*logits)[:, 1:])
    if not by:
        raise Told("does not apply", "no attention is seen in more than one layer")
    least = min(by, key=lambda side: by[side])
    is_whole = is_named or not attention or not batch.facts.has_source or batch.facts.is_textbook
    if not is_whole and not by[least] > batch.tolerance:  # what else is in such layers, who knows
        raise unsure(
            f"with the {least}'s attention silenced its input changes nothing; needs layers of "
            "attention and feed-forward, with known names, on both sides"
        )
    return measured(
        by[least],
        batch.tolerance,
        "with every sub-layer silenced the input still reaches the logits",
        f"with the {least}'s sub-layers silenced its input changes nothing: a residual connection "
        "is missing (x + sublayer(x))",
        must_change=True,
    )


def scale_is_normed(batch: Batch) -> Result:
    """Embeddings a million times as large give no larger logits than a thousand times: layer
    normalisation holds them (Ba et al. 2016)."""

    def asked(factor: float) -> tuple[float, set[str]]:
        with embeddings_changed(batch, lambda _, embedded: embedded * factor) as met:
            logits = batch.ask(*batch.ids)[batch.real]
        return largest(logits[:, batch.counted_ids & (logits.abs() < 1e30).all(0)]), met

    (small, met), (large, _) = asked(1e3), asked(1e6)
    ratio = large / max(small, 1e-30)
    cause = f"embeddings 1,000 times as large make logits {ratio:,.0f} times as large: nothing "
    if not ratio <= 10 and not batch.facts.is_textbook:
        raise unsure(f"{cause}normalises what the layers pass on, which may be meant")
    if batch.facts.has_source and met != {"src", "tgt"}:
        raise unsure("needs the embeddings of both source and target (embedding=...)")
    return measured(
        ratio,
        10.0,
        f"embeddings 1,000 times as large: logits {ratio:.2f} times as large",
        f"{cause}normalises what the layers pass on; are the layer norms applied?",
    )


def feed_forward_at_work(batch: Batch) -> Result:
    """Silencing the feed-forward sub-layer of any layer changes the logits."""
    attention, ends = _ends(batch)
    if not ends and not batch.facts.is_textbook:
        if batch.model.module is None or not attentions(batch):
            raise Told("does not apply", "needs layers of attention and feed-forward")
        raise unsure("no feed-forward sub-layer has a name that is known")
    by = {}
    for name, module in ends.items():
        with zeroed(module.parameters()):
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
