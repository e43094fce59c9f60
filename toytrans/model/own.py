"""A model that is code of the user's: made, checked, and tried out on two pairs before it is
trained, so that what is wrong ends in one line that names it."""

import torch
from torch import Tensor, nn

from toytrans.config.schema import MOST_PARAMETERS, ModelSettings
from toytrans.errors import UserError
from toytrans.model.seq2seq import Seq2Seq, count_parameters
from toytrans.references import shown
from toytrans.tokens import BOS_ID, EOS_ID, PAD_ID
from toytrans.user_code import construct, failure


def build_own_model(settings: ModelSettings, reference: str, size: int) -> Seq2Seq:
    """What a reference names, made as MyModel(settings, size) and tried out on two pairs. A module
    that is no `Seq2Seq` is adapted. Weights and random states are those of its constructor.

    size: of the vocabulary
    Raises UserError.
    """
    name, made = shown(reference), construct(reference, settings, size)
    if not isinstance(made, nn.Module):
        raise UserError(f"{name}: is no torch.nn.Module")
    model = made if isinstance(made, Seq2Seq) else OwnModel(settings, made, name, size)
    _check_weights(model, name)
    src = torch.tensor([[3, EOS_ID], [EOS_ID, PAD_ID]]).clamp(max=size - 1)
    first = torch.full((2, 1), BOS_ID)
    asked = "forward(src, tgt_in)"
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            logits = model.eval()(src, first)
            _check_shape(logits, (2, 1, size), f"{name}: {asked}")
            if not logits.requires_grad:
                raise UserError(
                    f"{name}: {asked} gives logits that no parameter can learn from; they are "
                    "detached, or computed without gradients"
                )
            if model.decodes_from_a_state:
                asked = "start_decoding(src, places).next_logits(tokens)"
                with torch.no_grad():
                    logits = model.start_decoding(src, 1).next_logits(first[:, 0])
                _check_shape(logits, (2, size), f"{name}: {asked}")
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # code of the user's may raise anything
        raise UserError(f"{name}: {asked} fails: {failure(error, reference)}") from None
    return model.train()


def _check_weights(model: nn.Module, name: str) -> None:
    """Raise UserError for parameters or buffers that cannot be trained, moved or saved."""
    parameters = count_parameters(model)
    if not 0 < parameters <= MOST_PARAMETERS:
        raise UserError(f"{name}: {parameters:,} parameters; a model has 1 to {MOST_PARAMETERS:,}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"{name}: all parameters are frozen, so there is nothing to train")
    for part, values in (*model.named_parameters(), *model.named_buffers()):
        part = part.removeprefix("inner.")
        if values.is_meta:
            raise UserError(f"{name}: {part} is on the device meta, without values; make it on cpu")
        if values.layout != torch.strided:
            raise UserError(f"{name}: {part} is sparse, and checkpoints hold dense tensors alone")
    for module in model.modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise UserError(
                f"{name}: {type(module).__name__} has get_extra_state, and checkpoints hold "
                "tensors alone; register a buffer"
            )


class OwnModel(Seq2Seq):
    """Any module whose forward takes src (B, S) and tgt_in (B, T) to logits (B, T, V)."""

    def __init__(self, settings: ModelSettings, inner: nn.Module, name: str, size: int) -> None:
        super().__init__(settings)
        self.inner, self.name, self.size = inner, name, size

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Teacher-forced logits: src (B, S), tgt_in (B, T) ids -> (B, T, V). Raises UserError.

        Rows of pads, which fill a batch up, are not asked: attention to no key at all may be NaN.
        """
        real = (src != PAD_ID).any(1)
        real[:1] |= ~real.any()  # at least one row, so that there are gradients
        logits = self.inner(src[real], tgt_in[real])
        asked = f"{self.name}: forward(src, tgt_in)"
        _check_shape(logits, (int(real.sum()), tgt_in.shape[1], self.size), asked)
        whole: Tensor = logits.new_zeros(*tgt_in.shape, self.size)
        whole[real] = logits
        return whole


def _check_shape(logits: Tensor, wanted: tuple[int, ...], asked: str) -> None:
    """Raise UserError where a model gives something else than logits of a shape."""
    if not isinstance(logits, Tensor) or logits.shape != wanted:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise UserError(f"{asked} gives {shape}; expected logits (B, T, V), here {wanted}")
