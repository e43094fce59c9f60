"""Searches that are recorded and replayed, for a GPU that would wait for launches."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.data.pairs import MAX_LEN_B
from toytrans.model.decoding.beam import Beams
from toytrans.model.decoding.greedy import Greedy
from toytrans.model.decoding.limits import Decoded, rows_to_keep, token_limits
from toytrans.model.decoding.loop import trimmed
from toytrans.model.decoding.state import DecoderState
from toytrans.model.recorder import Recorder, Tables
from toytrans.model.transformer import Transformer

CHUNK = 4
"""Places of one graph. After each the host looks how many rows go on."""

FEWEST = 64
"""Rows, times beams, below which a step of a GPU takes the same time: it waits for launches."""


class RecordedSearch:
    """`decoding.search` of one model, with the same tokens, recorded once for each shape.

    Each shape of sources has graphs of its own: one that encodes them, and one for every four
    places, made when a search first gets there. Graphs read the weights where they are, so they
    hold while the model is trained.

    Rows that have ended leave between two chunks, once a quarter of the rows holds all others.
    The search of that smaller shape then goes on with them.
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
        how = beam, growth, alpha, torch.is_autocast_enabled(src.device.type)
        recorded = self._of(src, *how)
        recorded.begin(src, token_limits(src, growth, model.config.max_length))
        return trimmed(self._go_on(recorded, 0, *how))

    def _of(self, src: Tensor, *how: Any) -> "_Recorded":
        """The graphs for sources of a shape."""
        key = (*src.shape, *how)
        if key not in self.recorded:
            (beam, growth, alpha, _), model = how, self.model
            most = growth * src.shape[1] + MAX_LEN_B
            longest = min(most, self.model.config.max_length or most)
            self.tables.make_room(max(longest, src.shape[1]))

            def start(src: Tensor, limits: Tensor) -> Greedy | Beams:
                if beam == 1:
                    return Greedy(model, src, limits, longest)
                return Beams(model, src, limits, longest, beam, alpha)

            self.recorded[key] = _Recorded(self.recorder, self.tables, start, src)
        return self.recorded[key]

    def _go_on(self, recorded: "_Recorded", place: int, *how: Any) -> Decoded:
        """What a search finds from a place on. Reads back once a chunk."""
        while place < recorded.search.longest:
            place = recorded.run_chunk(place)
            going = recorded.search.going
            if not (count := int(going.sum())):
                break
            if (fewer := smaller(len(going), count, how[0])) < len(going):
                kept = rows_to_keep(going, fewer)
                rest = self._of(recorded.src[kept], *how)
                rest.take_over(recorded, kept)
                decoded = _copied(recorded.search.decoded())  # later replays may use its memory
                return _put(decoded, kept, self._go_on(rest, place, *how))
        return recorded.search.decoded()


def smaller(rows: int, going: int, beams: int) -> int:
    """How many of a batch's rows stay in it, if `going` of them have not ended.

    That is all of them, or a quarter, or a quarter of that. At d 128 with 2+2 layers, a step of an
    H100 took 0.24 ms and 0.5 us for each row. So a quarter of 256 rows saves a fifth of the time,
    and a quarter of 4,096 rows two thirds. Every size needs graphs of its own.
    """
    size = rows
    while going <= size // 4 and size // 4 * beams >= FEWEST:
        size //= 4
    return size


def _copied(decoded: Decoded) -> Decoded:
    return Decoded(decoded.tokens.clone(), None if decoded.score is None else decoded.score.clone())


def _put(decoded: Decoded, rows: Tensor, some: Decoded) -> Decoded:
    """What was decoded, with some rows (R,) in place of the old ones."""
    decoded.tokens[rows] = some.tokens
    if decoded.score is not None and some.score is not None:
        decoded.score[rows] = some.score
    return decoded


class _Recorded:
    """The graphs of searches of one shape; sources and limits are fixed tensors."""

    def __init__(
        self,
        recorder: Recorder,
        tables: Tables,
        start: Callable[[Tensor, Tensor], Greedy | Beams],
        src: Tensor,
    ) -> None:
        self.recorder, self.tables, self.start = recorder, tables, start
        self.src, self.limits = src.clone(), torch.ones_like(src[:, 0])
        self.search: Greedy | Beams
        recorder.warm_up(self._warm_up)
        self.encode = self._record(self._encode)
        self.chunks: dict[int, Callable[[], object]] = {}

    def begin(self, src: Tensor, limits: Tensor) -> None:
        """Start with sources (N, S) of the recorded shape."""
        self.src.copy_(src)
        self.limits.copy_(limits)
        self.encode()

    def take_over(self, other: "_Recorded", kept: Tensor) -> None:
        """Go on with some rows (R,) of another shape's search."""
        for mine, theirs in zip(_state(self.search), _state(other.search), strict=True):
            (axis,) = (n for n, size in enumerate(mine.shape) if size != theirs.shape[n])
            mine.copy_(theirs.index_select(axis, kept))
        self.search.rows.copy_(torch.arange(len(kept), device=kept.device))

    def run_chunk(self, place: int) -> int:
        """Find the tokens of a chunk that begins at a place. Returns the place after it."""
        self._move_to(place)
        if place not in self.chunks:
            self.chunks[place] = self._record(self._steps)
            self._move_to(place)
        self.chunks[place]()
        return min(place + CHUNK, self.search.longest)

    def _move_to(self, place: int) -> None:
        state = self.search.state
        assert isinstance(state, DecoderState)
        self.search.place = state.place = place
        for cache in state.caches:
            cache.length = place * cache.beams

    def _record(self, work: Callable[[], None]) -> Callable[[], object]:
        self.tables.keep()
        with self.tables.fixed():
            return self.recorder.record(work)

    def _warm_up(self) -> None:
        self._encode()
        self._steps()

    def _encode(self) -> None:
        with self._autocast():
            self.search = self.start(self.src, self.limits)

    def _steps(self) -> None:
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


def _state(part: Any) -> Iterator[Tensor]:
    """The tensors of a search but `rows`, in one order. One axis of each counts the rows."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, list | tuple):
        for each in part:
            yield from _state(each)
    elif hasattr(part, "__dict__") and not isinstance(part, nn.Module):
        for name, each in vars(part).items():
            if name != "rows":
                yield from _state(each)
