"""Feed-forward, encoder layer, decoder layer (Vaswani et al. 2017, sections 3.1 and 3.3)."""

from collections.abc import Callable

from torch import Tensor, nn

from toytrans.config import ModelConfig
from toytrans.model.attention import Attention, Cache, KeysValues
from toytrans.model.dropout import Dropout
from toytrans.model.scheme import Positions
from toytrans.model.sight import Blocks, Sight

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
}


class FeedForward(nn.Sequential):
    """Linear, activation, dropout, linear: the same weights at every place. (B, L, D) -> same."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(
            nn.Linear(model.d_model, model.d_ff),
            ACTIVATIONS[model.activation](),
            Dropout(model.dropout),
            nn.Linear(model.d_ff, model.d_model),
        )


class Residual(nn.Module):
    """A sub-layer with its layer normalisation, dropout and residual connection.

    pre-norm: x + drop(f(norm(x))) (Xiong et al. 2020); post-norm: norm(x + drop(f(x))) (2017).
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.pre = model.norm == "pre"
        self.norm = nn.LayerNorm(model.d_model)
        self.drop = Dropout(model.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            output: Tensor = x + self.drop(sublayer(self.norm(x)))
        else:
            output = self.norm(x + self.drop(sublayer(x)))
        return output


class EncoderLayer(nn.Module):
    """Self-attention over the source, then feed-forward."""

    def __init__(self, model: ModelConfig, positions: Positions) -> None:
        super().__init__()
        self.self_attention = Attention(model, positions)
        self.feed_forward = FeedForward(model)
        self.residuals = nn.ModuleList(Residual(model) for _ in range(2))

    def forward(self, x: Tensor, sight: Sight | Blocks) -> Tensor:
        """(B, S, D) -> (B, S, D)."""
        x = self.residuals[0](x, lambda y: self.self_attention(y, sight))
        x = self.residuals[1](x, self.feed_forward)
        return x


class DecoderLayer(nn.Module):
    """Masked self-attention over the target, cross-attention to memory, feed-forward."""

    def __init__(
        self, model: ModelConfig, positions: Positions, cross_positions: Positions
    ) -> None:
        super().__init__()
        self.self_attention = Attention(model, positions)
        self.cross_attention = Attention(model, cross_positions)
        self.feed_forward = FeedForward(model)
        self.residuals = nn.ModuleList(Residual(model) for _ in range(3))

    def forward(
        self,
        x: Tensor,
        self_sight: Sight | Blocks,
        cross_sight: Sight | Blocks,
        memory: KeysValues,
        cache: Cache | None = None,
    ) -> Tensor:
        """(B, T, D) and the keys and values of memory -> (B, T, D)."""
        x = self.residuals[0](x, lambda y: self.self_attention(y, self_sight, cache=cache))
        x = self.residuals[1](x, lambda y: self.cross_attention(y, cross_sight, memory))
        x = self.residuals[2](x, self.feed_forward)
        return x
