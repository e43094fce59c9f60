"""Weights under which a model's choices vary. Fresh ones, above all where the output layer is the
table of embeddings, rank the same id first at every step, and nothing can be seen of a decoding
that repeats one id."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from toytrans.checks.model import Adapter
from toytrans.checks.torch_modes import restored

GAIN = 3.0
"""How many times as large matrices are made, so that layers outweigh what passes beside them."""

FEWEST = 3
"""Ids of which some must stand in a decoding that varies."""


@contextlib.contextmanager
def lively_weights(model: Adapter, seed: int) -> Iterator[None]:
    """A model's own module has larger matrices with noise in them meanwhile, and small random
    biases; afterwards it is what it was. Tables of embeddings stay, because ids are told apart by
    them already."""
    module = model.module
    assert module is not None
    random = torch.Generator().manual_seed(seed)
    with restored([*module.parameters(), *module.buffers()]):
        model.randomize_zero_weights(module)
        tables = {part.weight for part in module.modules() if isinstance(part, nn.Embedding)}
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if parameter in tables or not parameter.is_floating_point():
                    continue
                noise = torch.randn(parameter.shape, generator=random).to(parameter)
                if parameter.dim() > 1:
                    parameter.mul_(GAIN).add_(noise * GAIN * parameter.std())
                elif "bias" in name:
                    parameter.copy_(0.1 * noise)
        yield


def varies(ids: Tensor, live: Tensor, has_source: bool) -> bool:
    """Whether decoded ids (B, L), as far as they are live, hold several ids, and differ from source
    to source where there are sources."""
    rows = [tuple(row[is_live].tolist()) for row, is_live in zip(ids, live, strict=True)]
    several = len({i for row in rows for i in row}) >= FEWEST
    return several and (not has_source or len({*rows}) > 1)
