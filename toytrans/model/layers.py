"""Feed-forward, encoder layer and decoder layer (Vaswani et al. 2017, sections 3.1 and 3.3).

Every sub-layer is wrapped in a `Residual`, which adds what it gives to what it was given.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from toytrans.config.schema import ModelSettings
from toytrans.model.attention import Attention, AttentionContext, KeysValues
from toytrans.model.dropout import Dropout
from toytrans.model.positions.base import Positions

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": partial(nn.GELU, approximate="tanh"),
}


class FeedForward(nn.Sequential):
    """Linear, activation, dropout, linear at every place: (B, L, D) -> (B, L, D)."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(
            nn.Linear(settings.d_model, settings.d_ff),
            ACTIVATIONS[settings.activation](),
            Dropout(settings.dropout),
            nn.Linear(settings.d_ff, settings.d_model),
        )

    def draw_weights(self) -> None:
        """Draw matrices Xavier-uniform; biases are zero."""
        for layer in self:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)


class Residual(nn.Module):
    """Layer normalisation, dropout and residual connection around a sub-layer f.

    pre-norm: x + dropout(f(norm(x))) (Xiong et al. 2020)
    post-norm: norm(x + dropout(f(x))) (Vaswani et al. 2017)
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.pre = settings.norm == "pre"
        self.norm = nn.LayerNorm(settings.d_model)
        self.drop = Dropout(settings.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        x = x + self.drop(sublayer(self.norm(x) if self.pre else x))
        return x if self.pre else self.norm(x)


class EncoderLayer(nn.Module):
    """Self-attention over the source, then feed-forward."""

    def __init__(self, settings: ModelSettings, positions: Positions) -> None:
        super().__init__()
        self.self_attention = Attention(settings, positions)
        self.feed_forward = FeedForward(settings)
        self.residuals = nn.ModuleList(Residual(settings) for _ in range(2))

    def draw_weights(self) -> None:
        """Draw the weights of both sub-layers."""
        self.self_attention.draw_weights()
        self.feed_forward.draw_weights()

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        around_attention, around_feed_forward = self.residuals

        def attend(y: Tensor) -> Tensor:
            return self.self_attention(y, context)

        x = around_attention(x, attend)
        return around_feed_forward(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Masked self-attention over the target, cross-attention to memory, feed-forward."""

    def __init__(
        self, settings: ModelSettings, positions: Positions, cross_positions: Positions
    ) -> None:
        super().__init__()
        self.self_attention = Attention(settings, positions)
        self.cross_attention = Attention(settings, cross_positions)
        self.feed_forward = FeedForward(settings)
        self.residuals = nn.ModuleList(Residual(settings) for _ in range(3))

    def draw_weights(self) -> None:
        """Draw the weights of all three sub-layers."""
        self.self_attention.draw_weights()
        self.cross_attention.draw_weights()
        self.feed_forward.draw_weights()

    def forward(
        self,
        x: Tensor,
        self_context: AttentionContext,
        cross_context: AttentionContext,
        memory_kv: KeysValues,
        cache: KeysValues | None = None,
    ) -> Tensor:
        """(N, T, D), and the keys and values of memory, (A, H, S, Dh) each -> (N, T, D).

        A pass in parallel has a row for each source, N = A, and a search with W beams N = A W.
        """
        around_self_attention, around_cross_attention, around_feed_forward = self.residuals

        def attend_to_target(y: Tensor) -> Tensor:
            return self.self_attention(y, self_context, cache=cache)

        def attend_to_memory(y: Tensor) -> Tensor:
            return self.attend_to_memory(y, cross_context, memory_kv)

        x = around_self_attention(x, attend_to_target)
        x = around_cross_attention(x, attend_to_memory)
        return around_feed_forward(x, self.feed_forward)

    def attend_to_memory(
        self, x: Tensor, context: AttentionContext, memory_kv: KeysValues
    ) -> Tensor:
        """Cross-attention: (N, T, D), and the keys and values of A sources -> (N, T, D).

        The W beams of a source stand side by side as queries of its memory: (A, W T, D).
        """
        queries = x.view(len(memory_kv[0]), -1, x.shape[-1])
        return self.cross_attention(queries, context, memory_kv).view_as(x)
