"""Which checks are asked of which batch, in which mode and precision, and what came of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from toytrans.checks import changes, locate, reach
from toytrans.checks.batch import SHORT, SHORTEST, Batch, Setting, Unsteady, apart, largest
from toytrans.checks.change import moves
from toytrans.checks.copies import Copy, copies_run_it, copy_of, in_eval_mode, on_one_thread
from toytrans.checks.result import (
    CHECKS,
    CannotJudge,
    NotApplicable,
    NotAsked,
    Report,
    Result,
    Tried,
    measured,
    merged,
)
from toytrans.checks.subject import Adapter, NoAnswer
from toytrans.checks.table import PARTS, READS_PADS, Part
from toytrans.errors import UserError

Progress = Callable[[str], None]

LENGTH, THOROUGH = 64, 512
"""Symbols of the longest sequence tried."""

SIZES = ((7, 4), (16, 12), (33, 5), (64, 3))
MORE_SIZES = ((20, 32), (128, 4), (256, 2), (512, 2))
"""Symbols of the longest sequence of a batch, and its rows."""

SEEDS = 3
"""Short batches in which it is asked whether every token is seen."""

WORK = 75e9
"""Multiplications (`Counted`) that the checks are kept within, unless asked to be thorough: about
15 s."""

ANSWERS = 80
"""Answers to a batch that its checks ask for, about."""

BY_TOKEN = "token by token"
"""The only part of the checks of source and target, which takes several batches."""


@dataclass
class Plan:
    """What is asked of a model, and what came of it: results of parts by check and name."""

    length: int | None
    seed: int
    wanted: tuple[str, ...]
    thorough: bool
    progress: Progress | None
    found: dict[tuple[str, str], Result] = field(default_factory=dict)
    tried: Tried = field(default_factory=Tried)
    spent: float = 0.0
    source_pad: tuple[int | None] | None = None

    def sizes(self, limit: int | None) -> list[Setting]:
        """The batches, cheap ones first, each with a seed of its own, none beyond a limit."""
        longest = self.length
        if longest is not None and (not isinstance(longest, int) or longest < SHORTEST):
            raise UserError(
                f"length {longest}: the checks need sequences of {SHORTEST} symbols or more"
            )
        wanted = longest or (THOROUGH if self.thorough else LENGTH)
        if limit is not None and wanted > limit - 4:
            if longest is not None or limit - 4 < SHORTEST:
                shorter = "give a smaller length, or " if limit - 4 >= SHORTEST else ""
                raise UserError(
                    f"the model takes {limit} places and the checks need "
                    f"{(longest or SHORTEST) + 4}; {shorter}build the model with more"
                )
            wanted = limit - 4
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
        with torch.random.fork_rng(devices=[]), on_one_thread(model), eval_mode:
            torch.manual_seed(self.seed)
            try:
                batch, plain = self._first_batches(settings[0])
            except Unsteady as error:
                batch = self._unsteady(error)
            else:
                self._ask_all(batch, plain, settings)
                self._ask_again(batch)
        if model.facts.equal_lengths:
            self.tried.notes.append(
                "source and target are of one length in every batch: the model refuses others"
            )
        precision = str(batch.dtype).removeprefix("torch.")
        return Report(model.facts.name, precision, self._results(), self.tried)

    def _results(self) -> tuple[Result, ...]:
        """One for each check, in the order of `CHECKS`."""
        essential = {part.check: part.name for part in PARTS if part.essential}
        essential |= {"source": BY_TOKEN, "target": BY_TOKEN}
        results = []
        for name in CHECKS:
            parts = {part: found for (check, part), found in self.found.items() if check == name}
            if not parts:
                continue
            result = merged(name, parts, essential.get(name, ""))
            gradients = parts.get("gradients")
            if name == "pads" and gradients is not None and result is not gradients:
                result = _with_width_named(result, gradients)
            if self.model.facts.hides_causes and result.verdict != "PASS":
                result = Result(name, result.verdict, "why is not told in a closed exercise")
            results.append(result)
        return tuple(results)

    # The first batch -----------------------------------------------------------------------------

    def _first_batches(self, setting: Setting) -> tuple[Batch, Batch | None]:
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
        if double is None or model.module is None:
            only = Batch(Copy(model, None), setting)
            only.require_wider_is_taken()
            return only, None
        came_as = {p.dtype for p in model.module.parameters() if p.is_floating_point()}
        single = None if came_as == {torch.float64} else copy_of(model, torch.float32)
        once = replace(setting, widest=0)  # widths are tried in one precision
        batch: Batch | None = None
        plain = raised = None
        try:
            batch = Batch(double, setting)
        except UserError as error:
            raised = error
        try:
            plain = Batch(single, once) if single is not None else None
        except UserError as error:
            raised = raised or error
            kept = copy_of(model)
            if batch is None and kept is not None:
                plain = Batch(kept, setting)
        if batch is not None and plain is not None and not _same_model(batch, plain):
            notes.append("judged in fp32: the copy in fp64 is another model")
            batch = None
        if batch is None:
            if plain is None:
                assert raised is not None
                raise raised
            batch, plain = plain, None
        batch.require_wider_is_taken()
        if batch.copy.opened:
            notes.append(
                f"{len(batch.copy.opened)} weights that are all zero hold small random numbers in "
                "the copy, for nothing is seen through them"
            )
        return batch, plain

    def _unsteady(self, error: Unsteady) -> Batch:
        """The message about a model that answers the same input in two ways: nothing can be asked.
        Raises the error where that may be dropout that its user left on."""
        batch = error.batch
        module = batch.model.module
        if error.drawn and (module is None or module.training):
            raise error
        self._add(batch)
        self._fail_calls(str(error), batch.jitter, batch)
        return batch

    def _fail_calls(self, cause: str, by: float, batch: Batch) -> None:
        self.found["calls", "the same again"] = measured(by, batch.tolerance, "", cause)

    # Asking ------------------------------------------------------------------------------------

    def _ask_all(self, batch: Batch, plain: Batch | None, settings: list[Setting]) -> None:
        """The first batch first, in each mode; then longer ones."""
        train = self._train(batch)
        is_copied = batch.model is not self.model
        fresh = copy_of(self.model, batch.copy.precision) if is_copied else None
        for part in PARTS:
            self._ask(part, batch)
        self._reach(batch, SEEDS)
        if plain is not None:
            self._ask_often(plain)
        copies = [batch.copy, *([plain.copy] if plain else []), *([train] if train else [])]
        left: set[Copy] = set()
        longest = batch
        for number, setting in enumerate(settings):
            for of in copies:
                if of in left or not self._is_wanted(number, of, batch, len(settings)):
                    continue
                longer = self._made(of, setting)
                if longer is None or not self._is_within(longer):
                    left.add(of)
                    continue
                self._ask_often(longer)
                if of is batch.copy:
                    longest = longer
                    if number == 2 and not longer.facts.is_textbook:
                        self._ask(next(p for p in PARTS if p.check == "steps"), longer)
        if longest.setting.length > SHORT:
            self._reach(longest, SEEDS - 1)
        if longest is not batch:
            self._order_far(longest)
            self._other_way_round(fresh, [longest, batch])

    def _train(self, batch: Batch) -> Copy | None:
        """A copy in train mode."""
        if self.model.module is None or batch.model is self.model:
            no_module = self.model.module is None
            why = "there is no module to copy" if no_module else "it cannot be copied"
            self.tried.notes.append(f"train mode not tried: {why}")
            return None
        return copy_of(self.model, batch.copy.precision, training=True)

    def _is_wanted(self, number: int, of: Copy, batch: Batch, count: int) -> bool:
        """The first batch was asked in eval mode already. The longer ones are asked in a second
        precision by a thorough plan alone; train mode skips one."""
        if of.training:
            return number != 2 or count <= 3
        return number > 0 and (of is batch.copy or (self.thorough and number % 2 == 0))

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
            f"{left_out} left out: the model is large; thorough tries them, or give a smaller one"
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

    def _ask_often(self, batch: Batch) -> None:
        for part in PARTS:
            if part.often:
                self._ask(part, batch)

    def _ask(self, part: Part, batch: Batch) -> None:
        """Ask one part of a batch, unless it has failed already; the worst is kept."""
        if part.check not in self.wanted:
            return
        known = self.found.get((part.check, part.name))
        if known is not None and known.verdict not in ("PASS", "cannot judge"):
            return
        if self.progress is not None:
            self.progress(f"{part.check}: {part.name}, {batch.described}")
        self._add(batch)
        ask = part.ask
        new = self._result(part.check, ask, batch, part.fragile)
        if new.verdict == "FAIL" and new.difference is not None and math.isnan(new.difference):
            single = self._in_single(batch)
            new = self._result(part.check, ask, single, part.fragile) if single else new
        self._keep(part.check, part.name, new)

    def _add(self, batch: Batch) -> None:
        setting, of = batch.setting, batch.copy
        self.tried.add(setting.length, len(batch.src), of.mode, batch.dtype, setting.seed)

    def _in_single(self, batch: Batch) -> Batch | None:
        """For a check that met NaN in a copy in fp64, the batch in fp32, which users run."""
        if batch.copy.precision != torch.float64:
            return None
        single = copy_of(self.model, torch.float32, batch.copy.training)
        try:
            return Batch(single, batch.setting) if single is not None else None
        except UserError:
            return None

    def _result(
        self, check: str, ask: Callable[[Batch], Result], batch: Batch, fragile: bool = False
    ) -> Result:
        try:
            result = ask(batch)
        except NoAnswer as error:
            if fragile:
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
        if check in READS_PADS and (other := self._other_source_pad(batch)) is not None:
            doubt = (
                f"id {batch.facts.pad_id} behind a source is seen as a symbol, and id {other} is "
                f"not seen: if the source has a pad of its own, give source_pad_id={other}"
            )
            return Result("", "cannot judge", doubt)
        by_shapes = result.change is not None and result.change.length is not None
        mode = "" if by_shapes else self._mode_named(ask, batch)
        causes: tuple[str, ...] = ()
        if check == "future" and by_shapes and batch.facts.has_source:
            causes = ("pads",)  # shapes change pads and symbols together
        elif check in ("pads", "rows") and batch.facts.kind == "decoder":
            causes = ("future",)  # pads behind ids lie in the future
        result = replace(result, message=result.message + mode, causes=causes)
        return self._explained(check, result, batch)

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
        length = batch.setting.length
        if result.change is not None and result.change.length is not None:
            length = result.change.length
        thorough = ", thorough=True" if self.thorough else ""
        return replace(
            result,
            message=result.message if plainly else f"{result.message} ({batch.described})",
            where=where or None,
            example=example or None,
            reproduce=f'toytrans.check(model, ..., only="{check}", length={length}, '
            f"seed={self.seed}{thorough})",
            change=None,
        )

    def _keep(self, check: str, part: str, new: Result) -> None:
        """Of two results the one that counts: a failure, else what was judged, else the worse."""
        old = self.found.get((check, part))
        rank = {"FAIL": 3, "PASS": 2, "cannot judge": 1, "not asked": 0, "does not apply": 0}
        if old is None or rank[new.verdict] > rank[old.verdict]:
            self.found[check, part] = new
        elif new.verdict == old.verdict == "PASS" and new.strain > old.strain:
            self.found[check, part] = replace(new, message=old.message)

    # Several batches together ------------------------------------------------------------------

    def _reach(self, first: Batch, count: int) -> None:
        """Whether every token is seen: in a batch, and where it is not in some of other seeds."""

        def make(number: int) -> Batch | None:
            seed = first.setting.seed + number
            batch = self._made(first.copy, replace(first.setting, seed=seed))
            if batch is not None:
                self._add(batch)
            return batch

        trials = reach.Trials(make, count, [first])
        for side in ("source", "target"):
            known = self.found.get((side, BY_TOKEN))
            if side not in self.wanted or (known is not None and known.verdict != "PASS"):
                continue
            self._add(first)
            if self.progress is not None:
                self.progress(f"{side}: {BY_TOKEN}, length {first.setting.length}")
            ask = partial(reach.tokens_seen, side, trials)
            self._keep(side, BY_TOKEN, self._result(side, lambda _, ask=ask: ask(), first))  # type: ignore[misc]

    def _order_far(self, batch: Batch) -> None:
        """Order that a short source shows may be lost in a longer one. In fp32 rounding may move
        logits as far as such a swap."""
        known = [found for (check, _), found in self.found.items() if check == "order"]
        exact = batch.dtype == torch.float64 and batch.facts.has_source
        if not exact or not known or known[0].verdict != "PASS":
            return
        found = self._result("order", moves(changes.neighbours_swapped_far), batch)
        self.found["order", "far behind"] = found

    def _other_way_round(self, fresh: Copy | None, batches: list[Batch]) -> None:
        """A copy that was never asked meets the longest batch first, then the shortest."""
        known = self.found.get(("calls", "others between"))
        if fresh is None or known is None or known.verdict != "PASS":
            return
        for batch in batches:
            with torch.no_grad():
                logits = fresh.model.ask(batch.src.clone(), batch.tgt_in.clone())
            by = batch.differ(logits, batch.logits, batch.real)
            if not by <= batch.tolerance:
                cause = (
                    f"a batch of length {batch.setting.length} gives other logits after shorter "
                    f"batches than before any, by {by:.2g}: something is kept from call to call; "
                    "is a mask made for another batch?"
                )
                self._fail_calls(cause, by, batch)
                return

    def _ask_again(self, batch: Batch) -> None:
        """The first batch is answered at the end as it was at first."""
        by = largest(apart(batch.ask(batch.src, batch.tgt_in), batch.logits).nan_to_num())
        if by > batch.tolerance and "calls" in self.wanted:
            cause = (
                f"{batch.facts.name} answers the same input otherwise after some more calls, by "
                f"{by:.2g}; what does it keep from call to call?"
            )
            self._fail_calls(cause, by, batch)


def _same_model(batch: Batch, plain: Batch) -> bool:
    """Whether fp64 and fp32 answer alike, but for rounding."""
    if bool((batch.logits.isnan() & ~plain.logits.isnan())[batch.real].any()):
        return False
    moved = batch.moved(plain.logits.to(batch.logits.dtype), batch.logits)[batch.real]
    median = moved.nan_to_num(0.0, 0.0, 0.0).median() if moved.numel() else 0.0
    return float(median) <= 1e-2 * batch.typical_logit


def _with_width_named(pads: Result, gradients: Result) -> Result:
    """Where pads change outputs and what they hold does not, their number does."""
    if pads.verdict != "FAIL" or gradients.verdict != "PASS":
        return pads
    more = (
        "; what pads hold does not matter, by gradients, so it may be how many there are: a mean, "
        "scale or position that uses the padded width"
    )
    return replace(pads, message=pads.message + more)
