"""A model of the user's, in the place of the transformer."""

import torch
from torch import Tensor, nn

from toytrans import user_code
from toytrans.config.schema import MOST_PARAMETERS, ModelConfig
from toytrans.errors import UserError
from toytrans.model.substitute import Substitute
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary


class OwnModel(Substitute):
    """What `model.class` names, built as MyModel(model_config, vocabulary_size): a module whose
    forward takes src (B, S) and tgt_in (B, T) to logits (B, T, V)."""

    def __init__(self, model: ModelConfig, vocabulary: Vocabulary) -> None:
        nn.Module.__init__(self)
        assert model.class_ is not None
        self.config, self.name = model, user_code.shown(model.class_)
        self.size = len(vocabulary)
        self.refusal = (
            f"{self.name}: a model of your own, whose layers this command does not know; train, "
            "eval, translate and check do without"
        )
        inner = user_code.construct(model.class_, model, self.size)
        if not isinstance(inner, nn.Module):
            raise UserError(f"{self.name}: is no torch.nn.Module")
        self.inner = inner
        self._try_out(model.class_)
        parameters = sum(parameter.numel() for parameter in self.parameters())
        if not 0 < parameters <= MOST_PARAMETERS:
            raise UserError(
                f"{self.name}: {parameters:,} parameters; a model has 1 to {MOST_PARAMETERS:,}"
            )

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher-forced logits: src (B, S), tgt_in (B, T) ids -> (B, T, V). Raises UserError.

        Rows of pads, which fill a batch up, are not asked: attention to no key at all may be NaN.
        """
        real = (src != PAD_ID).any(1)
        if bool(real.all()):
            return self._ask(src, tgt_in)
        real[:1] |= ~real.any()  # at least one row, so that there are gradients
        logits = self._ask(src[real], tgt_in[real])
        whole = logits.new_zeros(*tgt_in.shape, self.size)
        whole[real] = logits
        return whole

    def _ask(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        logits = self.inner(src, tgt_in)
        wanted = (*tgt_in.shape, self.size)
        if not isinstance(logits, Tensor) or logits.shape != wanted:
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise UserError(
                f"{self.name}: forward(src, tgt_in) gives {shape}; expected logits (B, T, V), here "
                f"{wanted}"
            )
        return logits

    def _try_out(self, reference: str) -> None:
        """Raise UserError where it cannot be asked. Weights and random states stay as they are."""
        src = torch.tensor([[3, EOS_ID], [EOS_ID, 0]]).clamp(max=self.size - 1)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            try:
                self.eval()(src, torch.tensor([[BOS_ID], [BOS_ID]]))
            except UserError:
                raise
            except user_code.RAISED as error:
                raise UserError(
                    f"{self.name}: forward(src, tgt_in) fails: "
                    f"{user_code.failure(error, reference)}"
                ) from None
        self.train()
