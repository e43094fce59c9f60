"""Every result of one pass through a model, recorded operation by operation."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from toytrans.checks.ids import Ids
from toytrans.checks.model import Adapter
from toytrans.checks.softmaxes import tensors_in, watched

PRODUCT = re.compile("mm|bmm|addmm|baddbmm|mv|dot")
"""Operations that sum over an axis of both their factors."""

OF_TORCH, OURS = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])
"""Folders of files whose lines no user wants to mend."""


class Step(NamedTuple):
    """A result of an operation. modules: those that ran meanwhile, the outermost first; inputs: the
    numbers of the steps that made its arguments; value: a copy, because it may be changed in place
    later; of_ids: whether it depends on the ids; others: the sum of its other arguments, as
    weights, by which it shows that they were changed; line: the file and the line that asked for
    it, as "model.py:57"."""

    name: str
    modules: tuple[nn.Module, ...]
    inputs: tuple[int, ...]
    value: Tensor
    of_ids: bool
    others: float
    line: str


class Recorder(TorchDispatchMode):
    """Records each result that depends on the ids or on nothing, as a mask does that is made from
    lengths. What depends on weights alone is left out, because it is the same in every pass."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: skipping it would import the compiler, which takes longer than all checks."""
        return False

    def __init__(self, *ids: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running: list[nn.Module] = []
        self.steps: list[Step] = []
        self.made: dict[int, tuple[Tensor, int]] = {}  # the tensor too: its id is then its own
        for x in ids:
            self._record("ids", x, (), True, 0.0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if torch.is_inference_mode_enabled() and func._can_decompose():
            with self:  # which is done before dispatch otherwise
                return func.decompose(*args, **named)
        result = func(*args, **named)
        given = list(tensors_in((args, tuple(named.values()))))
        inputs = tuple(self.made[id(x)][1] for x in given if id(x) in self.made)
        if inputs or not given:
            name = func.overloadpacket.__name__.rstrip("_")
            of_ids = any(self.steps[n].of_ids for n in inputs)
            others = sum(float(x.sum()) for x in given if id(x) not in self.made and x.numel())
            if name == "baddbmm":  # a product, to which a mask is added
                self._record("bmm", torch.bmm(*args[1:3]), inputs, of_ids, others)
                name, inputs = "add", (*inputs, len(self.steps) - 1)
            for part in tensors_in(result):
                self._record(name, part, inputs, of_ids, others)
        return result

    def _record(
        self, name: str, value: Tensor, inputs: tuple[int, ...], of_ids: bool, others: float
    ) -> None:
        self.made[id(value)] = value, len(self.steps)
        kept = value.detach().clone()
        line = _line_of_the_model()
        self.steps.append(Step(name, tuple(self.running), inputs, kept, of_ids, others, line))


def _line_of_the_model() -> str:
    """The line of the model that is running, "" where all that runs of it is torch's or ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OF_TORCH) and file != __file__:
            is_of_a_model = file.endswith(".py") and not file.startswith(OURS)
            return f"{Path(file).name}:{frame.f_lineno}" if is_of_a_model else ""
        frame = frame.f_back
    return ""


def recorded(model: Adapter, ids: Ids) -> list[Step]:
    """Every step of the pass that answers a pair."""
    src, tgt_in = model.placed(*ids[:2])
    with watched(model.module, recorder := Recorder(src, tgt_in)):
        model.ask(src, tgt_in)
    return recorder.steps


def reached(
    steps: list[Step], start: int, neighbours: Callable[[int], Iterable[int]]
) -> Iterator[int]:
    """A step and those that are reached from it, the nearer first, none of them behind a product
    but the first."""
    waiting, known = [start], {start}
    for n in waiting:
        yield n
        if n == start or not PRODUCT.fullmatch(steps[n].name):
            more = [other for other in neighbours(n) if other not in known]
            known.update(more)
            waiting += more
