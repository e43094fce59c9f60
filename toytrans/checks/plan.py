"""Of what parts each check is made, which batches are asked, and what came of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from toytrans.checks import changes, gradients, locate, loss, reach, scale, steps, sublayers
from toytrans.checks.batch import SHORTEST, Batch, Setting, Unsteady
from toytrans.checks.change import moves, stays
from toytrans.checks.copies import Copy, copies_run_it, copy_of, in_eval_mode, on_one_thread
from toytrans.checks.result import (
    CHECKS,
    CannotJudge,
    NotApplicable,
    NotAsked,
    Report,
    Result,
    Tried,
    Wrong,
    measured,
    merged,
)
from toytrans.checks.subject import Adapter, NoAnswer
from toytrans.errors import UserError

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """A part of a check, by its name in words.

    of: which batches it is asked of: the first (shortest), every one in every mode and precision,
    the longest, the first and the longest, or the first after all else.
    essential: without it the check is not judged. fragile: it fails where the model raises an
    exception at it.
    """

    check: str
    name: str
    ask: Callable[[Batch], Result]
    of: Literal["first", "every", "longest", "both ends", "last"] = "first"
    essential: bool = False
    fragile: bool = False


PARTS = (
    Part("pads", "more pads", stays(changes.pads_appended), "every", essential=True),
    Part("pads", "other shapes", stays(changes.pads_in_other_shapes)),
    Part("pads", "their embeddings", stays(changes.pads_hold_anything)),
    Part("pads", "gradients", gradients.towards(of_future=False), "every"),
    Part("future", "single tokens", stays(changes.later_token), "every", essential=True),
    Part("future", "all that follows", stays(changes.all_that_follows), "every"),
    Part("future", "prefixes", stays(changes.prefixes), "every"),
    Part("future", "other shapes", stays(changes.symbols_in_other_shapes)),
    Part("future", "gradients", gradients.towards(of_future=True), "every"),
    Part("rows", "a pair alone", stays(changes.rows_alone), "every", fragile=True),
    Part("rows", "another order", stays(changes.rows_in_another_order), "every", fragile=True),
    Part("rows", "an empty pair", stays(changes.empty_pair_added)),
    Part("calls", "others between", stays(changes.other_calls_between), "every", fragile=True),
    Part("calls", "the longest first", changes.fresh_copies_agree, "longest"),
    Part("calls", "the same again", stays(changes.same_again), "last"),
    Part("order", "neighbours swapped", moves(changes.neighbours_swapped)),
    Part("order", "far behind", moves(changes.neighbours_swapped_far), "longest"),
    Part("source", "token by token", reach.tokens_seen("source"), "both ends", essential=True),
    Part("target", "token by token", reach.tokens_seen("target"), "both ends", essential=True),
    Part("steps", "one by one", steps.steps_are_the_pass, "both ends"),
    Part("loss", "pads", loss.pad_labels_ignored),
    Part("loss", "halves", loss.halves_add_up),
    Part("loss", "likelier labels", loss.likelier_labels_cost_less),
    Part("labels", "the shift", loss.labels_shifted),
    Part("labels", "start and end", loss.ends_agree),
    Part("scale", "every attention", scale.attention_is_right),
    Part("sublayers", "residual connections", sublayers.input_passes_by),
    Part("sublayers", "norms", sublayers.scale_is_normed),
    Part("sublayers", "feed-forward", sublayers.feed_forward_at_work),
)

READS_PADS = ("pads", "rows", "calls", "source", "labels")
"""Checks that fail as well where the source has another pad than the one that is known."""

THEIR_NUMBER = (
    "; what pads hold does not matter, by gradients, so it may be how many there are: a mean, "
    "scale or position that uses the padded width"
)

LENGTH, THOROUGH = 64, 512
"""Symbols of the longest sequence tried; more are thorough."""

SIZES = ((7, 4), (16, 12), (33, 5), (64, 3))
MORE_SIZES = ((20, 32), (128, 4), (256, 2), (512, 2))
"""Symbols of the longest sequence of a batch, and its rows; more where longer ones are asked for,
which then have no bound of work."""

WORK = 75e9
"""Multiplications (`Counted`) that the checks are kept within, unless thorough: about 15 s."""

ANSWERS = 80
"""Answers to a batch that its checks ask for, about."""


@dataclass
class Plan:
    """What is asked of a model, and what came of it: results of parts by check and name."""

    length: int | None
    seed: int
    wanted: tuple[str, ...]
    progress: Progress | None
    found: dict[Part, Result] = field(default_factory=dict)
    tried: Tried = field(default_factory=Tried)
    spent: float = 0.0
    source_pad: tuple[int | None] | None = None
    thorough: bool = False

    def sizes(self, limit: int | None) -> list[Setting]:
        """The batches, cheap ones first, each with a seed of its own, none beyond a limit."""
        longest = self.length
        if longest is not None and (not isinstance(longest, int) or longest < SHORTEST):
            raise UserError(
                f"length {longest}: the checks need sequences of {SHORTEST} symbols or more"
            )
        wanted = longest or LENGTH
        if limit is not None and wanted > limit - 4:
            if longest is not None or limit - 4 < SHORTEST:
                shorter = "give a smaller length, or " if limit - 4 >= SHORTEST else ""
                raise UserError(
                    f"the model takes {limit} places and the checks need "
                    f"{(longest or SHORTEST) + 4}; {shorter}build the model with more"
                )
            wanted = limit - 4
        self.length, self.thorough = wanted, wanted > LENGTH
        sizes = SIZES + (MORE_SIZES if self.thorough else ())
        made = [Setting(n, rows, self.seed + k) for k, (n, rows) in enumerate(sizes) if n <= wanted]
        if all(setting.length != wanted for setting in made):
            made.append(Setting(wanted, 4 if wanted < 16 else 3, self.seed + len(sizes)))
        most_rows = 33 if self.thorough else 17
        made[0] = replace(made[0], widest=made[-1].length, most_rows=most_rows)
        return made

    def check(self, model: Adapter) -> Report:
        """Every check wanted, on every batch, in each mode and precision that the model has."""
        self.model = model
        settings = self.sizes(model.facts.limit)
        eval_mode = in_eval_mode(model.module)
        gradients = torch.inference_mode(False)  # whatever the program has set
        with gradients, torch.random.fork_rng(devices=[]), on_one_thread(model), eval_mode:
            torch.manual_seed(self.seed)
            try:
                batch, *plain = self._first_batches(settings[0])
            except Unsteady as error:
                batch = self._unsteady(error)
            else:
                self._ask_all(batch, plain, settings)
        if model.facts.equal_lengths:
            self.tried.notes.append(
                "source and target are of one length in every batch, filled up with pads: the "
                "model refuses others"
            )
        precision = str(batch.dtype).removeprefix("torch.")
        return Report(model.facts.name, precision, self._results(), self.tried)

    def _results(self) -> tuple[Result, ...]:
        """One for each check, in the order of `CHECKS`."""
        results = []
        for name in CHECKS:
            parts = {part.name: r for part, r in self.found.items() if part.check == name}
            if not parts:
                continue
            essential = [part.name for part in PARTS if part.check == name and part.essential]
            result = merged(name, parts, essential[0] if essential else "")
            gradients = parts.get("gradients")
            is_number = gradients is not None and gradients.verdict == "PASS"
            if name == "pads" and result.verdict == "FAIL" and is_number:
                result = replace(result, message=result.message + THEIR_NUMBER)
            if self.model.facts.hides_causes and result.verdict != "PASS":
                result = Result(name, result.verdict, "why is not told in a closed exercise")
            results.append(result)
        return tuple(results)

    # The first batch -----------------------------------------------------------------------------

    def _first_batches(self, setting: Setting) -> list[Batch]:
        """The first batch in fp64, and in fp32 where the model has both: fp64 is left where it
        fails, gives NaN that fp32 does not give, or is another model altogether."""
        model, notes = self.model, self.tried.notes
        double = copy_of(model, torch.float64)
        if double is not None and copies_run_it(model):
            notes.append(
                "judged on the model itself, in eval mode: its forward was replaced by a function, "
                "so a copy would still run the original's modules"
            )
            double = None
        made: list[Batch] = []
        raised = []
        if double is None or model.module is None:
            made.append(Batch(Copy(model, None), setting))
        else:
            came_as = {p.dtype for p in model.module.parameters() if p.is_floating_point()}
            single = None if came_as == {torch.float64} else copy_of(model, torch.float32)
            for of in (double, single, copy_of(model)):
                if of is None or (made and of.precision is None):
                    continue
                try:
                    made.append(Batch(of, setting))
                except UserError as error:
                    raised.append(error)
        if not made:
            raise raised[0]
        if len(made) > 1 and not _same_model(*made):
            notes.append("judged in fp32: the copy in fp64 is another model")
            del made[0]
        made[0].require_wider_is_taken()
        if opened := made[0].copy.opened:
            notes.append(
                f"{len(opened)} weights that are all zero hold small random numbers in the copy, "
                "for nothing is seen through them"
            )
        return made

    def _unsteady(self, error: Unsteady) -> Batch:
        """The message about a model that answers the same input in two ways: nothing can be asked.
        Raises the error where that may be dropout that its user left on."""
        batch = error.batch
        module = batch.model.module
        if error.drawn and (module is None or module.training):
            raise error
        self._add(batch)
        again = next(part for part in PARTS if part.of == "last")
        self.found[again] = measured(batch.jitter, batch.tolerance, "", str(error))
        return batch

    # Asking ------------------------------------------------------------------------------------

    def _ask_all(self, batch: Batch, plain: list[Batch], settings: list[Setting]) -> None:
        """The first batch in each precision, then longer ones in each mode."""
        train = self._train(batch)
        self._ask_of(batch, "first", "every", "both ends")
        for other in plain:
            self._ask_of(other, "every")
        longest = batch
        left: set[Copy] = set()
        for number, setting in enumerate(settings):
            for of in (batch.copy, train):
                is_skipped = number == 0 if of is batch.copy else number == 2 < len(settings) - 1
                if of is None or of in left or is_skipped:  # train mode skips one, to save time
                    continue
                longer = self._made(of, setting)
                if longer is None or not self._is_within(longer):
                    left.add(of)
                    continue
                self._ask_of(longer, "every")
                longest = longer if of is batch.copy else longest
        if longest is not batch:
            self._ask_of(longest, "both ends")
        self._ask_of(longest, "longest")
        self._ask_of(batch, "last")

    def _ask_of(self, batch: Batch, *of: str) -> None:
        for part in PARTS:
            if part.of in of:
                self._ask(part, batch)

    def _train(self, batch: Batch) -> Copy | None:
        """A copy in train mode."""
        if self.model.module is None or batch.model is self.model:
            no_module = self.model.module is None
            why = "there is no module to copy" if no_module else "it cannot be copied"
            self.tried.notes.append(f"train mode not tried: {why}")
            return None
        return copy_of(self.model, batch.copy.precision, training=True)

    def _is_within(self, batch: Batch) -> bool:
        """Whether the checks of a batch are within bounds, which they then use up; a note if
        not."""
        needed = ANSWERS * batch.work
        if self.thorough or self.spent + needed < WORK:
            self.spent += needed
            return True
        left_out = f"lengths from {batch.setting.length} on in {batch.copy.mode} mode"
        self.tried.left_out.append(left_out)
        self.tried.notes.append(
            f"{left_out} left out: the model is large; length={THOROUGH} tries them, or give a "
            "smaller model"
        )
        return False

    def _made(self, of: Copy, setting: Setting) -> Batch | None:
        """A batch of some size; None, with a note, where the model does not take it."""
        try:
            batch = Batch(of, setting)
            batch.require_wider_is_taken()
            return batch
        except UserError as error:
            self.tried.notes.append(
                f"length {setting.length} in {of.mode} mode not judged: {error}"
            )
            return None

    def _ask(self, part: Part, batch: Batch) -> None:
        """Ask one part of a batch, unless it has failed already. Of two results that counts which
        judged something, and of passes the worse."""
        known = self.found.get(part)
        if part.check not in self.wanted or (known is not None and known.verdict == "FAIL"):
            return
        if self.progress is not None:
            self.progress(f"{part.check}: {part.name}, {batch.described}")
        self._add(batch)
        new = self._result(part, batch)
        if new.verdict == "FAIL" and new.difference is not None and math.isnan(new.difference):
            single = self._in_single(batch)
            new = new if single is None else self._result(part, single)
        rank = {"FAIL": 3, "PASS": 2, "cannot judge": 1, "not asked": 0, "does not apply": 0}
        if known is None or rank[new.verdict] > rank[known.verdict]:
            self.found[part] = new
        elif new.verdict == known.verdict == "PASS" and new.strain > known.strain:
            self.found[part] = replace(new, message=known.message)

    def _in_single(self, batch: Batch) -> Batch | None:
        """For a check that met NaN in a copy in fp64, the batch in fp32, which users run."""
        if batch.copy.precision != torch.float64:
            return None
        single = copy_of(self.model, torch.float32, batch.copy.training)
        try:
            return None if single is None else Batch(single, batch.setting)
        except UserError:
            return None

    def _add(self, batch: Batch) -> None:
        setting, of = batch.setting, batch.copy
        self.tried.add(setting.length, len(batch.src), of.mode, batch.dtype, setting.seed)

    def _result(self, part: Part, batch: Batch) -> Result:
        try:
            result = part.ask(batch)
        except Wrong as wrong:
            result = measured(1.0, 0.0, "", str(wrong))
        except NoAnswer as error:
            if part.fragile:
                return Result("", "FAIL", str(error), math.nan, batch.tolerance)
            hint = "if it takes fewer places, give max_length=..."
            return Result("", "cannot judge", f"{error}; {hint}")
        except CannotJudge as reason:
            return Result("", "cannot judge", str(reason))
        except NotAsked as reason:
            return Result("", "not asked", str(reason), give=reason.give)
        except NotApplicable as reason:
            return Result("", "does not apply", str(reason))
        except UserError:
            raise
        except Exception as error:  # hooks in foreign models meet tensors of any kind
            if batch.facts.is_textbook:
                raise
            what = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"
            return Result("", "cannot judge", f"the check met {what}")
        if result.verdict != "FAIL":
            return result
        if part.check in READS_PADS and (other := self._other_source_pad(batch)) is not None:
            doubt = (
                f"id {batch.facts.pad_id} behind a source is seen as a symbol, and id {other} is "
                f"not seen: if the source has a pad of its own, give source_pad_id={other}"
            )
            return Result("", "cannot judge", doubt)
        by_shapes = part.name == "other shapes"
        mode = "" if by_shapes else self._mode_named(part.ask, batch)
        causes: tuple[str, ...] = ()
        if part.check == "future" and by_shapes and batch.facts.has_source:
            causes = ("pads",)  # shapes change pads and symbols together
        elif part.check in ("pads", "rows") and batch.facts.kind == "decoder":
            causes = ("future",)  # pads behind ids lie in the future
        result = replace(result, message=result.message + mode, causes=causes)
        return self._explained(part.check, result, batch)

    def _mode_named(self, ask: Callable[[Batch], Result], batch: Batch) -> str:
        """Which mode fails, where the same batch passes in the other one; "" where both fail."""
        if batch.facts.is_textbook or batch.model is self.model:
            return ""
        other = copy_of(self.model, batch.copy.precision, not batch.copy.training)
        try:
            passes = other is not None and ask(Batch(other, batch.setting)).verdict == "PASS"
        except Exception:  # the other mode cannot be asked: it tells nothing
            return ""
        if not passes:
            return ""
        fails, other_mode = ("train", "eval") if batch.copy.training else ("eval", "train")
        return f"; {fails} mode alone, {other_mode} mode passes: look for self.training"

    def _other_source_pad(self, batch: Batch) -> int | None:
        """An id that acts as the source's pad, looked for once."""
        if self.source_pad is None:
            self.source_pad = (changes.other_source_pad(batch),)
        return self.source_pad[0]

    def _explained(self, check: str, result: Result, batch: Batch) -> Result:
        """A failure with where it shows, the smallest example, and how to see it again."""
        where = example = ""
        if result.change is not None:
            where = locate.first_module(batch, result.change)
            example = locate.smallest(batch, result.change)
        plainly = batch.setting.length == SIZES[0][0] and batch.copy.mode == "eval"
        return replace(
            result,
            message=result.message if plainly else f"{result.message} ({batch.described})",
            where=where or None,
            example=example or None,
            reproduce=f'toytrans.check(model, ..., only="{check}", length={self.length}, '
            f"seed={self.seed})",
            change=None,
        )


def _same_model(batch: Batch, plain: Batch) -> bool:
    """Whether fp64 and fp32 answer alike, but for rounding."""
    if bool((batch.logits.isnan() & ~plain.logits.isnan())[batch.real].any()):
        return False
    moved = batch.moved(plain.logits.to(batch.logits.dtype), batch.logits)[batch.real]
    median = moved.nan_to_num(0.0, 0.0, 0.0).median() if moved.numel() else 0.0
    return float(median) <= 1e-2 * batch.typical_logit
