"""Searches that are recorded and replayed, for a GPU that would wait for launches."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from toytrans.data.pairs import MAX_LEN_B
from toytrans.model.decoding.beam import Beams
from toytrans.model.decoding.greedy import Greedy
from toytrans.model.decoding.limits import Decoded, token_limits
from toytrans.model.decoding.loop import Search, trimmed
from toytrans.model.recorder import Recorder, Tables
from toytrans.model.transformer import Transformer

CHUNK = 4
"""Places of one graph. After each the host looks whether all rows have ended."""


class RecordedSearch:
    """`decoding.search` of one model, with the same tokens, recorded once for each shape.

    Each shape of sources has graphs of its own: one that encodes them, and one for every four
    places, made when a search first gets there. Graphs read the weights where they are, so they
    hold while the model is trained. Rows that have ended stay until all have: to drop them would
    make new shapes, and evaluation puts sources of like length together.
    """

    def __init__(self, recorder: Recorder, model: Transformer) -> None:
        self.recorder, self.model, self.tables = recorder, model, Tables(model)
        self.recorded: dict[tuple[object, ...], _Recorded] = {}

    @torch.no_grad()
    def __call__(
        self,
        model: Transformer,
        src: Tensor,
        *,
        beam: int = 1,
        growth: int = 2,
        alpha: float = 1.0,
    ) -> Decoded:
        """As `search`. model: the one whose searches are recorded, in evaluation mode."""
        assert model is self.model and not model.training
        key = (*src.shape, beam, growth, alpha, torch.is_autocast_enabled(src.device.type))
        if key not in self.recorded:
            most = growth * src.shape[1] + MAX_LEN_B
            longest = min(most, model.config.max_length or most)
            self.tables.make_room(max(longest, src.shape[1]))
            make = partial(_new_search, model, longest=longest, beam=beam, alpha=alpha)
            self.recorded[key] = _Recorded(self.recorder, self.tables, make, src)
        return self.recorded[key].run(src, token_limits(src, growth, model.config.max_length))


def _new_search(
    model: Transformer, src: Tensor, limits: Tensor, longest: int, beam: int, alpha: float
) -> Search:
    if beam == 1:
        return Greedy(model, src, limits, longest)
    return Beams(model, src, limits, longest, beam, alpha)


class _Recorded:
    """The graphs of searches of one shape; sources and limits are fixed tensors."""

    def __init__(
        self,
        recorder: Recorder,
        tables: Tables,
        make: Callable[[Tensor, Tensor], Search],
        src: Tensor,
    ) -> None:
        self.recorder, self.tables = recorder, tables
        self.src, self.limits = src.clone(), torch.ones_like(src[:, 0])
        self.start = partial(make, self.src, self.limits)
        recorder.warm_up(lambda: self.start().step())
        self.search: Search
        self.begin = self._record(self._begin)
        self.chunks: list[Callable[[], object]] = []

    def run(self, src: Tensor, limits: Tensor) -> Decoded:
        """The outputs for sources (N, S) of the recorded shape. Reads back once a chunk."""
        self.src.copy_(src)
        self.limits.copy_(limits)
        self.begin()
        number = 0
        while number * CHUNK < self.search.longest:
            if number == len(self.chunks):
                self.chunks.append(self._record(self._go_on))
            self.chunks[number]()
            if not bool(self.search.going.any()):
                break
            number += 1
        return trimmed(self.search.found())

    def _record(self, work: Callable[[], None]) -> Callable[[], object]:
        self.tables.keep()
        with self.tables.fixed():
            return self.recorder.record(work)

    def _begin(self) -> None:
        with self._autocast():
            self.search = self.start()

    def _go_on(self) -> None:
        with self._autocast():
            for _ in range(min(CHUNK, self.search.longest - self.search.place)):
                self.search.step()

    def _autocast(self) -> torch.autocast:
        """As it is outside, but without its cache of rounded weights.

        Graphs would read the cache after its end, and miss later weights.
        """
        kind = self.src.device.type
        return torch.autocast(
            kind,
            torch.get_autocast_dtype(kind),
            enabled=torch.is_autocast_enabled(kind),
            cache_enabled=False,
        )
