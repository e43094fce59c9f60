"""A batch that was asked of a model, and how far other answers are from its logits.

Differences are of logits, in the model's own precision: fp64 wherever it runs in it, so that a
leak of a thousandth in one layer stands far above rounding. The tolerance is a share of how large
logits are: the median over the vocabulary of each id's largest. Logits that are ruled out, by -inf
or a large negative number, count as one value; ids that never change do not count.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.checks import tolerances
from toytrans.checks.batch import Batch, Setting
from toytrans.checks.common_causes import CONSTANT_LOGITS, EMBEDDING_NOT_MET
from toytrans.checks.ids import Ids, rolled
from toytrans.checks.model import Adapter, NoAnswer
from toytrans.checks.numbers import apart, largest
from toytrans.checks.outcome import Judged, not_asked, unsure
from toytrans.checks.torch_modes import CountWork, RoundProducts
from toytrans.errors import UserError

APPENDED_PADS = 3
"""How many pads are appended to a side."""

LARGEST_LOGITS, LARGEST_SCORES = 2**25, 2**22
"""Numbers in the logits, and in the scores of one head, of one call: longer ones are parted."""


class Asked(Batch):
    """A batch, the logits (B, T, V) that a model or a copy of one gave to it, and more questions.

    typical_logit: how large logits are; id_weight (V,): what each id's differences are multiplied
    with; counted_ids (V,): those that ever change; jitter: how far two answers to the same ids are
    apart; tolerance: of a difference; work: of one answer. shared: what several parts need.
    """

    def __init__(self, model: Adapter, setting: Setting) -> None:
        super().__init__(model, setting)
        self.shared: dict[Any, Any] = {}
        self.asked_last: tuple[Ids, Tensor] | None = None
        self.singles: dict[int, tuple[Ids, Tensor]] = {}
        self._ask_first()
        self._measure()

    @property
    def precision(self) -> str:
        """The precision of the logits, as "float64"."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def described_by(self) -> tuple[int, int, str, str, int]:
        """Length, rows, mode, precision and seed."""
        length, mode = self.setting.length, self.model.mode
        return length, len(self.src), mode, self.precision, self.setting.seed

    @property
    def described(self) -> str:
        """Length, rows, mode and precision, in words."""
        length, rows, mode, precision, _ = self.described_by
        zero = " with dropout 0" * self.model.training
        return f"length {length}, {rows} rows, {mode} mode{zero}, {precision}"

    # Answers -----------------------------------------------------------------------------------

    @torch.no_grad()
    def ask(self, src: Tensor, tgt_in: Tensor, masked: Tensor | None = None) -> Tensor:
        """Logits (B, T, V), asked for a few rows at a time where they are many and long."""
        width = max(src.shape[1], tgt_in.shape[1])
        each = LARGEST_LOGITS // max(1, tgt_in.shape[1] * self.facts.vocabulary_size)
        rows = max(1, min(each, LARGEST_SCORES // width**2))
        if rows >= len(tgt_in) or masked is not None:
            return self.model.ask(src, tgt_in, masked)
        parts = zip(src.split(rows), tgt_in.split(rows), strict=True)
        return torch.cat([self.model.ask(*part) for part in parts])

    def ask_once(self, ids: Ids) -> Tensor:
        """The logits for ids with which several changes are compared, asked for once: those of the
        last batch are kept, and those of single pairs."""
        is_single = len(ids.tgt_in) == 1
        kept = self.singles.get(id(ids)) if is_single else self.asked_last
        if kept is None or kept[0] is not ids:
            kept = ids, self.ask(*ids)
            if is_single:
                self.singles[id(ids)] = kept
            else:
                self.asked_last = kept
        return kept[1]

    def alone(self, row: int) -> Ids:
        """A pair of the batch alone, with its pads, which several checks ask for."""
        if ("alone", row) not in self.shared:
            alone = Ids(self.src[row, None], self.tgt_in[row, None])
            self.shared["alone", row] = alone
        found: Ids = self.shared["alone", row]
        return found

    def moved(self, new: Tensor, old: Tensor) -> Tensor:
        """How far logits (..., V) moved: the largest over the ids that count."""
        by = apart(self.as_infinite(new), self.as_infinite(old)).abs() * self.id_weight
        return by[..., self.counted_ids].amax(-1) if bool(self.counted_ids.any()) else by.amax(-1)

    def differ(self, new: Tensor, old: Tensor, where: Tensor) -> float:
        """The largest of `moved` at some places (B, T)."""
        return largest(self.moved(new, old)[where])

    def as_infinite(self, logits: Tensor) -> Tensor:
        """Logits of which those that are ruled out are infinite."""
        is_out = logits.abs() >= self.ruled_out_beyond
        return torch.where(is_out, logits.sign() * math.inf, logits)

    def require_changing_logits(self) -> None:
        """Raises Judged where the logits are the same whatever is asked."""
        if self.logits_constant:
            raise Judged(unsure(CONSTANT_LOGITS))

    # How large logits are, and what rounding does ------------------------------------------------

    def _ask_first(self) -> None:
        """Ask for the logits twice, and once of each shape where torch's fast paths are off, to
        count the work; and in eval mode whether a batch with a few more pads is taken."""
        more, counts = APPENDED_PADS, self.model.original.work_of
        try:
            self.logits, again = (self.ask(*self.ids) for _ in range(2))
            if self.setting not in counts:
                with CountWork() as counted:
                    self.ask(*self.ids)
                counts[self.setting] = counted.work, counted.rounds
            if not self.model.training:
                self.ask(*self.with_pads(more, more)[0])
        except NoAnswer as error:
            places, ids = max(self.src.shape[1], self.tgt_in.shape[1]) + more, int(self.symbols[-1])
            hint = (
                f"; does it take {places} places (max_length=...), and ids up to {ids} on both "
                "sides (source_size=..., or a smaller vocabulary_size)?"
            )
            hint *= "IndexError" in str(error)
            raise NoAnswer(f"{error}{hint}") from error.__cause__  # what the model raised
        (self.work, rounds), self.dtype = counts[self.setting], self.logits.dtype
        is_single = torch.equal(
            self.logits.float().to(self.dtype).nan_to_num(), self.logits.nan_to_num()
        )
        if self.dtype == torch.float64 and (rounds or is_single):
            self.dtype = torch.float32
        if bool(self.logits[self.real].isnan().flatten(1).any(1).all()):
            raise UserError(
                f"{self.facts.name} answers an ordinary padded batch with NaN in every row; the "
                "checks need numbers (a diverged checkpoint, or a mask that closes every key?)"
            )
        self.jitter = largest(apart(self.logits, again).nan_to_num())

    def _measure(self) -> None:
        """How large logits are, which ids count, and what rounding may do."""
        logits = self.logits[self.real]  # (N, V)
        logits = logits[~logits.isnan().any(-1)]
        sane = bool((logits.abs() < tolerances.RULED_OUT).any(-1).all())
        self.ruled_out_beyond = tolerances.RULED_OUT if sane else math.inf
        tame = self.as_infinite(logits)
        finite = torch.where(tame.isfinite(), tame, 0.0)
        each = finite.abs().amax(0)
        sometimes = tame.isfinite().any(0) & ~tame.isfinite().all(0)
        self.counted_ids = (finite.amax(0) - finite.amin(0) > 1e-12 * each) | sometimes
        counted = each[self.counted_ids & (each > 0)]
        self.logits_constant = not len(counted)
        self.typical_logit = max(float((counted if len(counted) else each).median()), 1e-30)
        weight = self.typical_logit / each.clamp(min=self.typical_logit)
        self.id_weight = weight.to(self.logits.dtype)
        share = tolerances.LOGITS.get(self.dtype, tolerances.LOGITS_IN_HALF)
        least, most = share * self.typical_logit, 0.0
        if self.dtype != torch.float64:
            with RoundProducts():
                by = self.differ(self.ask(*self.ids), self.logits, self.real)
            by = 0.0 if math.isnan(by) else by
            most = min(by, tolerances.MOST_IN_HALF * self.typical_logit)
            if self.dtype == torch.float32:
                most = min(10 * by, tolerances.MOST_IN_SINGLE * self.typical_logit)
        self.tolerance = max(least, most)
        self.is_steady = self.jitter <= self.tolerance
        if self.is_steady:
            self.tolerance = max(self.tolerance, 10 * self.jitter)


# What embeddings hold ---------------------------------------------------------------------------


@contextlib.contextmanager
def embeddings_changed(batch: Batch, edit: Callable[[str, Tensor], Tensor]) -> Iterator[set[str]]:
    """What the embeddings make of the batch's source and target, (B, L, D), goes through `edit`,
    which is told the side, "src" or "tgt"; what they make of other ids, those of a loop say, stays
    as it is. Gives the sides that were met.

    Raises Judged where no embeddings are known, or no side was met.
    """
    module = batch.model.module
    parts = () if module is None else module.modules()
    known = batch.model.embeddings or [part for part in parts if isinstance(part, nn.Embedding)]
    if not known:
        raise Judged(not_asked("needs the embedding layer", "embedding"))
    met: set[str] = set()

    def hook(_: nn.Module, given: Any, named: Any, output: Any) -> Any:
        """Change what is embedded, where the ids are those of the batch."""
        ids = next((v for v in (*given, *named.values()) if isinstance(v, Tensor)), None)
        for side, right in (("src", batch.src), ("tgt", batch.tgt_in)):
            wanted = batch.model.as_handed(right, side == "src")
            if ids is None or not wanted.numel() or output.shape[:2] != ids.shape:
                continue
            if torch.equal(ids.cpu(), wanted):
                met.add(side)
                if wanted is right:
                    return edit(side, output)
                by = batch.facts.pads_behind(right, side == "src")
                return rolled(edit(side, rolled(output, -by)), by)
            if torch.equal(ids.cpu(), wanted.T):  # time first
                met.add(side)
                return edit(side, output.transpose(0, 1)).transpose(0, 1)
        return output

    with contextlib.ExitStack() as stack:
        for part in dict.fromkeys(known):
            stack.enter_context(part.register_forward_hook(hook, with_kwargs=True))
        yield met
    if not met:
        raise Judged(unsure(EMBEDDING_NOT_MET))
