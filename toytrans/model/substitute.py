"""What stands in the transformer's place without being one."""

from typing import NoReturn

import torch
from torch import Tensor

from toytrans.errors import UserError
from toytrans.model.transformer import Transformer


class Substitute(Transformer):
    """A model that is a transformer to whoever trains, decodes or measures it.

    Whoever asks for its layers gets a UserError, which says `refusal`.
    """

    refusal: str

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    def encode(self, src: Tensor) -> NoReturn:
        self._refuse()

    def encoder_stack(self) -> NoReturn:
        self._refuse()

    def decoder_stack(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UserError(self.refusal)
