"""Weights, head by head: the part of each projection that belongs to a head moves some output."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor, nn

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.numbers import largest
from toytrans.checks.outcome import Outcome, does_not_apply, fails, passes
from toytrans.checks.rules.weights import (
    WEIGHTS,
    Matrix,
    alive_with_other_weights,
    dead_in_longer_ones,
    gradients_of_matrices,
)
from toytrans.checks.softmaxes import softmaxes_of

HEAD_UNUSED = WEIGHTS.cause(
    "head_unused",
    when="no output depends on the rows, or the columns, of a projection that make one head, "
    "whatever the weights hold, and on others some does",
    words="no output depends on {lines} {first}..{last} of {name}, which are those of one head of "
    "width {width}",
    remedy="is a head left out where heads are joined, or joined twice?",
)


@WEIGHTS.part("every head")
def every_head(asked: Asked) -> Outcome:
    """Of the projections of each attention the rows and the columns of each head have a gradient,
    with these weights or with others."""
    model = asked.model
    if model.module is None or model is model.original:
        return does_not_apply("the weights of such a model are not replaced")
    if asked.dtype not in tolerances.LOGITS:
        return does_not_apply("half precision rounds small gradients to 0")
    attentions = [each for each in softmaxes_of(asked) if each.is_attention]
    widths = {each.scores.inner for each in attentions if each.scores.inner}
    inside = {p for each in attentions if each.module for p in _projections(each.module)}
    gradients = gradients_of_matrices(asked)
    sizes = {matrix: largest(gradient.nan_to_num()) for matrix, gradient in gradients.items()}
    least = tolerances.LOGITS[asked.dtype] * max(sizes.values(), default=0.0)
    dead, count = list[Matrix](), 0
    for matrix, gradient in gradients.items():
        if matrix.parameter in inside and sizes[matrix] > least and not gradient.isnan().any():
            for block in _blocks(matrix, gradient.shape, widths):
                assert block.block is not None
                count += 1
                if largest(gradient.narrow(*block.block).nan_to_num()) <= least:
                    dead.append(block)
    if not count:
        return does_not_apply("no attention is seen that has several heads")
    if dead:
        alive = alive_with_other_weights(asked, [*gradients], dead)
        dead = [block for block in dead if block not in alive]
        dead = _heads_of(dead_in_longer_ones(asked, [*gradients], dead)) if dead else []
    if not dead:
        return passes("outputs depend on each head of each projection")
    (axis, first, width), name = dead[0].block or (0, 0, 0), dead[0].name
    told = {
        "lines": ("rows", "columns")[axis],
        "first": first,
        "last": first + width - 1,
        "width": width,
    }
    return fails(HEAD_UNUSED, name=name.removesuffix(".weight"), **told)


def _heads_of(blocks: Iterable[Matrix]) -> list[Matrix]:
    """Those blocks that belong to a head: no output then depends on the same block of another
    projection beside it. One alone may be of something else, as distances that are not met."""
    places: dict[tuple[str, int], list[Matrix]] = {}
    for block in blocks:
        assert block.block is not None
        _, first, width = block.block
        beside = block.owner if block.third is not None else block.owner.rpartition(".")[0]
        places.setdefault((beside, first // width), []).append(block)
    return [block for group in places.values() if len(group) > 1 for block in group]


def _projections(module: nn.Module) -> Iterator[Tensor]:
    """The matrices of linear layers in a module. Tables of places have rows that are not used."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            yield part.weight
        elif isinstance(part, nn.MultiheadAttention) and part.in_proj_weight is not None:
            yield part.in_proj_weight


def _blocks(matrix: Matrix, shape: Sequence[int], widths: set[int]) -> Iterator[Matrix]:
    """The rows of a matrix that make each head, and the columns, where it has several."""
    for axis, size in enumerate(shape[:2]):
        for width in widths:
            if size > width and not size % width and len(shape) == 2:
                starts = range(0, size, width)
                yield from (replace(matrix, block=(axis, first, width)) for first in starts)
