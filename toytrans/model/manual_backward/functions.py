"""Forward and backward of every operation, derived by hand: autograd has no part in it.

Each operation is a pair of plain functions:

    operation(inputs...) -> output, saved          saved: what its backward needs
    operation_backward(G, saved) -> gradients      of the first inputs, in their order

G is the gradient of the loss L with respect to the output, and d_x that with respect to an input
x. Every derivation reads the same way: a small change dx of the input changes L by
dL = <G, dy> = sum of G dy over all elements; write dy through dx, and whatever then stands beside
dx is d_x. `layers` makes a model of these.
"""

import math
from typing import Any

import torch
from torch import Tensor

from toytrans.model.positions.rotary import apply_rotary

Saved = tuple[Any, ...]
"""Tensors and settings that a forward function leaves for its backward function."""

Gradients = tuple[Tensor | None, ...]
"""Of the first inputs in their order; None for one that was not given."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Saved]:
    """y = x W^T + b: x (..., I), W (O, I), b (O) -> (..., O)."""
    y = x @ weight.mT
    return y if bias is None else y + bias, (x, weight, bias is not None)


def linear_backward(gradient: Tensor, saved: Saved) -> Gradients:
    """dy = dx W^T + x dW^T + db, so with one row for each place of G and of x

    d_x = G W        d_W = G^T x        d_b = the rows of G, summed

    since W and b serve every place, and each place adds its share.
    """
    x, weight, has_bias = saved
    rows = gradient.flatten(0, -2)  # (N, O)
    d_weight = rows.mT @ x.flatten(0, -2)
    return gradient @ weight, d_weight, rows.sum(0) if has_bias else None


def softmax(x: Tensor) -> tuple[Tensor, Saved]:
    """w_i = exp(x_i) / sum over j of exp(x_j), over the last axis.

    The largest is taken away first: that changes no w, and nothing overflows.
    """
    powers = torch.exp(x - x.amax(-1, keepdim=True))
    weights = powers / powers.sum(-1, keepdim=True)
    return weights, (weights,)


def softmax_backward(gradient: Tensor, saved: Saved) -> tuple[Tensor]:
    """d_x = (diag(w) - w w^T) G = w (G - <w, G>).

    The trap: the Jacobian of softmax is not w (1 - w) element by element. That is its diagonal
    alone; as the weights sum to one, each x_j moves every w_i:
    dw_i / dx_j = w_i (1 if i = j else 0) - w_i w_j.
    """
    (weights,) = saved
    return (weights * (gradient - (weights * gradient).sum(-1, keepdim=True)),)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    mask_bias: Tensor | None = None,
    has_visible_key: Tensor | None = None,
    keep: Tensor | None = None,
    scale: float | None = None,
    cap: float = 0.0,
) -> tuple[Tensor, Saved]:
    """outputs = (keep softmax(c(s q k^T) + bias + mask)) v (Vaswani et al. 2017, equation 1).

    q: (..., Tq, Dh)
    k, v: (..., Tk, Dh)
    bias: learned, added to the scores
    mask_bias: the mask as numbers
    has_visible_key: False for queries whose weights become zero
    keep: dropout's mask on the weights; these four broadcast to (..., Tq, Tk)
    scale: s; None = 1 / sqrt(Dh), Dh being the width of one head
    cap: c(z) = cap tanh(z / cap); 0 = c(z) = z
    Returns (..., Tq, Dh).
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * (q @ k.mT)  # (..., Tq, Tk)
    tanh = torch.tanh(scores / cap) if cap else None
    masked = scores if tanh is None else cap * tanh
    for added in (bias, mask_bias):
        masked = masked if added is None else masked + added
    weights, _ = softmax(masked)
    weights = weights if has_visible_key is None else weights * has_visible_key
    kept = weights if keep is None else weights * keep
    bias_shape = None if bias is None else bias.shape
    return kept @ v, (q, k, v, weights, kept, keep, tanh, scale, bias_shape)


def attention_backward(gradient: Tensor, saved: Saved) -> Gradients:
    """From the last step to the first. With w the weights, P = keep w and Z the masked scores:

    outputs = P v:          d_v = P^T G, d_P = G v^T, and d_w = keep d_P
    w = softmax(Z):         d_Z = (diag(w) - w w^T) d_w, row by row
    Z = c(S) + bias + mask: d_S = (1 - tanh^2) d_Z; d_bias = d_Z, summed where it broadcasts
    S = s q k^T:            dS = s (dq k^T + q dk^T), so d_q = s d_S k and d_k = s d_S^T q

    The trap: the gradient of k takes the transpose of d_S, Tk rows for Tq columns; without it the
    shapes fit all the same wherever Tq = Tk, as in self-attention. Rows that see nothing have
    w = 0, hence d_Z = 0.
    """
    q, k, v, weights, kept, keep, tanh, scale, bias_shape = saved
    d_v = kept.mT @ gradient
    d_weights = gradient @ v.mT
    d_weights = d_weights if keep is None else d_weights * keep
    (d_masked,) = softmax_backward(d_weights, (weights,))
    d_bias = None if bias_shape is None else d_masked.sum_to_size(bias_shape)
    d_scores = d_masked if tanh is None else d_masked * (1 - tanh * tanh)
    return scale * (d_scores @ k), scale * (d_scores.mT @ q), d_v, d_bias


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Saved]:
    """Pairs (a, b), numbers i and i + Dh / 2 of x (..., L, Dh), rotated by an angle each.

    cos, sin: (L, Dh / 2), of the angles: (a cos - b sin, b cos + a sin) (Su et al. 2021)
    """
    return apply_rotary(x, cos, sin), (cos, sin)


def rotary_backward(gradient: Tensor, saved: Saved) -> tuple[Tensor]:
    """A rotation is an orthogonal matrix R: dy = R dx, so d_x = R^T G, the rotation back."""
    cos, sin = saved
    return (apply_rotary(gradient, cos, -sin),)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Saved]:
    """y = n weight + bias with n = (x - mean) r and r = 1 / root of (variance + epsilon), over the
    last axis (Ba et al. 2016); the variance divides by D, not by D - 1."""
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    inverse = torch.rsqrt(variance + epsilon)
    normal = centred * inverse
    return normal * weight + bias, (normal, inverse, weight)


def layer_norm_backward(gradient: Tensor, saved: Saved) -> Gradients:
    """d_weight = sum of G n over all places, d_bias = sum of G, and through n with g = G weight:

    d_x = r (g - mean(g) - n mean(g n))

    because dn = r (dx - mean(dx)) + (x - mean) dr, and from r = (variance + epsilon)^(-1/2)
    dr = -r^3 dvariance / 2 = -r^3 mean((x - mean) dx). The trap: the same r, with epsilon in it,
    stands in forward and backward. Without it the gradient is off by a factor that grows as the
    variance shrinks, and a row of equal numbers divides by zero.
    """
    normal, inverse, weight = saved
    g = gradient * weight
    shift = g.mean(-1, keepdim=True)
    stretch = normal * (g * normal).mean(-1, keepdim=True)
    places = tuple(range(gradient.dim() - 1))
    d_x = inverse * (g - shift - stretch)
    return d_x, (gradient * normal).sum(places), gradient.sum(places)


def relu(x: Tensor) -> tuple[Tensor, Saved]:
    """y = max(x, 0)."""
    return x.clamp(min=0), (x,)


def relu_backward(gradient: Tensor, saved: Saved) -> tuple[Tensor]:
    """dy = dx where x > 0, else 0; at 0, where there is no derivative, 0 as torch takes it."""
    (x,) = saved
    return (gradient * (x > 0),)


def gelu(x: Tensor) -> tuple[Tensor, Saved]:
    """y = x F(x), F the normal distribution: F(x) = (1 + erf(x / root 2)) / 2 (Hendrycks and
    Gimpel 2016)."""
    below = (1 + torch.erf(x * math.sqrt(0.5))) / 2
    return x * below, (x, below)


def gelu_backward(gradient: Tensor, saved: Saved) -> tuple[Tensor]:
    """y' = F(x) + x f(x) with the density f(x) = F'(x) = exp(-x^2 / 2) / root of 2 pi."""
    x, below = saved
    density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return (gradient * (below + x * density),)


STRETCH, CUBIC = math.sqrt(2 / math.pi), 0.044715


def gelu_tanh(x: Tensor) -> tuple[Tensor, Saved]:
    """y = x (1 + t) / 2 with t = tanh(c (x + a x^3)), c = root of 2 / pi, a = 0.044715 (Hendrycks
    and Gimpel 2016)."""
    tanh = torch.tanh(STRETCH * (x + CUBIC * x**3))
    return x * (1 + tanh) / 2, (x, tanh)


def gelu_tanh_backward(gradient: Tensor, saved: Saved) -> tuple[Tensor]:
    """y' = (1 + t) / 2 + x t' / 2 with t' = (1 - t^2) c (1 + 3 a x^2)."""
    x, tanh = saved
    slope = (1 - tanh * tanh) * STRETCH * (1 + 3 * CUBIC * x * x)
    return (gradient * ((1 + tanh) / 2 + x * slope / 2),)


def embedding(table: Tensor, ids: Tensor) -> tuple[Tensor, Saved]:
    """Row ids[...] of the table (V, D): ids (...) -> (..., D)."""
    return table[ids], (ids, len(table))


def embedding_backward(gradient: Tensor, saved: Saved) -> tuple[Tensor]:
    """The same as linear on one-hot rows: row i of the table gets the sum of G over all places
    where id i stood."""
    ids, rows = saved
    d_table = gradient.new_zeros(rows, gradient.shape[-1])
    return (d_table.index_add_(0, ids.flatten(), gradient.flatten(0, -2)),)


def dropout(x: Tensor, keep: Tensor) -> tuple[Tensor, Saved]:
    """y = x keep, where keep is 0 or 1 / (1 - rate) (Srivastava et al. 2014)."""
    return x * keep, (keep,)


def dropout_backward(gradient: Tensor, saved: Saved) -> tuple[Tensor]:
    """dy = keep dx: what fell out forwards falls out backwards, by the same draw."""
    (keep,) = saved
    return (gradient * keep,)


def cross_entropy(
    logits: Tensor, labels: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0
) -> tuple[Tensor, Saved]:
    """L_n = -sum over c of t_nc log p_nc with p = softmax(logits): (N, V), (N) -> (N) in nats.

    t: 1 at the label and 0 elsewhere; smoothed by e it is 1 - e + e / V and e / V (Szegedy et al.
    2016). Places whose label is ignore_index lose nothing and teach nothing: t = 0 and L = 0.
    """
    real = labels.ne(ignore_index)
    shifted = logits - logits.amax(-1, keepdim=True)
    log_p = shifted - shifted.exp().sum(-1, keepdim=True).log()
    spread = label_smoothing / logits.shape[-1]
    wanted = torch.full_like(logits, spread)
    wanted.scatter_(-1, labels.where(real, 0)[:, None], 1 - label_smoothing + spread)
    losses = -(wanted * log_p).sum(-1)
    return losses.where(real, 0), (log_p, wanted, real)


def cross_entropy_backward(gradient: Tensor, saved: Saved) -> tuple[Tensor]:
    """d_logits = G (p - t), and 0 at ignored labels.

    log p_c = x_c - log sum of exp(x), so d log p_c / dx_k = [c = k] - p_k; weighted by t_c, which
    sum to one, and with the sign turned: p_k - t_k. G (N) is a number a place.
    """
    log_p, wanted, real = saved
    return ((gradient * real)[:, None] * (log_p.exp() - wanted),)
