"""Which proofs are asked of which batch, in which mode and precision, and what came of it."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from toytrans.errors import UserError
from toytrans.insight.proofs import locate, outputs, reach
from toytrans.insight.proofs.answers import NoAnswer, answer, apart, largest
from toytrans.insight.proofs.batch import SHORT, SHORTEST, ProofBatch, Setting, Unsteady
from toytrans.insight.proofs.copies import Variant, in_eval_mode, on_one_thread, variant_of
from toytrans.insight.proofs.first_batches import first_batches
from toytrans.insight.proofs.model_under_test import ModelUnderTest
from toytrans.insight.proofs.pads import other_source_pad
from toytrans.insight.proofs.report import (
    CannotJudge,
    Finding,
    NotApplicable,
    NotAsked,
    Outcome,
    Report,
    Tried,
    finding_of,
    with_width_named,
)
from toytrans.insight.proofs.table import FRAGILE, OFTEN, PROOFS, READS_PADS, SEVERAL

Progress = Callable[[str], None]

LENGTH, THOROUGH = 64, 512
"""Symbols of the longest sequence tried."""

SIZES = ((7, 4), (16, 12), (33, 5), (64, 3))
MORE_SIZES = ((20, 32), (128, 4), (256, 2), (512, 2))
"""Symbols of the longest sequence of a batch, and its rows."""

SEEDS = 3
"""Short batches in which it is asked whether every token is seen."""

WORK = 75e9
"""Multiplications (`Counted`) that the proofs are kept within, unless asked to be thorough: about
15 s."""

ANSWERS = 80
"""Answers to a batch that its proofs ask for, about."""


@dataclass
class Plan:
    """What is asked of a model, and what came of it."""

    length: int | None
    seed: int
    only: str
    skip: str
    thorough: bool
    progress: Progress | None
    findings: dict[str, Finding] = field(default_factory=dict)
    tried: Tried = field(default_factory=Tried)
    spent: float = 0.0
    model: ModelUnderTest | None = None
    source_pad: tuple[int | None] | None = None

    @property
    def wanted(self) -> list[str]:
        return [p for p in PROOFS if p not in self.skip and (not self.only or p in self.only)]

    def sizes(self, limit: int | None) -> list[Setting]:
        """The batches, cheap ones first, each with a seed of its own, none beyond a limit."""
        longest = self.length
        if longest is not None and (not isinstance(longest, int) or longest < SHORTEST):
            raise UserError(
                f"length {longest}: the proofs need sequences of {SHORTEST} symbols or more"
            )
        wanted = longest or (THOROUGH if self.thorough else LENGTH)
        if limit is not None and wanted > limit - 4:
            if longest is not None or limit - 4 < SHORTEST:
                shorter = "give a smaller length, or " if limit - 4 >= SHORTEST else ""
                raise UserError(
                    f"the model takes {limit} places and the proofs need "
                    f"{(longest or SHORTEST) + 4}; {shorter}build the model with more"
                )
            wanted = limit - 4
        sizes = SIZES + (MORE_SIZES if self.thorough else ())
        made = [Setting(n, rows, self.seed + k) for k, (n, rows) in enumerate(sizes) if n <= wanted]
        if all(setting.length != wanted for setting in made):
            made.append(Setting(wanted, 4 if wanted < 16 else 3, self.seed + len(sizes)))
        most_rows = 33 if self.thorough else 17
        made[0] = dataclasses.replace(made[0], widest=made[-1].length, most_rows=most_rows)
        return made

    def prove(self, model: ModelUnderTest) -> Report:
        """Every proof wanted, on every batch, in each mode and precision that the model has."""
        self.model = model
        settings = self.sizes(model.limit)
        in_eval = in_eval_mode(None if model.ours is not None else model.module)
        with torch.random.fork_rng(devices=[]), on_one_thread(model), in_eval:
            torch.manual_seed(self.seed)
            try:
                batch, plain = first_batches(model, settings[0], self.tried.notes)
            except Unsteady as error:
                batch = self._unsteady(error)
            else:
                self._ask_all(model, batch, plain, settings)
                self._ask_again(batch)
        if model.equal_lengths:
            self.tried.notes.append(
                "source and target are of one length in every batch: the model refuses others"
            )
        findings = with_width_named([self.findings[letter] for letter in sorted(self.findings)])
        precision = str(batch.dtype).removeprefix("torch.")
        return Report(model.name, precision, tuple(findings), self.tried)

    def _unsteady(self, error: Unsteady) -> ProofBatch:
        """The message about a model that answers the same input in two ways: no proof can be asked.
        Raises the error where that may be dropout that its user left on."""
        batch = error.batch
        module = batch.model.module
        if error.drawn and (module is None or module.training):
            raise error
        self._add(batch)
        self.findings["v"] = Finding(
            "v", PROOFS["v"][0], "FAIL", str(error), batch.jitter, batch.tolerance
        )
        return batch

    # Copies ------------------------------------------------------------------------------------

    def _train(self, model: ModelUnderTest, batch: ProofBatch) -> Variant | None:
        """A copy in train mode."""
        if model.module is None or batch.model is model:
            why = "there is no module to copy" if model.module is None else "it cannot be copied"
            self.tried.notes.append(f"train mode not tried: {why}")
            return None
        return variant_of(model, batch.variant.precision, training=True)

    # Asking ------------------------------------------------------------------------------------

    def _ask_all(
        self,
        model: ModelUnderTest,
        batch: ProofBatch,
        plain: ProofBatch | None,
        settings: list[Setting],
    ) -> None:
        """The first batch first, in each mode; then longer ones."""
        train = self._train(model, batch)
        fresh = None if batch.model is model else variant_of(model, batch.variant.precision)
        for letter in self.wanted:
            if letter not in "st":
                self._ask(letter, batch)
        self._reach(batch, SEEDS)
        if plain is not None:
            self._ask_often(plain)
        variants = [batch.variant, *([plain.variant] if plain else []), *([train] if train else [])]
        left: set[Variant] = set()
        longest = batch
        for number, setting in enumerate(settings):
            for variant in variants:
                if variant in left or not self._is_wanted(number, variant, batch, len(settings)):
                    continue
                longer = self._made(variant, setting)
                if longer is None or not self._is_within(longer):
                    left.add(variant)
                    continue
                self._ask_often(longer)
                if variant is batch.variant:
                    longest = longer
                    if number == 2 and batch.model.ours is None:
                        self._ask("f", longer)
        if longest.setting.length > SHORT:
            self._reach(longest, SEEDS - 1)
        if longest is not batch:
            self._order_far(longest)
            self._other_way_round(fresh, [longest, batch])

    def _is_wanted(self, number: int, variant: Variant, batch: ProofBatch, count: int) -> bool:
        """The first batch was asked in eval mode already. The longer ones are asked in a second
        precision by a thorough plan alone; train mode skips one."""
        if variant.training:
            return number != 2 or count <= 3
        return number > 0 and (variant is batch.variant or (self.thorough and number % 2 == 0))

    def _is_within(self, batch: ProofBatch) -> bool:
        """Whether the proofs of a batch are within bounds, which they then use up; a note if
        not."""
        needed = ANSWERS * batch.work
        if self.thorough or self.spent + needed < WORK:
            self.spent += needed
            return True
        left_out = f"lengths from {batch.setting.length} on in {batch.variant.mode} mode"
        self.tried.left_out.append(left_out)
        self.tried.notes.append(
            f"{left_out} left out: the model is large; thorough tries them, or give a smaller one"
        )
        return False

    def _made(self, variant: Variant, setting: Setting) -> ProofBatch | None:
        """A batch of some size; None, with a note, where the model does not take it."""
        try:
            batch = ProofBatch(variant, setting)
            batch.wider_is_taken()
            return batch
        except UserError as error:
            self.tried.notes.append(
                f"length {setting.length} in {variant.mode} mode not judged: {error}"
            )
            return None

    def _ask_often(self, batch: ProofBatch) -> None:
        for letter in OFTEN:
            self._ask(letter, batch)

    def _ask(self, letter: str, batch: ProofBatch) -> None:
        """Ask one proof of a batch, unless it has failed already; the worst is kept."""
        if letter not in self.wanted:
            return
        known = self.findings.get(letter)
        if known is not None and known.verdict in ("FAIL", "does not apply"):
            return
        if self.progress is not None:
            self.progress(f"({letter}) {PROOFS[letter][0]}, {_asked_of(batch)}")
        self._add(batch)
        new = self._finding(letter, lambda: PROOFS[letter][1](batch), batch)
        if new.verdict == "FAIL" and new.difference is not None and math.isnan(new.difference):
            new = self._in_single(letter, batch) or new
        self._keep(letter, new)

    def _add(self, batch: ProofBatch) -> None:
        self.tried.add(
            batch.setting.length,
            len(batch.src),
            batch.variant.mode,
            batch.dtype,
            batch.setting.seed,
        )

    def _in_single(self, letter: str, batch: ProofBatch) -> Finding | None:
        """What a proof that met NaN in a copy in fp64 finds in one in fp32, which users run."""
        if batch.variant.precision != torch.float64 or self.model is None:
            return None
        single = variant_of(self.model, torch.float32, batch.variant.training)
        try:
            y = ProofBatch(single, batch.setting) if single is not None else None
        except UserError:
            return None
        return None if y is None else self._finding(letter, lambda: PROOFS[letter][1](y), y)

    def _finding(self, letter: str, proof: Callable[[], Outcome], batch: ProofBatch) -> Finding:
        title = PROOFS[letter][0]
        try:
            outcome = proof()
        except NoAnswer as error:
            if letter in FRAGILE:
                return Finding(letter, title, "FAIL", str(error), math.nan)
            hint = "if it takes fewer places, give max_length=..."
            return Finding(letter, title, "cannot judge", f"{error}; {hint}")
        except CannotJudge as reason:
            return Finding(letter, title, "cannot judge", str(reason))
        except NotAsked as reason:
            return Finding(letter, title, "does not apply", str(reason), give=reason.give)
        except NotApplicable as reason:
            return Finding(letter, title, "does not apply", str(reason))
        except UserError:
            raise
        except Exception as error:  # hooks in foreign models meet tensors of any kind
            if batch.model.ours is not None:
                raise
            what = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"
            return Finding(letter, title, "cannot judge", f"the proof met {what}")
        finding = finding_of(letter, title, outcome)
        if finding.verdict != "FAIL":
            return finding
        if letter in READS_PADS and (other := self._other_source_pad(batch)) is not None:
            doubt = (
                f"id {batch.model.pad_id} behind a source is seen as a symbol, and id {other} is "
                f"not seen: if the source has a pad of its own, give source_pad_id={other}"
            )
            return Finding(letter, title, "cannot judge", doubt)
        return self._explained(finding, outcome, batch)

    def _other_source_pad(self, batch: ProofBatch) -> int | None:
        """An id that acts as the source's pad, looked for once."""
        if self.source_pad is None:
            self.source_pad = (other_source_pad(batch),)
        return self.source_pad[0]

    def _explained(self, finding: Finding, outcome: Outcome, batch: ProofBatch) -> Finding:
        """A failure with where it shows, the smallest example, and how to see it again."""
        where = example = ""
        if outcome.witness is not None:
            where = locate.first_module(batch, outcome.witness)
            example = locate.smallest(batch, outcome.witness)
        plainly = batch.setting.length == SIZES[0][0] and batch.variant.mode == "eval"
        return dataclasses.replace(
            finding,
            message=finding.message if plainly else f"{finding.message} ({_asked_of(batch)})",
            where=where or None,
            example=example or None,
            reproduce=f"toytrans.check(model, ..., only={finding.letter!r}, "
            f"length={outcome.length or batch.setting.length}, seed={self.seed}"
            f"{', thorough=True' if self.thorough else ''})",
        )

    def _keep(self, letter: str, new: Finding) -> None:
        """Of two findings the one that counts: a failure, else what was judged, else the worse."""
        old = self.findings.get(letter)
        if letter in SEVERAL and old is not None:
            rank = {"PASS": 3, "FAIL": 2, "cannot judge": 1, "does not apply": 0}
        else:
            rank = {"FAIL": 3, "PASS": 2, "cannot judge": 1, "does not apply": 0}
        if old is None or rank[new.verdict] > rank[old.verdict]:
            self.findings[letter] = new
        elif new.verdict == old.verdict == "PASS":
            more = (new.difference or 0) / (new.tolerance or 1) > (old.difference or 0) / (
                old.tolerance or 1
            )
            if more:
                kept = dataclasses.replace(new, message=old.message)
                self.findings[letter] = kept

    # Several batches together ------------------------------------------------------------------

    def _reach(self, first: ProofBatch, count: int) -> None:
        """Whether every token is seen: in a batch, and where it is not in some of other seeds."""
        wanted = [letter for letter in "st" if letter in self.wanted]
        if not wanted:
            return

        def make(number: int) -> ProofBatch | None:
            seed = first.setting.seed + number
            batch = self._made(first.variant, dataclasses.replace(first.setting, seed=seed))
            if batch is not None:
                self._add(batch)
            return batch

        self._add(first)
        trials = reach.Trials(make, count, [first])
        for letter in wanted:
            known = self.findings.get(letter)
            if known is not None and known.verdict != "PASS":
                continue
            if self.progress is not None:
                self.progress(f"({letter}) {PROOFS[letter][0]}, length {first.setting.length}")
            prove = {"s": reach.source_seen, "t": reach.target_seen}[letter]
            self._keep(letter, self._finding(letter, partial(prove, trials), first))

    def _order_far(self, batch: ProofBatch) -> None:
        """Order that a short source shows may be lost in a longer one. In fp32 rounding may move
        logits as far as such a swap."""
        known, exact = self.findings.get("j"), batch.dtype == torch.float64
        if known is None or known.verdict != "PASS" or not batch.model.has_source or not exact:
            return
        found = self._finding("j", partial(outputs.order_seen_far, batch), batch)
        if found.verdict == "FAIL":
            self.findings["j"] = found

    def _other_way_round(self, fresh: Variant | None, batches: list[ProofBatch]) -> None:
        """A copy that was never asked meets the longest batch first, then the shortest."""
        known = self.findings.get("v")
        if fresh is None or known is None or known.verdict != "PASS":
            return
        for batch in batches:
            with torch.no_grad():
                logits = answer(fresh.model, batch.src.clone(), batch.tgt_in.clone())
            by = batch.differ(logits, batch.logits, batch.real)
            if not by <= batch.tolerance:
                cause = (
                    f"a batch of length {batch.setting.length} gives other logits after shorter "
                    f"batches than before any, by {by:.2g}: something is kept from call to call; "
                    "is a mask made for another batch?"
                )
                self.findings["v"] = Finding(
                    "v", PROOFS["v"][0], "FAIL", cause, by, batch.tolerance
                )
                return

    def _ask_again(self, batch: ProofBatch) -> None:
        """The first batch is answered at the end as it was at first."""
        by = largest(apart(batch.ask(batch.src, batch.tgt_in), batch.logits).nan_to_num())
        if by > batch.tolerance and "v" in self.wanted:
            message = (
                f"{batch.model.name} answers the same input otherwise after some more calls, by "
                f"{by:.2g}; what does it keep from call to call?"
            )
            self.findings["v"] = Finding("v", PROOFS["v"][0], "FAIL", message, by, batch.tolerance)


def _asked_of(batch: ProofBatch) -> str:
    precision = str(batch.dtype).removeprefix("torch.")
    mode = "train mode with dropout 0" if batch.variant.training else "eval mode"
    return f"length {batch.setting.length}, {len(batch.src)} rows, {mode}, {precision}"
