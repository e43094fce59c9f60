"""The bias of one query and key, in plain Python."""

import math

from conftest import VOCABULARY

from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID


def counted_bias(anchor, table, t, j, src, raw):
    """The docstring's formula of a head that counts; raw: what it makes of each place of memory."""
    order = [k for k, i in enumerate(src) if i not in (PAD_ID, BOS_ID, EOS_ID)]
    order += [src.index(EOS_ID)]
    if anchor.endswith("_end"):
        order = [*order[-2::-1], 0]
    reached, running, c, added = 0.0, 0.0, {}, {}
    for k in order[:-1]:
        x = raw[k]
        bounded = max(-1.0, min(1.0, 1.1 * math.tanh(x + 1)))
        running += bounded if anchor.startswith("count") else math.exp(min(x, 6))
        added[k] = max(running, reached) - reached
        c[k] = reached = max(running, reached)
    c[order[-1]], added[order[-1]] = reached + 1, 1.0
    d = t + 1 - c.get(j, 0.0)  # what is not counted, BOS or EOS, is at the start of it
    low = math.floor(d)
    values = [16 * table[max(-3, min(3, k)) + 3] - abs(k) for k in (low, low + 1)]
    between = values[0] + (d - low) * (values[1] - values[0])
    return between + math.log(0.01 + added.get(j, 0.0))


def anchored_bias(anchor, table, t, j, src, tgt_in=()):
    """The docstring's formula for one head, one target place t and one source place j."""
    gain, slope, plus = 16.0, 1.0, VOCABULARY.encode(["+"])[0]
    n = sum(i not in (PAD_ID, BOS_ID, EOS_ID) for i in src)
    if anchor == "start":
        separators = [k for k in range(1, j) if src[k] == plus]
        d = t - (j - separators[-1] if separators else j)
    elif anchor == "end":
        d = t - (n + 1 - j)
    elif anchor == "wrap":
        d = t - n - j
    elif anchor == "double":
        separators = [k for k in range(1, j) if src[k] == plus]
        d = 2 * t - (j - separators[-1] if separators else j)
    elif anchor == "double_wrap":
        d = 2 * (t - n // 2) - j
    elif anchor == "first":
        d = -src[:j].count(src[j])
    else:
        before, total = tgt_in[:t].count(tgt_in[t]), src.count(tgt_in[t])
        if src[j] == EOS_ID:
            d = before - total
        else:
            d = before - src[:j].count(src[j]) if src[j] == tgt_in[t] else n + 2
    return gain * table[max(-3, min(3, d)) + 3] - slope * abs(d)
