"""Sub-layers: residual connections, norms and feed-forward."""

import re

import torch
from torch import Tensor, nn

from toytrans.checks.attention import attention_seen, attentions
from toytrans.checks.batch import Batch, largest
from toytrans.checks.embeddings import embeddings_changed
from toytrans.checks.modes import zeroed
from toytrans.checks.result import CannotJudge, NotApplicable, Result, measured
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


def _ends(batch: Batch) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """The last matrices of attention and of feed-forward whose names are known."""
    module = batch.model.module
    modules = {} if module is None else dict(module.named_modules())
    attention = {name: part for name, part in modules.items() if ATTENTION_END.search(name)}
    known = {name for name in modules if FEED_FORWARD_END.search(name) and not EXPERT.search(name)}
    return attention, {name: modules[name] for name in modules if attention and name in known}


def _weights(ends: dict[str, nn.Module], half: str) -> list[Tensor]:
    """Of modules in the "encoder" or the "decoder", by the word that a name says first."""
    found: list[Tensor] = []
    for name, module in ends.items():
        word = HALF.search(name)
        if word is not None and half.startswith(word[0]):
            found += list(module.parameters())
    return found


def input_passes_by(batch: Batch) -> Result:
    """With every sub-layer silenced whose name is known, or attention where names are not, logits
    still depend on the input: residual connections carry it past (He et al. 2016; Vaswani et al.
    2017, section 3.1)."""
    attention, forward = _ends(batch)
    ids = batch.pair(4, 9)
    queries, keys = ids.tgt_in.shape[1], ids.src.shape[1]
    src = torch.where(torch.isin(ids.src, batch.symbols), batch.other(ids.src), ids.src)
    later = torch.cat((ids.tgt_in[:, :1], batch.other(ids.tgt_in[:, 1:])), 1)
    silenced = {(queries, queries), (queries, keys)}
    sides = {"decoder": (silenced, Ids(ids.src, later))}
    halves: dict[str, list[Tensor]] = {}
    if batch.facts.has_source:
        sides = {"encoder": ({(keys, keys)}, Ids(src, ids.tgt_in))} | sides
        halves = {side: _weights(attention | forward, side) for side in sides}
    is_named, by = bool(halves) and all(halves.values()), {}
    for side, (silent, changed) in sides.items():
        weights, logits = halves[side] if is_named else [], []
        silent = set() if is_named else silent
        for asked in (ids, changed):
            handed = asked.src.clone(), asked.tgt_in.clone()
            with zeroed(weights), attention_seen(None, *handed, silent=silent) as seen:
                logits.append(batch.model.ask(*handed))
        if is_named or sum(a.is_attention and a.shape in silent for a in seen) > 1:
            by[side] = largest(batch.moved(*logits)[:, 1:])
    if not by:
        raise NotApplicable("no attention is seen in more than one layer")
    least = min(by, key=lambda side: by[side])
    is_whole = batch.facts.is_textbook or all(_weights(forward, side) for side in sides)
    if is_named and not is_whole and not by[least] > batch.tolerance:
        raise CannotJudge(
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
    sizes = []
    for factor in (1e3, 1e6):

        def larger(_: str, embedded: Tensor, by: float = factor) -> Tensor:
            return embedded * by

        with embeddings_changed(batch, larger) as met:
            logits = batch.ask(*batch.ids)[batch.real]
        sizes.append(largest(logits[:, batch.counted_ids & (logits.abs() < 1e30).all(0)]))
    ratio = sizes[1] / max(sizes[0], 1e-30)
    cause = f"embeddings 1,000 times as large make logits {ratio:,.0f} times as large: nothing "
    if not ratio <= 10 and not batch.facts.is_textbook:
        raise CannotJudge(f"{cause}normalises what the layers pass on, which may be meant")
    if batch.facts.has_source and met != {"src", "tgt"}:
        raise CannotJudge("needs the embeddings of both source and target (embedding=...)")
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
            raise NotApplicable("needs layers of attention and feed-forward")
        raise CannotJudge("no feed-forward sub-layer has a name that is known")
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
