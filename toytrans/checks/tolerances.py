"""Every tolerance of the checks, in one table.

A tolerance of logits is a share of how large logits are, which `Asked` measures. Rounding in sound
models stays below 6e-15 of it in fp64 and below 1e-6 in fp32, over 20 shapes of four models; a leak
of a thousandth in one layer moves the logits by 3e-5 of it and more.
"""

import torch

LOGITS = {torch.float64: 1e-9, torch.float32: 1e-5}
"""How far logits may move in the two precisions that are compared exactly."""

LOGITS_IN_HALF = 2e-2
"""The same in half precision, at least."""

MOST_IN_SINGLE, MOST_IN_HALF = 1e-4, 1e-1
"""What those of fp32 and of half precision may grow to, where this model's rounding is larger."""

OF_A_COPY = 1e-2
"""Share by which the logits of a copy in fp64 may differ from those in fp32."""

RULED_OUT = 5e3
"""Logits beyond it stand for -inf, where every place has smaller ones too."""

LOSS, LOSS_IN_HALF = 1e-5, 2e-2
"""Shares of a loss, which may be computed in single precision."""

CERTAIN = 0.5
"""What logits that are certain of the labels cost at most, as a share of what others cost."""

TIMES_LOG_SIZE = 8.0
"""How many logarithms of the vocabulary's size a loss may be large."""

ONE_SOFTMAX = 1e-3
"""How far probabilities may be from summing to one."""

SCALE = 0.01
"""Share by which a scale may differ, for half precision rounds it."""

SUM_OF_WEIGHTS = 0.05
"""How far the weights of a query may be from summing to one."""

SHORT_OF_ONE = 1e-4
"""By how much they fall short of one, at least, where some were taken away behind softmax."""

TRAINED_SCORE = 80.0
"""How large the scores of trained models are."""

EQUAL_WEIGHTS = 1e-5
"""Share by which weights of two equal keys may differ, where no position tells them apart."""

CLOSED_SCORE = -10.0
"""A score below it gets no weight to speak of."""

LARGER_LOGITS = 10.0
"""How many times as large logits may be where embeddings are a thousand times as large."""

FIRST_MODULE_SHARE = (1e-7, 1e-2)
"""Share of a module's output by which it must differ to be the first that does: at least, at most;
between them a hundred roundings."""

LAYOUT = 1e-4
"""Share of the logits by which other rows may move before a layout is ruled out."""
