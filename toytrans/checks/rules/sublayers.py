"""Sub-layers: residual connections, norms and feed-forward take part."""

import re

import torch
from torch import Tensor, nn

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked, embeddings_changed
from toytrans.checks.ids import Ids
from toytrans.checks.numbers import largest
from toytrans.checks.outcome import Evidence, Outcome, does_not_apply, measured, passes, unsure
from toytrans.checks.registry import WITH_SOURCE, Check
from toytrans.checks.softmaxes import Softmax, module_of, softmaxes_of, softmaxes_seen
from toytrans.checks.torch_modes import zeroed

SUBLAYERS = Check(
    "sublayers",
    "residuals, norms and feed-forward take part",
    how="attention silenced, and feed-forward of known names; larger embeddings",
    limits="Feed-forward of layers whose names are unknown is not seen, nor is the residual "
    "connection around it. The last line of the report then says so. A residual connection that "
    "carries the normed input (x = norm(x), then x + sublayer(x)) is not told, because that makes "
    "a post-norm model of a pre-norm one, and such a model is sound.",
    follows=("rows", "scale", "reach", "weights", "source", "target", "pads", "future"),
)

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


def _ends(asked: Asked) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """The last matrices of attention and of feed-forward whose names are known."""
    module = asked.model.module
    modules = {} if module is None else dict(module.named_modules())
    attention = {name: part for name, part in modules.items() if ATTENTION_END.search(name)}
    known = {name for name in modules if FEED_FORWARD_END.search(name) and not EXPERT.search(name)}
    return attention, {name: modules[name] for name in modules if attention and name in known}


# Residual connections ------------------------------------------------------------------------

RESIDUAL_MISSING = SUBLAYERS.cause(
    "residual_missing",
    when="with every sub-layer of one half silenced, its input does not reach the logits",
    words="with the {half}'s sub-layers silenced its input changes nothing: a residual connection "
    "is missing (x + sublayer(x))",
)

NAMES_UNKNOWN = SUBLAYERS.doubt(
    "names_unknown",
    when="silencing the attention of one half cuts it off, and its feed-forward has no known name",
    words="with the {half}'s attention silenced its input changes nothing",
    remedy="needs layers of attention and feed-forward, with known names, on both sides",
)


@SUBLAYERS.part("residual connections")
def residual_connections(asked: Asked) -> Outcome:
    """With attention silenced, and feed-forward where both halves have names that are known, logits
    still depend on the input: residual connections carry it past (He et al. 2016; Vaswani et al.
    2017, section 3.1)."""
    passed = _past_silent_layers(asked, asked.pair(4, 9))
    if passed.verdict == "PASS" or passed.difference is None:
        return passed
    # the latents of a Perceiver may be as many as a side has places, by chance
    return _past_silent_layers(asked, asked.pair(6, 11))


def _past_silent_layers(asked: Asked, ids: Ids) -> Outcome:
    """Whether logits depend on a pair while every attention with as many queries as a side has
    places is silent."""
    src = torch.where(torch.isin(ids.src, asked.symbols), asked.other(ids.src), ids.src)
    later = torch.cat((ids.tgt_in[:, :1], asked.other(ids.tgt_in[:, 1:])), 1)
    # of each half how many queries its attentions have, other ids, and the feed-forward weights
    halves = {"decoder": (ids.tgt_in.shape[1], Ids(ids.src, later), list[Tensor]())}
    if asked.facts.has_source:
        halves = {"encoder": (ids.src.shape[1], Ids(src, ids.tgt_in), list[Tensor]())} | halves
    attention, forward = _ends(asked)
    for name, module in forward.items():
        if word := HALF.search(name):  # the first that a name says
            for half in halves:
                halves[half][2].extend(module.parameters() if half.startswith(word[0]) else ())
    is_named, by = all(weights for _, _, weights in halves.values()), {}
    for half, (queries, changed, weights) in halves.items():
        logits = []
        for pair in (ids, changed):
            handed = asked.model.placed(pair.src, pair.tgt_in)
            off = zeroed(weights if is_named else ())
            with off, softmaxes_seen(None, *handed, silent=queries) as seen:
                logits.append(asked.model.ask(*handed))
        count = sum(each.is_attention and each.shape[0] == queries for each in seen)
        if count > 1 or (count and is_named):  # a single one may be no layer of a stack
            by[half] = largest(asked.moved(*logits)[:, 1:])
    if not by:
        return does_not_apply("no attention is seen in more than one layer")
    least = min(by, key=lambda half: by[half])
    is_whole = is_named or not attention or not asked.facts.has_source
    is_whole = is_whole or "residuals" in asked.facts.promises
    if not is_whole and not by[least] > asked.tolerance:  # what else is in such layers, who knows
        return unsure(NAMES_UNKNOWN, half=least)
    said = "with every sub-layer silenced the input still reaches the logits"
    return measured(
        by[least], asked.tolerance, said, RESIDUAL_MISSING, must_change=True, half=least
    )


# Queries of cross-attention ------------------------------------------------------------------

QUERIES_WITHOUT_RESIDUAL = SUBLAYERS.doubt(
    "queries_without_residual",
    when="with self-attention silenced, all queries of cross-attention are one and the same",
    words="{where}with self-attention silenced every query is the same: cross-attention is asked "
    "with what self-attention gives, and not with x + self_attention(x)",
    remedy="is the residual connection added before cross-attention?",
)


@SUBLAYERS.part("queries of cross-attention", kinds=WITH_SOURCE)
def queries_of_cross_attention(asked: Asked) -> Outcome:
    """With attention silenced, the queries of cross-attention are still those of different tokens:
    a residual connection carries them past self-attention."""
    ids = asked.pair(5, 9)
    queries, keys = ids.tgt_in.shape[1], ids.src.shape[1]
    crossing = []
    for silent in (0, queries):
        handed = asked.model.placed(ids.src, ids.tgt_in)
        with softmaxes_seen(asked.model.module, *handed, silent=silent) as seen:
            asked.model.ask(*handed)
        at_self = [n for n, each in enumerate(seen) if each.shape == (queries, queries)]
        behind = seen[min(at_self, default=len(seen)) :]
        crossing.append([each for each in behind if each.shape == (queries, keys)])
    for spoken, alone in zip(*crossing, strict=True):
        if _differ_by_query(spoken) and not _differ_by_query(alone):
            name = module_of(asked.model.module, alone)
            return unsure(QUERIES_WITHOUT_RESIDUAL, where=f"{name}: " * bool(name))
    if not crossing[0]:
        return does_not_apply("no cross-attention is seen behind self-attention")
    return passes("queries of cross-attention differ with self-attention silenced")


def _differ_by_query(softmax: Softmax) -> bool:
    """Whether its weights are others for another query."""
    weights = softmax.weights.nan_to_num(0.0)
    return largest((weights - weights[..., :1, :]).abs()) > tolerances.LOGITS[torch.float64]


# Norms ---------------------------------------------------------------------------------------

NORM_MISSING = SUBLAYERS.cause(
    "norm_missing",
    when="embeddings a thousand times as large make logits more than ten times as large",
    words="embeddings 1,000 times as large make logits {ratio:,.0f} times as large: nothing "
    "normalises what the layers pass on",
    remedy="are the layer norms applied?",
)

NO_NORMS = SUBLAYERS.doubt(
    "no_norms",
    when="the same, of a model that does not promise norms",
    words=NORM_MISSING.words,
    remedy="which may be meant; if it has norms, give promises=['norms']",
)
EMBEDDINGS_NEEDED = SUBLAYERS.doubt(
    "embeddings_needed",
    when="the embeddings of one side alone are known",
    words="needs the embeddings of both source and target (embedding=...)",
)


@SUBLAYERS.part("norms")
def norms(asked: Asked) -> Outcome:
    """Embeddings a million times as large give no larger logits than a thousand times: layer
    normalisation holds them (Ba et al. 2016). A model without norms may be meant, so it fails only
    where `promises=["norms"]` says that it has them."""

    def largest_logit(factor: float) -> tuple[float, set[str]]:
        with embeddings_changed(asked, lambda _, embedded: embedded * factor) as met:
            logits = asked.ask(*asked.ids)[asked.real]
        return largest(logits[:, asked.counted_ids & (logits.abs() < 1e30).all(0)]), met

    (small, met), (large, _) = largest_logit(1e3), largest_logit(1e6)
    ratio = large / max(small, 1e-30)
    if not ratio <= tolerances.LARGER_LOGITS and "norms" not in asked.facts.promises:
        return unsure(NO_NORMS, ratio=ratio)
    if asked.facts.has_source and met != {"src", "tgt"}:
        return unsure(EMBEDDINGS_NEEDED)
    said = f"embeddings 1,000 times as large: logits {ratio:.2f} times as large"
    return measured(ratio, tolerances.LARGER_LOGITS, said, NORM_MISSING, ratio=ratio)


# Feed-forward --------------------------------------------------------------------------------


def is_missing(evidence: Evidence) -> bool:
    """Whether there are fewer feed-forward sub-layers than layers."""
    return bool(evidence["is_missing"])


FEED_FORWARD_MISSING = SUBLAYERS.cause(
    "feed_forward_missing",
    when="there are fewer feed-forward sub-layers than layers, where every layer promises one",
    words="{found} feed-forward sub-layers in {layers} layers: some layer lacks its own",
    fits=is_missing,
)
FEED_FORWARD_BYPASSED = SUBLAYERS.cause(
    "feed_forward_bypassed",
    when="the logits stay as they are where a feed-forward sub-layer is silenced",
    words="{name} moves nothing: its feed-forward sub-layer is bypassed",
    remedy="is its result added?",
)

FEED_FORWARD_UNKNOWN = SUBLAYERS.doubt(
    "feed_forward_unknown",
    when="no module has a name that feed-forward sub-layers are known by",
    words="no feed-forward sub-layer has a name that is known",
)


@SUBLAYERS.part("feed-forward")
def feed_forward(asked: Asked) -> Outcome:
    """Silencing the feed-forward sub-layer of any layer changes the logits."""
    attention, ends = _ends(asked)
    is_promised = "feed_forward" in asked.facts.promises
    if not ends and not is_promised:
        if asked.model.module is None or not softmaxes_of(asked):
            return does_not_apply("needs layers of attention and feed-forward")
        return unsure(FEED_FORWARD_UNKNOWN)
    by = {}
    for name, module in ends.items():
        with zeroed(module.parameters()):
            by[name] = asked.differ(asked.ask(*asked.ids), asked.logits, asked.real)
    least = min(by, key=lambda name: by[name], default="")
    layers = sum(1 for name in attention if not CROSS.search(name))  # of self-attention
    missing = is_promised and len(ends) < layers
    return measured(
        0.0 if missing or not by else by[least],
        asked.tolerance,
        f"{len(by)} feed-forward sub-layers, each moves the logits",
        FEED_FORWARD_MISSING,
        FEED_FORWARD_BYPASSED,
        must_change=True,
        is_missing=missing or not by,
        found=len(ends),
        layers=layers,
        name=least,
    )
