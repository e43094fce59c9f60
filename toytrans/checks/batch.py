"""A padded batch of random symbols, a model's answers to it, and how far others are from them.

Differences are of logits, in the model's own precision: fp64 wherever it runs in it, so that a
leak of a thousandth in one layer stands far above rounding. The tolerance is a share of how large
logits are: the median over the vocabulary of each id's largest. Logits that are ruled out, by -inf
or a large negative number, count as one value; ids that never change do not count.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from toytrans.checks.result import Told, unsure
from toytrans.checks.subject import Adapter, Ids, NoAnswer, Symbols, wider
from toytrans.errors import UserError

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Of how large logits are. Rounding in sound models stays below 6e-15 and 1e-6 of it, a leak of
a thousandth in one layer moves it by 3e-5 and more (20 shapes)."""

COARSE, MOST_ROUNDING = 2e-2, 1e-1
"""The tolerance of half precision, and what it may grow to where the model's rounding is larger."""

MOST_IN_SINGLE = 1e-4
"""What the tolerance of single precision may grow to, by ten times the model's rounding."""

SHORT = 12
"""Symbols up to which a batch counts as short."""

SHORTEST = 4
"""Symbols that the longest sequence of a check has at least."""

APPENDED_PADS = 3

POLARITY = "is True = block what your layer expects?"

RULED_OUT = 5e3
"""Logits beyond it stand for -inf, where every place has smaller ones too."""

LARGEST_LOGITS, LARGEST_SCORES = 2**25, 2**22
"""Numbers in the logits, and in the scores of one head, of one call: longer ones are parted."""


@dataclass(frozen=True)
class Setting:
    """What one batch is made of: symbols of its longest sequence, rows, and a seed. widest,
    most_rows: the batch is also asked in shapes up to that."""

    length: int
    rows: int
    seed: int
    widest: int = 0
    most_rows: int = 0


class Unsteady(UserError):
    """A model gives different answers to the same input, a batch's."""

    def __init__(self, message: str, batch: "Batch") -> None:
        super().__init__(message)
        self.batch = batch


class Batch:
    """A padded batch of random symbols for a model or a copy of one, and how to ask it.

    src (B, S), tgt_in (B, T), tgt_out (B, T) or None; real_source, real: which places are no pads;
    logits (B, T, V); of (B, T): the number of each real output, -1 at pads. kept: what several
    checks of the batch share. typical_logit: how large logits are; id_weight (V,): what each id's
    differences are multiplied with; counted_ids (V,): those that ever change; jitter: how far two
    answers are apart; work: of one answer.
    """

    def __init__(self, model: Adapter, setting: Setting) -> None:
        self.model, self.setting, self.facts = model, setting, model.facts
        self.random = torch.Generator().manual_seed(setting.seed)
        self.symbols = torch.tensor(self.facts.symbols())
        if len(self.symbols) < 2:
            raise UserError(
                f"{len(self.symbols)} symbols are left of a vocabulary of "
                f"{self.facts.vocabulary_size} beside pad, start and end; the checks need two"
            )
        # long beside short ones, each side once longest
        longest, more = setting.length, range(setting.rows - 4)
        lengths = [(longest, 2), (1, longest), (longest - 1, 1), (2, longest - 1)]
        lengths += [(1 + 7 * n % longest, 1 + (11 * n + 4) % longest) for n in more]
        self.pairs = [(self.row(s), self.row(t)) for s, t in lengths[: setting.rows]]
        self.ids, self.tgt_out = self.made_of(self.pairs)
        self.src, self.tgt_in, _ = self.ids
        self.real = self.facts.real_inputs(self.tgt_in)
        self.real_source = self.facts.real_source(self.src)
        numbers = torch.arange(self.real.numel()).view(self.real.shape)
        self.of = numbers.masked_fill(~self.real, -1)
        self.kept: dict[Any, Any] = {}
        self._ask_first()
        self._measure()

    def made_of(self, pairs: Symbols) -> tuple[Ids, Tensor | None]:
        """What is asked of pairs, and the labels. A model of one stream has an empty source."""
        src, tgt_in, tgt_out = self.model.batch(pairs)
        return Ids(src if self.facts.has_source else src[:, :0], tgt_in), tgt_out

    def padded(
        self, source: int, target: int, rows: Tensor | slice = slice(None)
    ) -> tuple[Ids, Tensor]:
        """Some rows with so many pads more, and which real outputs they then repeat."""
        facts = self.facts
        src = wider(self.src[rows], source * facts.has_source, facts.source_pad)
        tgt_in = wider(self.tgt_in[rows], target, facts.pad_id)
        return Ids(src, tgt_in), F.pad(self.of[rows], (0, target), value=-1)

    def pair(self, source: int, target: int) -> Ids:
        """One pair of some symbols, without pads: (1, S), (1, T)."""
        (src, tgt_in, _), _ = self.made_of([(self.row(source), self.row(target))])
        real = self.facts.real_inputs(tgt_in)[0]
        return Ids(src[:, self.facts.real_source(src)[0]], tgt_in[:, real])

    def row(self, length: int) -> list[int]:
        """Symbols of which no two neighbours are equal."""
        start = torch.randint(len(self.symbols), (1,), generator=self.random)
        steps = torch.randint(1, len(self.symbols), (length,), generator=self.random)
        drawn: list[int] = self.symbols[(start + steps.cumsum(0)) % len(self.symbols)].tolist()
        return drawn

    def other(self, ids: Tensor) -> Tensor:
        """Other symbols than some ids, of any shape."""
        place = (self.symbols == ids[..., None]).int().argmax(-1)
        step = torch.randint(1, len(self.symbols), ids.shape, generator=self.random)
        return self.symbols[(place + step) % len(self.symbols)]

    def one_by_one(self, ids: Tensor, places: Tensor) -> Tensor:
        """(J, L) copies of ids (L,), each with another symbol at one place."""
        changed, rows = ids.repeat(len(places), 1), torch.arange(len(places))
        changed[rows, places] = self.other(changed[rows, places])
        return changed

    @property
    def is_short(self) -> bool:
        """Whether what costs much is asked of it."""
        return self.setting.length <= SHORT

    def noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.random, dtype=torch.float64).to(like.dtype)

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def described_by(self) -> tuple[int, int, str, str, int]:
        """Length, rows, mode, precision and seed."""
        length, mode = self.setting.length, self.model.mode
        return length, len(self.src), mode, self.precision, self.setting.seed

    @property
    def described(self) -> str:
        length, rows, mode, precision, _ = self.described_by
        zero = " with dropout 0" * self.model.training
        return f"length {length}, {rows} rows, {mode} mode{zero}, {precision}"

    # Answers -----------------------------------------------------------------------------------

    @torch.no_grad()
    def ask(self, src: Tensor, tgt_in: Tensor, closed: Tensor | None = None) -> Tensor:
        """Logits (B, T, V), asked for a few rows at a time where they are many and long."""
        width = max(src.shape[1], tgt_in.shape[1])
        each = LARGEST_LOGITS // max(1, tgt_in.shape[1] * self.facts.vocabulary_size)
        rows = max(1, min(each, LARGEST_SCORES // width**2))
        if rows >= len(tgt_in) or closed is not None:
            return self.model.ask(src, tgt_in, closed)
        parts = zip(src.split(rows), tgt_in.split(rows), strict=True)
        return torch.cat([self.model.ask(*part) for part in parts])

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
        """Raises Told where the logits are the same whatever is asked."""
        if self.logits_constant:
            raise unsure(
                "the logits never change, so nothing can be seen through them; is the output layer "
                "zero? train a step, or give it other weights"
            )

    def _ask_first(self) -> None:
        """Ask for the logits twice, and once where torch's fast paths are off, to count the work;
        and whether a batch with a few more pads is taken."""
        more = APPENDED_PADS
        try:
            self.logits, again = (self.ask(*self.ids) for _ in range(2))
            with Watched() as watched:
                self.ask(*self.ids)
            self.ask(*self.padded(more, more)[0])
        except NoAnswer as error:
            places, ids = max(self.src.shape[1], self.tgt_in.shape[1]) + more, int(self.symbols[-1])
            hint = (
                f"; does it take {places} places (max_length=...), and ids up to {ids} on both "
                "sides (source_size=..., or a smaller vocabulary_size)?"
            )
            hint *= "IndexError" in str(error)
            raise NoAnswer(f"{error}{hint}") from error.__cause__  # what the model raised
        self.work, self.dtype = watched.work, self.logits.dtype
        is_single = torch.equal(
            self.logits.float().to(self.dtype).nan_to_num(), self.logits.nan_to_num()
        )
        if self.dtype == torch.float64 and (watched.rounds or is_single):
            self.dtype = torch.float32
        if bool(self.logits[self.real].isnan().flatten(1).any(1).all()):
            raise UserError(
                f"{self.facts.name} answers an ordinary padded batch with NaN in every row; the "
                "checks need numbers (a diverged checkpoint, or a mask that closes every key?)"
            )
        self.jitter = largest(apart(self.logits, again).nan_to_num())

    # How large logits are, and what rounding does -------------------------------------------------

    def _measure(self) -> None:
        """How large logits are, which ids count, and what rounding may do."""
        logits = self.logits[self.real]  # (N, V)
        logits = logits[~logits.isnan().any(-1)]
        sane = bool((logits.abs() < RULED_OUT).any(-1).all())
        self.ruled_out_beyond = RULED_OUT if sane else math.inf
        tame = self.as_infinite(logits)
        finite = torch.where(tame.isfinite(), tame, 0.0)
        each = finite.abs().amax(0)
        sometimes = tame.isfinite().any(0) & ~tame.isfinite().all(0)
        self.counted_ids = (finite.amax(0) - finite.amin(0) > 1e-12 * each) | sometimes
        of = each[self.counted_ids & (each > 0)]
        self.logits_constant = not len(of)
        self.typical_logit = max(float(of.median() if len(of) else each.median()), 1e-30)
        weight = self.typical_logit / each.clamp(min=self.typical_logit)
        self.id_weight = weight.to(self.logits.dtype)
        least, most = TOLERANCE.get(self.dtype, COARSE) * self.typical_logit, 0.0
        if self.dtype != torch.float64:
            with RoundedAgain():
                by = self.differ(self.ask(*self.ids), self.logits, self.real)
            by = 0.0 if math.isnan(by) else by
            most = min(by, MOST_ROUNDING * self.typical_logit)
            if self.dtype == torch.float32:
                most = min(10 * by, MOST_IN_SINGLE * self.typical_logit)
        self.tolerance = max(least, most)
        if self.jitter > self.tolerance:
            self._refuse_other_answers()
        self.tolerance = max(self.tolerance, 10 * self.jitter)

    def _refuse_other_answers(self) -> NoReturn:
        """Raises Unsteady, or UserError where it may be dropout that its user left on, and says why
        the same input is answered differently: random numbers of torch's, or something kept."""
        before, module = torch.get_rng_state(), self.model.module
        self.ask(*self.ids)
        drawn = not torch.equal(before, torch.get_rng_state())
        said = (
            f"{self.facts.name} answers the same input twice with logits that differ by "
            f"{self.jitter:.2g}; "
        )
        if drawn and (module is None or module.training):
            raise UserError(f"{said}is dropout left on? call model.eval() first")
        cause = "it keeps something from call to call, or draws random numbers of its own"
        if drawn:
            cause = (
                "it draws random numbers in eval mode: functional dropout without "
                "training=self.training, or sampling"
            )
        raise Unsteady(said + cause, self)


# What torch does while a model is asked ----------------------------------------------------------

PRODUCTS = re.compile("linear|mm|matmul|einsum|attention|encoder_layer|lstm|gru|rnn")
"""Functions that sum many products, by their names."""

CALL = 50_000
"""Multiplications that take about as long as calling a function."""


class Watched(TorchFunctionMode):
    """The work of an answer: multiplications in its products, and its calls of functions. It is the
    same on any machine. rounds: whether something in fp64 is rounded to fewer digits."""

    work, rounds = 0, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.work += CALL
        first = result[0] if isinstance(result, tuple) and result else result
        if not isinstance(first, Tensor) or first.is_nested:
            return result
        given = [t for a in args for t in (a if isinstance(a, tuple | list) else (a,))]
        given = [t for t in given if isinstance(t, Tensor) and not t.is_nested]
        if first.is_floating_point() and first.dtype != torch.float64:
            self.rounds |= any(t.dtype == torch.float64 for t in given)
        if PRODUCTS.search(getattr(func, "__name__", "")) and given and given[0].dim():
            self.work += first.numel() * given[0].shape[-1]
        return result


class RoundedAgain(TorchFunctionMode):
    """Products that are not in fp64 differ in their last bit, as if they were summed in another
    order."""

    def __init__(self) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not PRODUCTS.search(getattr(func, "__name__", "")) or not isinstance(result, Tensor):
            return result
        if not result.is_floating_point() or result.dtype == torch.float64 or result.is_nested:
            return result
        way = 2 * torch.rand(result.shape, generator=self.random) - 1
        return (result.double() * (1 + way * torch.finfo(result.dtype).eps / 2)).to(result.dtype)


# What embeddings hold ---------------------------------------------------------------------------


@contextlib.contextmanager
def embeddings_changed(batch: Batch, edit: Callable[[str, Tensor], Tensor]) -> Iterator[set[str]]:
    """What the embeddings make of the batch's source and target, (B, L, D), goes through `edit`,
    which is told the side, "src" or "tgt"; what they make of other ids, those of a loop say, stays
    as it is. Gives the sides that were met.

    Raises Told where no embeddings are known, or no side was met.
    """
    module = batch.model.module
    parts = () if module is None else module.modules()
    known = batch.model.embeddings or [part for part in parts if isinstance(part, nn.Embedding)]
    if not known:
        raise Told("not asked", "needs the embedding layer", "embedding")
    met: set[str] = set()

    def hook(_: nn.Module, given: Any, named: Any, output: Any) -> Any:
        ids = next((v for v in (*given, *named.values()) if isinstance(v, Tensor)), None)
        for side, wanted in (("src", batch.src), ("tgt", batch.tgt_in)):
            if ids is None or not wanted.numel() or output.shape[:2] != ids.shape:
                continue
            if torch.equal(ids, wanted):
                met.add(side)
                return edit(side, output)
            if torch.equal(ids, wanted.T):  # time first
                met.add(side)
                return edit(side, output.transpose(0, 1)).transpose(0, 1)
        return output

    with contextlib.ExitStack() as stack:
        for part in dict.fromkeys(known):
            stack.enter_context(part.register_forward_hook(hook, with_kwargs=True))
        yield met
    if not met:
        raise unsure(
            "the embedding layer is not what the model embeds its ids with, or is asked for other "
            "ids than those of the source or the target as they are"
        )


# Numbers ----------------------------------------------------------------------------------------


def apart(a: Tensor, b: Tensor) -> Tensor:
    """a - b, where equal infinities are 0 apart."""
    return torch.where(a == b, torch.zeros_like(a), a - b)


def largest(difference: Tensor) -> float:
    """The largest absolute number; NaN if there is one, 0 of nothing."""
    return float(difference.detach().abs().max()) if difference.numel() else 0.0


def worst(differences: Iterable[float]) -> float:
    """The largest of some differences; NaN is larger than any."""
    return max(differences, key=lambda value: math.inf if math.isnan(value) else value)


def chosen(count: int, most: int) -> list[int]:
    """Of the places 0 .. count - 1 the ends and some between, `most` at most."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
