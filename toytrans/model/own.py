"""A model of the user's, in the place of the transformer."""

import torch
from torch import Tensor, nn

from toytrans import user_code
from toytrans.config.schema import MOST_PARAMETERS, ModelConfig
from toytrans.errors import UserError
from toytrans.model.initialisation import count_parameters
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID, Vocabulary


class OwnModel(Seq2Seq):
    """Any module whose forward takes src (B, S) and tgt_in (B, T) to logits (B, T, V)."""

    def __init__(self, config: ModelConfig, inner: nn.Module, name: str, size: int) -> None:
        super().__init__(config)
        self.inner, self.name, self.size = inner, name, size

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
        _check_shape(logits, (*tgt_in.shape, self.size), f"{self.name}: forward(src, tgt_in)")
        return logits


def own_model(config: ModelConfig, vocabulary: Vocabulary) -> Seq2Seq:
    """Build what `model.class` names, as MyModel(config, vocabulary_size), and try it out. A module
    that is no `Seq2Seq` is adapted. Raises UserError."""
    assert config.class_ is not None
    name, size = user_code.shown(config.class_), len(vocabulary)
    made = user_code.construct(config.class_, config, size)
    if not isinstance(made, nn.Module):
        raise UserError(f"{name}: is no torch.nn.Module")
    model = made if isinstance(made, Seq2Seq) else OwnModel(config, made, name, size)
    _try_out(model, config.class_, size)
    parameters = count_parameters(model)
    if not 0 < parameters <= MOST_PARAMETERS:
        raise UserError(f"{name}: {parameters:,} parameters; a model has 1 to {MOST_PARAMETERS:,}")
    return model


def _try_out(model: Seq2Seq, reference: str, size: int) -> None:
    """Raise UserError where it cannot be asked. Weights and random states stay as they are."""
    name = user_code.shown(reference)
    src = torch.tensor([[3, EOS_ID], [EOS_ID, 0]]).clamp(max=size - 1)
    first = torch.tensor([[BOS_ID], [BOS_ID]])
    asked = "forward(src, tgt_in)"
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            _check_shape(model.eval()(src, first), (2, 1, size), f"{name}: {asked}")
            if model.decodes_from_a_state:
                asked = "start_decoding(src, places).next_logits(tokens)"
                logits = model.start_decoding(src, 1).next_logits(first)
                _check_shape(logits, (2, 1, size), f"{name}: {asked}")
        except UserError:
            raise
        except user_code.RAISED as error:
            why = user_code.failure(error, reference)
            raise UserError(f"{name}: {asked} fails: {why}") from None
    model.train()


def _check_shape(logits: Tensor, wanted: tuple[int, ...], asked: str) -> None:
    """Raise UserError where a model gives something else than logits of a shape."""
    if not isinstance(logits, Tensor) or logits.shape != wanted:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"{asked} gives {shape}; expected logits (B, T, V), here {wanted}")
