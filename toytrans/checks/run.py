"""`check`: which batches a model is asked, in which modes and precisions, and what came of it."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from toytrans.checks import tolerances
from toytrans.checks.adapters import adapter_of
from toytrans.checks.another_pad import another_source_pad
from toytrans.checks.asked import Asked
from toytrans.checks.batch import SHORTEST, Setting
from toytrans.checks.caller import caller_unchanged
from toytrans.checks.causes_by_kind import evidence_of
from toytrans.checks.changes import Broken, compare
from toytrans.checks.common_causes import (
    ANOTHER_PAD,
    BATCH_STATISTICS,
    DRAWN_ANEW,
    EXCEPTION,
    NANS,
    NO_ANSWER,
    RAISES_WHEN_SHORTER,
    ROWS_ALONE,
)
from toytrans.checks.model import RAISED, Adapter, NoAnswer, is_our_own
from toytrans.checks.not_a_number import nan_of_batch
from toytrans.checks.numbers import largest
from toytrans.checks.outcome import Judged, Outcome, does_not_apply, unsure
from toytrans.checks.registry import Check, On, Part, selected
from toytrans.checks.report import Report, Result
from toytrans.checks.rules import CAUSES, CHECKS
from toytrans.checks.rules.calls import two_answers
from toytrans.checks.shrink import smallest_example
from toytrans.checks.softmaxes import softmaxes_of
from toytrans.checks.torch_modes import undisturbed
from toytrans.errors import UserError, did_you_mean

Progress = Callable[[str], None]

LENGTH, THOROUGH = 64, 512
"""Symbols of the longest sequence tried; more are thorough."""

SIZES = ((7, 4), (16, 12), (33, 5), (64, 3))
"""Symbols of the longest sequence of a batch, and its rows."""

MORE_SIZES = ((20, 32), (128, 4), (256, 2), (512, 2))
"""Further ones, where longer sequences are asked for; these have no bound of work."""

WORK = 75e9
"""Multiplications (`CountWork`) that the checks are kept within, unless longer sequences are asked
for: about 15 s."""

MORE_PLACES = 33
"""Places at which copies in two precisions are compared."""

ANSWERS_A_BATCH = 80
"""About so many answers all checks want of a batch."""


def settings_of(length: int | None, seed: int, limit: int | None) -> list[Setting]:
    """The batches up to a length, cheap ones first, each with a seed of its own, none beyond the
    places that a model takes. Raises UserError where that is too few."""
    most = math.inf if limit is None else limit - 4
    if length is not None and (not isinstance(length, int) or length < SHORTEST):
        raise UserError(f"length {length}: the checks need sequences of {SHORTEST} symbols or more")
    if most < (length or SHORTEST):
        shorter = "give a smaller length, or " if most >= SHORTEST else ""
        raise UserError(
            f"the model takes {limit} places and the checks need "
            f"{(length or SHORTEST) + 4}; {shorter}build the model with more"
        )
    wanted = length or int(min(LENGTH, most))
    sizes = SIZES + MORE_SIZES * (wanted > LENGTH)
    made = [Setting(n, rows, seed + k) for k, (n, rows) in enumerate(sizes) if n <= wanted]
    if wanted not in dict(sizes):
        made.append(Setting(wanted, 4 if wanted < 16 else 3, seed + len(sizes)))
    made[0] = replace(made[0], widest=wanted, most_rows=33 if wanted > LENGTH else 17)
    return made


def judge(part: Part, asked: Asked) -> tuple[Outcome, Broken | None]:
    """Ask one part of a batch: its outcome, and the change that moved something."""
    if asked.facts.kind not in part.kinds.names:
        return does_not_apply(part.kinds.otherwise), None
    try:
        given = part.ask(asked)
        return (given, None) if isinstance(given, Outcome) else compare(asked, given)
    except Judged as early:
        return early.outcome, None
    except NoAnswer as error:
        return _no_answer(error, asked), None
    except UserError:
        raise
    except asked.model.may_raise as error:
        if is_our_own(error):
            raise
        what = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"
        return unsure(EXCEPTION, error=what), None


def _no_answer(error: NoAnswer, asked: Asked) -> Outcome:
    """No verdict, because the model does not answer what a part asks."""
    sizes = asked.src.shape[1], asked.tgt_in.shape[1]
    are_more = [n > size for n, size in zip(error.lengths, sizes, strict=False)]
    answered = "{} and {}".format(*sizes) if are_more and not any(are_more) else ""
    return unsure(RAISES_WHEN_SHORTER, NO_ANSWER, error=str(error), answered=answered)


@dataclass
class Examination:
    """One model under all wanted checks. found: the outcome of each part that counts most so far;
    asked: length, rows, mode, precision and seed of each batch of which a part was asked; spent:
    work so far; passed_at: the lengths at which a part passed, by its title; source_pad: the other
    id that pads sources, once it was looked for; nan: the first check that met outputs that are
    NaN."""

    model: Adapter
    settings: list[Setting]
    wanted: tuple[str, ...]
    expected: Mapping[str, str]
    progress: Progress | None
    found: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    asked: set[tuple[int, int, str, str, int]] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    spent: float = 0.0
    passed_at: dict[str, set[int]] = field(default_factory=dict)
    source_pad: tuple[int | None] | None = None
    nan: str | None = None

    def report(self) -> Report:
        """Every check wanted, on every batch, in each mode and precision that the model has."""
        model = self.model
        came_in_train_mode = model.module is not None and model.module.training
        with undisturbed(model.module):
            torch.manual_seed(self.settings[0].seed)
            first, *others = self._first_batches()
            if others and self._wants("every", "both ends"):
                first, *others = self._faithful(first, others[0])
            self._ask_whether_steady(first)
            if first.is_steady:
                self._ask_all(first, "first", "every", "both ends")
                for other in others:
                    self._ask_all(other, "every")
                self._ask_longer(first)
                self._ask_all(first, "last")
        if model.facts.equal_lengths:
            self.notes.append(
                "source and target are of one length in every batch, filled up with pads: the "
                "model refuses others"
            )
        if model.facts.layout_is_guessed:
            self.notes.append(
                "ids were handed over as (L, B), because fed (B, L) the model mixes rows up; "
                "batch_first=False says that it is fed so"
            )
        names = ("lengths", "rows", "modes", "precisions", "seeds")
        tried = {name: sorted({each[n] for each in self.asked}) for n, name in enumerate(names)}
        tried["came_in"] = ["train"] if came_in_train_mode else ["eval"]
        return Report(
            model.facts.name,
            first.precision,
            tuple(self._result(check) for name, check in CHECKS.items() if name in self.found),
            model.facts.said,
            tried | {"notes": self.notes, "left_out": self.left_out},
        )

    def _result(self, check: Check) -> Result:
        """Of the outcomes of a check's parts the one that counts most. Where several parts fail
        that is the first of them, because `max` keeps the first of equals; a pass has the evidence
        of the first part that passes. An essential check is not judged without its first part."""
        parts = self.found[check.name]
        first, counting = next(iter(parts.values())), max(parts.values(), key=lambda p: p.weight)
        if counting.verdict != "FAIL" and check.essential and first.verdict == "cannot judge":
            counting = first
        if counting.verdict == "PASS":
            said = next(part.said for part in parts.values() if part.verdict == "PASS")
            counting = replace(counting, said=said)
        if counting.verdict == "FAIL" and check.conclude is not None:
            counting = check.conclude(counting, parts)
        code = "" if counting.cause is None else counting.cause.code
        expected = self.expected.get(code, "")
        if counting.verdict != "cannot judge":  # a doubt is expected by its code alone
            expected = self.expected.get(check.name) or expected
        asked = f'only="{check.name}", length={counting.length}, seed={self.settings[0].seed}'
        again = f"toytrans.check(model, ..., {asked})" if counting.verdict == "FAIL" else ""
        return Result(check, counting, parts, expected, again)

    # Batches -----------------------------------------------------------------------------------

    def _first_batches(self) -> list[Asked]:
        """The first batch in fp64 and in fp32, or else as the model came, where it cannot be copied
        on the model itself."""
        setting, made, raised = self.settings[0], list[Asked](), list[UserError]()
        for precision in (torch.float64, torch.float32, None):
            if precision is None and made:
                break
            if (copied := self.model.copied(precision)) is None:
                return [Asked(self._uncopied(), setting)]
            try:
                made.append(Asked(copied, setting))
            except UserError as error:
                raised.append(error)
        if not made:
            raise raised[0]
        if randomized := made[0].model.randomized:
            self.notes.append(
                f"{len(randomized)} weights that are all zero hold small random numbers in the "
                "copy, for nothing is seen through them"
            )
        return [asked for asked in made if asked.is_steady] or made

    def _faithful(self, double: Asked, single: Asked) -> list[Asked]:
        """The batch in fp64 and in fp32; or in fp32 alone, if at more places the copy in fp64
        computes something else than that in fp32, and the model did not come in fp64. torch's
        attention on a CPU, for one, reads a mask that a model makes in fp32 as if its numbers were
        of fp64, from 16 keys on, and then closes other keys."""
        if torch.float64 in self.model.dtypes or single.model.precision != torch.float32:
            return [double, single]
        places = min(MORE_PLACES, self.model.facts.max_length or MORE_PLACES)
        ids = double.src, double.tgt_in
        src, tgt_in = (x.repeat(1, places)[:, :places] for x in ids)
        try:
            exact, rounded = (each.model.ask(src, tgt_in).double() for each in (double, single))
        except UserError:  # longer batches are asked later, and then it is told
            return [double, single]
        by = largest((exact - rounded)[exact.isfinite() & rounded.isfinite()])
        is_faithful = by <= tolerances.OF_A_COPY * double.typical_logit
        return [double, single] if is_faithful else [single]

    def _uncopied(self) -> Adapter:
        """The model itself. Raises UserError where it is on another device than it should be."""
        weights = () if self.model.module is None else self.model.module.parameters()
        if (weight := next(iter(weights), None)) is not None and weight.device != self.model.device:
            raise UserError(
                f"{self.model.facts.name} cannot be copied to {self.model.device}, so it is asked "
                f"itself: move it there, or give device={str(weight.device)!r}"
            )
        return self.model

    def _ask_whether_steady(self, asked: Asked) -> None:
        """Ask what even a model without steady answers can be asked: whether they are. An unsteady
        one fails it whatever checks are wanted."""
        for part in _parts_of_unsteady():
            if part.check.name in self.wanted or not asked.is_steady:
                self._ask(part, asked)

    def _ask_longer(self, first: Asked) -> None:
        """Ask longer batches in each mode, up to the length at which a mode is refused, or would be
        too much work. What eval mode is refused, train mode is not asked either. No batch is made
        of which no part would be asked: parts on "every" want each, those on "both ends" the
        longest in eval mode."""
        if not self._wants("every", "both ends"):
            return
        copies = self._modes(first.model) if self._wants("every") else [first.model]
        longest, last = first, len(self.settings) - 1
        for number, setting in enumerate(self.settings):
            for copied in tuple(copies):
                is_eval = copied is first.model
                is_asked_already = is_eval and number == 0
                is_left_to_eval = not is_eval and number == 2 < last  # to save time
                is_wanted = self._wants("every") or (is_eval and self._wants("both ends"))
                if copied not in copies or is_asked_already or is_left_to_eval or not is_wanted:
                    continue
                try:
                    longer = Asked(copied, setting)
                    if not longer.is_steady:
                        self._ask_whether_steady(longer)
                    self._require_steady(longer)
                except UserError as error:
                    no_answer = isinstance(error, NoAnswer)
                    why = f"{error}; {NO_ANSWER.remedy}" if no_answer else str(error)
                    where = f"length {setting.length} in {copied.mode} mode"
                    self.notes.append(f"{where} not judged: {why}")
                    copies = [] if is_eval else [first.model]
                    continue
                if self._is_too_much(longer):
                    copies.remove(copied)
                    continue
                self._ask_all(longer, "every")
                longest = longer if is_eval else longest
        if longest is not first:
            self._ask_all(longest, "both ends")

    def _modes(self, model: Adapter) -> list[Adapter]:
        """A copy in eval mode, and one in train mode where there is one."""
        if self.model.module is None or model is self.model:
            no_module = self.model.module is None
            why = "there is no module to copy" if no_module else "it cannot be copied"
            self.notes.append(f"train mode not tried: {why}")
            return [model]
        train = self.model.copied(model.precision, training=True)
        return [model] if train is None else [model, train]

    def _is_too_much(self, longer: Asked) -> bool:
        """Whether a batch would exceed the work of all checks, which is then said; no work is too
        much where longer sequences were asked for."""
        needed, longest = ANSWERS_A_BATCH * longer.work, self.settings[-1].length
        if longest > LENGTH or self.spent + needed < WORK:
            self.spent += needed
            return False
        left_out = f"lengths from {longer.setting.length} on in {longer.model.mode} mode"
        self.left_out.append(left_out)
        self.notes.append(
            f"{left_out} left out: the model is large; length={THOROUGH} tries them, or give a "
            "smaller model"
        )
        return True

    def _require_steady(self, asked: Asked) -> None:
        """Raises UserError where a longer batch gets two answers."""
        if not asked.is_steady:
            outcome, _ = judge(next(_parts_of_unsteady()), asked)
            raise UserError(outcome.message)

    # Asking ------------------------------------------------------------------------------------

    def _parts(self, *on: On) -> list[Part]:
        """All wanted parts that are asked of such batches."""
        wanted = [check for name, check in CHECKS.items() if name in self.wanted]
        return [
            part
            for check in wanted
            for part in check.parts
            if part.on in on and not part.of_unsteady
        ]

    def _has_failed(self, part: Part) -> bool:
        """Whether a part has failed in a batch; it is not asked again then."""
        known = self.found.get(part.check.name, {}).get(part.name)
        return known is not None and known.verdict == "FAIL"

    def _wants(self, *on: On) -> bool:
        """Whether a part is left that would be asked of such batches."""
        return any(not self._has_failed(part) for part in self._parts(*on))

    def _ask_all(self, asked: Asked, *on: On) -> None:
        """Ask a batch all wanted parts that are asked of such batches."""
        for part in self._parts(*on):
            self._ask(part, asked)

    def _ask(self, part: Part, asked: Asked) -> None:
        """Ask one part of a batch, unless it has failed already. Where fp64 gives NaN the same is
        asked in fp32, which then counts, because a mask's fill may need that precision."""
        if self._has_failed(part):
            return
        if self.progress is not None:
            self.progress(f"{part.check.name}: {part.name}, {asked.described}")
        new = self._outcome(part, asked)
        if _is_nan(new) and asked.model.precision == torch.float64:
            single = self.model.copied(torch.float32, asked.model.training)
            if single is not None:
                with contextlib.suppress(UserError):
                    new = self._outcome(part, Asked(single, asked.setting))
        if new.verdict == "PASS":
            self.passed_at.setdefault(part.title, set()).add(asked.setting.length)
        outcomes = self.found.setdefault(part.check.name, {})
        both = [outcomes[part.name], new] if part.name in outcomes else [new]
        outcomes[part.name] = max(both, key=lambda outcome: outcome.weight)

    def _judge(self, part: Part, asked: Asked) -> tuple[Outcome, Broken | None]:
        """Ask one part of a batch, which is then among those that were tried."""
        self.asked.add(asked.described_by)
        return judge(part, asked)

    def _outcome(self, part: Part, asked: Asked) -> Outcome:
        """The outcome of a part; a failure with all that can be said of it."""
        outcome, broken = self._judge(part, asked)
        if outcome.verdict != "FAIL":
            return outcome
        length = self._length_to_see_again(part, outcome, asked.setting)
        outcome = replace(outcome, length=length, line=outcome.evidence.get("line", ""))
        if part.of_unsteady:
            return outcome
        doubt = self._doubt_of_two_answers(broken, asked) or self._doubt_of_batch_norm(part, asked)
        return doubt or self._explained(part, outcome, broken, asked)

    def _length_to_see_again(self, part: Part, failure: Outcome, setting: Setting) -> int:
        """The `length=` of `check` that is enough to see a failure again: the length of its batch.
        All batches are needed by what is asked at the end, after them; by the other shapes, which
        are chosen by the longest length; and by a batch that only longer checks make."""
        longest = self.settings[-1].length
        if part.on == "last":
            return longest
        if "widest" in failure.evidence:
            return int(failure.evidence["widest"])
        again = settings_of(setting.length, self.settings[0].seed, None)
        made = [(each.length, each.rows, each.seed) for each in again]
        return setting.length if (setting.length, setting.rows, setting.seed) in made else longest

    # Explaining a failure ----------------------------------------------------------------------

    def _explained(
        self, part: Part, failure: Outcome, broken: Broken | None, asked: Asked
    ) -> Outcome:
        """A failure with the checks from which it follows, its mode and batch, where it shows, and
        the smallest example; no failure where the source may have another pad."""
        doubt = self._doubt_of_the_pad(asked) if part.may_be_another_pad else None
        if doubt is not None:
            return doubt
        if broken is not None and not part.of_rows and self._rows_see_each_other:
            with contextlib.suppress(UserError):
                if not broken.moves_equal_rows(asked):
                    return unsure(ROWS_ALONE)
        follows = (*failure.follows, *part.follows(asked.facts.kind))
        failure = replace(failure, follows=follows)
        if _is_nan(failure) and _has_nan(asked):
            failure = self._with_nan_as_cause(part, failure, asked)
        else:
            failure = self._with_its_mode(part, failure, asked)
        failure = self._with_its_batch(part, failure, asked)
        found = None if broken is None else smallest_example(asked, broken)
        example, begins = (failure.example, None) if found is None else found
        seen = evidence_of(begins, _attends(asked)) | dict(failure.evidence)
        failure = failure.with_evidence(precision=asked.precision, **seen)
        where = "" if begins is None or not begins.words else f"in {begins.words}"
        line = failure.evidence.get("line", "")
        return replace(failure, example=example, where=where, line=line)

    def _doubt_of_two_answers(self, broken: Broken | None, asked: Asked) -> Outcome | None:
        """No verdict where the ids of a change get two answers, which is a failure of its own."""
        if broken is None or broken.change.around is not contextlib.nullcontext:
            return None
        ids = broken.change.ids
        unsteady = two_answers(asked, ids)
        if unsteady is None:
            return None
        part = next(_parts_of_unsteady())
        length = self.settings[-1].length
        self.found.setdefault(part.check.name, {})[part.name] = replace(unsteady, length=length)
        rows, places = ids.tgt_in.shape
        return unsure(DRAWN_ANEW, rows=rows, places=places)

    def _doubt_of_batch_norm(self, part: Part, asked: Asked) -> Outcome | None:
        """No verdict where train mode passes once BatchNorm has the statistics of eval mode."""
        if not (part.check.may_be_batch_statistics and asked.model.training):
            return None
        other = self.model.copied(asked.model.precision, training=True)
        parts = [] if other is None or other.module is None else [*other.module.modules()]
        norms = [each for each in parts if isinstance(each, nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.eval()
        with contextlib.suppress(UserError):
            if other is not None and norms:
                outcome, _ = judge(part, Asked(other, asked.setting))
                return unsure(BATCH_STATISTICS) if outcome.verdict == "PASS" else None
        return None

    @property
    def _rows_see_each_other(self) -> bool:
        """Whether a part has failed that asks so."""
        return any(
            part.of_rows and self._has_failed(part)
            for check in CHECKS.values()
            for part in check.parts
        )

    def _doubt_of_the_pad(self, asked: Asked) -> Outcome | None:
        """No verdict where the source may have another pad, which is looked for once."""
        if self.source_pad is None:
            self.source_pad = (another_source_pad(asked),)
        if (other := self.source_pad[0]) is None:
            return None
        return unsure(ANOTHER_PAD, pad=asked.facts.pad_id, other=other)

    def _with_nan_as_cause(self, part: Part, failure: Outcome, asked: Asked) -> Outcome:
        """NaN in an ordinary batch is a cause of its own. The first check that meets it is its
        failure, and those that meet it later follow from that one."""
        self.nan = self.nan or part.check.name
        first = () if self.nan == part.check.name else (self.nan,)
        failure = replace(failure, causes=NANS, follows=(*part.check.follows, *first))
        return failure.with_evidence(**nan_of_batch(asked))

    def _with_its_mode(self, part: Part, failure: Outcome, asked: Asked) -> Outcome:
        """A failure that says in which mode alone it fails, where the other one passes."""
        if part.compares_modes:
            return failure
        mode, other_mode = asked.model.mode, self._mode_that_passes(part, asked)
        if other_mode is None:
            return failure
        said = f"; {mode} mode alone, {other_mode} mode passes: look for self.training"
        said += " and for torch's fast path" * (mode == "eval")
        follows = (*failure.follows, *_checks_that_compare_modes())
        failure = replace(failure, circumstances=said, follows=follows)
        return failure.with_evidence(mode_alone=mode)

    def _mode_that_passes(self, part: Part, asked: Asked) -> str | None:
        """The other mode, where the same batch passes in it; None where both fail."""
        if asked.model is self.model:
            return None
        other = self.model.copied(asked.model.precision, not asked.model.training)
        with contextlib.suppress(*RAISED):  # the other mode cannot be asked: it tells nothing
            if other is not None:
                outcome, _ = self._judge(part, Asked(other, asked.setting))
                return other.mode if outcome.verdict == "PASS" else None
        return None

    def _with_its_batch(self, part: Part, failure: Outcome, asked: Asked) -> Outcome:
        """A failure that says in which batch it was seen, unless that is the shortest in eval mode,
        and up to which length the same part passed, if it passed in shorter ones alone."""
        length, shorter = asked.setting.length, self.passed_at.get(part.title, set())
        passed_at = max(shorter) if shorter and max(shorter) < length else 0
        failure = failure.with_evidence(passed_at=passed_at, at_length=length)
        if length == SIZES[0][0] and not asked.model.training:
            return failure
        passing = f"; up to length {passed_at} it passes" if passed_at else ""
        said = f"{failure.circumstances} ({asked.described}{passing})"
        return replace(failure, circumstances=said)


def _parts_of_unsteady() -> Iterator[Part]:
    """Parts that even a model without steady answers is asked."""
    return (part for check in CHECKS.values() for part in check.parts if part.of_unsteady)


def _checks_that_compare_modes() -> Iterator[str]:
    """Checks from which a failure of one mode alone follows."""
    return (name for name, check in CHECKS.items() if any(p.compares_modes for p in check.parts))


def _is_nan(outcome: Outcome) -> bool:
    """Whether what was measured is NaN."""
    return outcome.difference is not None and math.isnan(outcome.difference)


def _has_nan(asked: Asked) -> bool:
    """Whether an ordinary batch has outputs that are NaN at real places."""
    return bool(asked.logits[asked.real].isnan().any())


def _attends(asked: Asked) -> bool:
    """Whether the model computes attention, as far as can be seen."""
    with contextlib.suppress(*RAISED):  # a foreign model under a dispatch mode
        return any(each.is_attention for each in softmaxes_of(asked))
    return True


# What users call --------------------------------------------------------------------------------


def check(
    model: Any,
    *,
    pad_id: int | None = None,
    vocabulary_size: int | None = None,
    source_size: int | None = None,
    start_id: int | None = None,
    eos_id: int | None = None,
    embedding: Any = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    batch: Callable[[Any], tuple[Tensor, Tensor, Tensor]] | None = None,
    generate: Callable[..., Any] | None = None,
    inputs: Mapping[str, Callable[..., Tensor]] | None = None,
    kind: str | None = None,
    source_pad_id: int | None = None,
    batch_first: bool | None = None,
    max_length: int | None = None,
    scale: float | None = None,
    window: int | None = None,
    prefix: int | None = None,
    pad_side: str | None = None,
    promises: Iterable[str] | None = None,
    expected: Mapping[str, str] | None = None,
    device: Any = None,
    effort: Literal["quick", "default"] = "default",
    length: int | None = None,
    seed: int = 0,
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Run every check that applies to a model.

    model: f(src (B, S), tgt_in (B, T)) -> logits (B, T, V), ids in int64; or a toytrans run, or a
    Hugging Face model, of which the rest is known. A model of one stream takes ids alone: kind is
    then "decoder" or "encoder". A module is copied. The one that is given, and those that given
    functions run, stay as they are, and so does the state of random numbers.

    pad_id, vocabulary_size: of the target; source_pad_id, source_size: the source's, if others.
    start_id: the first decoder input; eos_id: what ends a sequence. embedding: what embeds ids, or
    (source's, target's), if it is no nn.Embedding. loss: (logits, tgt_out) -> mean. batch: pairs of
    lists of symbol ids -> (src, tgt_in, tgt_out). generate: (src, tgt_in) -> logits made step by
    step, or src -> ids decoded greedily, to be compared with the parallel pass. inputs: further
    arguments of forward by their names, as {"segments": lambda src, tgt_in: src * 0}.

    Facts that change what is asked, and are said in the report: kind, source_pad_id, source_size;
    batch_first: False where ids and logits are (T, B), detected if not given; max_length: the most
    places the model takes; scale: what multiplies q k, where it is not 1 / root of the head's
    width; window: how many places away a token may be seen in self-attention; prefix: how many
    places at the beginning of a target see each other; pad_side: "left" for a model that wants its
    pads in front; promises: names of `toytrans.checks.facts.PROMISES`, whose lack is then a
    failure.

    expected: a check or the code of a cause, and why its failure is meant, as {"order": "a bag of
    words"}. Such a failure does not count, and where the check passes the report says so. The code
    of a doubt says that what cannot be judged is known.

    device: where the copies are; where it is not given, they stay where the model is. effort:
    "quick" asks the shortest batch alone. length: symbols of the longest sequence tried, 64. With
    more (512 say) the checks are thorough: batches of 32 rows, and no bound on work. only, skip:
    names of checks, as ["pads", "future"]. progress: called with what is being tried.

    Raises UserError where the model cannot be asked: wrong shape, NaN throughout, another answer
    at the second call, an exception of its own, fewer places than needed.
    """
    told = dict(locals())
    own = ("model", "length", "effort", "seed", "only", "skip", "progress", "expected")
    wanted = selected(only, skip)
    _refuse_what_is_unknown(expected or {}, effort, length)
    with caller_unchanged(model, generate, loss, batch):
        adapter = adapter_of(model, **{n: value for n, value in told.items() if n not in own})
        limit = adapter.facts.max_length
        if effort == "quick":
            length = SIZES[0][0] if limit is None else max(SHORTEST, min(SIZES[0][0], limit - 4))
        settings = settings_of(length, seed, limit)
        return Examination(adapter, settings, wanted, expected or {}, progress).report()


def _refuse_what_is_unknown(expected: Mapping[str, str], effort: str, length: int | None) -> None:
    """Raises UserError for names that are expected and do not exist, and for another effort."""
    known = (*CHECKS, *CAUSES)
    if unknown := [name for name in expected if name not in known]:
        raise UserError(f"expected {unknown[0]!r}; {did_you_mean(unknown[0], known)}")
    if effort not in ("quick", "default"):
        raise UserError(f"effort {effort!r}: give quick or default")
    if effort == "quick" and length is not None:
        raise UserError("effort='quick' asks the shortest batch alone; leave length out")
