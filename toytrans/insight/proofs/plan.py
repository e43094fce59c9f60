"""The proofs, in order: which are asked of which batch, in which mode and precision."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from toytrans.config import Config
from toytrans.errors import UserError
from toytrans.insight.proofs import decoding, internals, labels, locate, outputs, reach
from toytrans.insight.proofs.adapters import own, subject_of
from toytrans.insight.proofs.batch import SHORTEST, Examples, NoAnswer, Setting, apart, largest
from toytrans.insight.proofs.copies import Variant, variant_of
from toytrans.insight.proofs.report import (
    CannotJudge,
    Finding,
    NotApplicable,
    Outcome,
    Report,
    Tried,
    finding_of,
)
from toytrans.insight.proofs.subject import Subject
from toytrans.model.transformer import Transformer
from toytrans.tokens import Vocabulary
from toytrans.training.run import Run

Proof = Callable[[Examples], Outcome]
Progress = Callable[[str], None]

LENGTH, THOROUGH = 64, 512
"""Symbols of the longest sequence tried."""

SIZES = ((7, 4), (16, 12), (33, 5), (64, 3))
MORE_SIZES = ((20, 32), (128, 4), (256, 2), (512, 2))
"""Symbols of the longest sequence of a batch, and its rows."""

SMALL = 2_000_000
"""A model of fewer weights is asked on one thread."""

SECONDS = 40.0
"""After so much processor time no further batch is begun, unless asked to be thorough."""

PROOFS: dict[str, tuple[str, Proof]] = {
    "a": ("appended pads change no real output", outputs.pads_appended),
    "b": ("a future target token changes no earlier output", outputs.future_changed),
    "c": ("what a pad's embedding holds changes nothing", internals.pads_hold_anything),
    "d": ("a pair alone = the pair in a batch", outputs.one_at_a_time),
    "e": ("no gradient from real outputs to pads and future", internals.sees_nothing_closed),
    "f": ("step by step with the cache = one parallel pass", decoding.steps_are_the_pass),
    "g": ("pads closed as keys = as keys and queries", internals.pad_rows_do_no_harm),
    "h": ("the loss ignores pad labels", labels.pad_labels_ignored),
    "i": ("no NaN with an empty row", outputs.empty_row),
    "j": ("the order of the source is seen", outputs.order_seen),
    "k": ("scores are q k / root of d_head", internals.attention_is_scaled),
    "l": ("labels are the next decoder inputs", labels.labels_shifted),
    "m": ("pad, start and end are told apart", labels.ends_agree),
    "n": ("a batch's loss = its halves' over their tokens", labels.halves_add_up),
    "o": ("residual connections carry the input", internals.input_passes_by),
    "p": ("layer norms hold the scale", internals.scale_is_normed),
    "q": ("every feed-forward sub-layer takes part", internals.feed_forward_at_work),
    "s": ("every source token moves some output", lambda x: reach.source_seen([x])),
    "t": ("every target token moves a later output", lambda x: reach.target_seen([x])),
    "u": ("a prefix of the target gives the prefix", outputs.prefixes_asked),
    "v": ("nothing is kept from call to call", outputs.nothing_kept),
}

OFTEN = "abdeuv"
"""Proofs that are asked of every batch, in every mode and precision."""

SEVERAL = "j"
"""Proofs of what must change, which another seed may show."""

FRAGILE = "dv"
"""Proofs that fail where the model raises an exception at them."""


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
    limit: int | None = None,
    length: int | None = None,
    seed: int = 0,
    source_pad_id: int | None = None,
    pad_side: str | None = None,
    batch_first: bool | None = None,
    max_length: int | None = None,
    kind: str | None = None,
    generate: Callable[..., Any] | None = None,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    thorough: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Run every proof that applies to a model.

    model: f(src (B, S), tgt_in (B, T)) -> logits (B, T, V), ids in int64; or a toytrans run, or a
    Hugging Face model, of which the rest is known. A module is copied: the one given stays as it
    is. A model of one stream takes ids alone: kind is then "decoder" or "encoder".

    pad_id, vocabulary_size: of the target; source_pad_id, source_size: the source's, if others.
    start_id: the first decoder input; eos_id: what ends a sequence. pad_side: "left" where targets
    are padded there. batch_first: False where ids and logits are (T, B); found out if not given.
    max_length: the most places the model takes (limit is an alias). embedding: the embedding
    module, or (source's, target's). loss: (logits, tgt_out) -> mean. batch: pairs of lists of
    symbol ids -> (src, tgt_in, tgt_out). generate: (src, tgt_in) -> logits made step by step, or
    src -> ids decoded greedily, to be compared with the parallel pass.

    length: symbols of the longest sequence tried, 64; thorough: to 512, and batches of 32 rows.
    only, skip: letters of proofs. progress: called with what is being tried.

    Raises UserError where the model cannot be asked: wrong shape, NaN throughout, another answer
    at the second call, an exception of its own, fewer places than needed.
    """
    given = {
        "pad_id": pad_id,
        "vocabulary_size": vocabulary_size,
        "source_size": source_size,
        "start_id": start_id,
        "eos_id": eos_id,
        "embedding": embedding,
        "loss": loss,
        "batch": batch,
        "limit": max_length if limit is None else limit,
        "source_pad_id": source_pad_id,
        "pad_side": pad_side,
        "batch_first": batch_first,
        "kind": kind,
        "generate": generate,
    }
    plan = Plan(length, seed, _letters(only), _letters(skip), thorough, progress)
    if isinstance(model, Run):
        if any(value is not None for value in given.values()):
            raise UserError("of a run all is known; give check nothing but length and seed")
        return plan.prove(own(model.model, model.config, model.vocabulary, str(model.path)))
    return plan.prove(subject_of(model, **given))


def check_own(
    model: Transformer,
    config: Config,
    vocabulary: Vocabulary,
    name: str,
    length: int | None = None,
    seed: int = 0,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    thorough: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Every proof on a model built from a config."""
    plan = Plan(length, seed, _letters(only), _letters(skip), thorough, progress)
    return plan.prove(own(model, config, vocabulary, name))


def _letters(given: Iterable[str]) -> str:
    """Letters of proofs, from "ab", ["a", "b"] or "a,b". Raises UserError for others."""
    found = "".join(given).replace(",", "").replace(" ", "").replace("(", "").replace(")", "")
    if unknown := sorted(set(found) - set(PROOFS)):
        raise UserError(f"no proof {', '.join(unknown)}; there are {''.join(PROOFS)}")
    return found


@dataclass
class Plan:
    """What is asked of a subject, and what came of it."""

    length: int | None
    seed: int
    only: str
    skip: str
    thorough: bool
    progress: Progress | None
    found: dict[str, Finding] = field(default_factory=dict)
    tried: Tried = field(default_factory=Tried)
    started: float = 0.0
    subject: Subject | None = None

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
        return made

    def prove(self, subject: Subject) -> Report:
        """Every proof wanted, on every batch, in each mode and precision that the model has."""
        self.started, self.subject = time.process_time(), subject
        settings = self.sizes(subject.limit)
        with torch.random.fork_rng(devices=[]), _on_one_thread(subject):
            torch.manual_seed(self.seed)
            x, plain = self._base(subject, settings[0])
            self._ask_all(subject, x, plain, settings)
            self._ask_again(x)
        findings = [self.found[letter] for letter in sorted(self.found)]
        precision = str(x.dtype).removeprefix("torch.")
        return Report(subject.name, precision, tuple(findings), self.tried)

    # Copies ------------------------------------------------------------------------------------

    def _base(self, subject: Subject, setting: Setting) -> tuple[Examples, Examples | None]:
        """The first batch in fp64, and in fp32 where the model has both: fp64 is left where it
        fails, gives NaN that fp32 does not give, or is another model altogether."""
        double = variant_of(subject, torch.float64)
        if double is None:
            only = Examples(Variant(subject, None), setting)
            only.wider_is_taken()
            return only, None
        came_as = {p.dtype for p in subject.module.parameters() if p.is_floating_point()}  # type: ignore[union-attr]
        single = None if came_as == {torch.float64} else variant_of(subject, torch.float32)
        x: Examples | None = None
        plain = raised = None
        try:
            x = Examples(double, setting)
        except UserError as error:
            raised = error
        try:
            plain = Examples(single, setting) if single is not None else None
        except UserError as error:
            raised = raised or error
            kept = variant_of(subject)
            if x is None and kept is not None:
                plain = Examples(kept, setting)
        if x is None and plain is None:
            assert raised is not None
            raise raised
        if x is not None and plain is not None and not _same_model(x, plain):
            self.tried.notes.append("judged in fp32: the copy in fp64 is another model")
            x = None
        if x is None:
            assert plain is not None
            x, plain = plain, None
        x.wider_is_taken()
        if x.variant.perturbed:
            self.tried.notes.append(
                f"{x.variant.perturbed} weights that are all zero hold small random numbers in the "
                "copy, for nothing is seen through them"
            )
        return x, plain

    def _train(self, subject: Subject, x: Examples) -> Variant | None:
        """A copy in train mode."""
        if subject.module is None or x.subject is subject:
            self.tried.notes.append("train mode not tried: there is no module to copy")
            return None
        return variant_of(subject, x.variant.precision, training=True)

    # Asking ------------------------------------------------------------------------------------

    def _ask_all(
        self, subject: Subject, x: Examples, plain: Examples | None, settings: list[Setting]
    ) -> None:
        """The first batch first, in each mode; then longer ones."""
        train = self._train(subject, x)
        fresh = variant_of(subject, x.variant.precision)
        for letter in self.wanted:
            if letter not in "st":
                self._ask(letter, x)
        self._reach(x, settings[0], 3)
        if plain is not None:
            self._ask_often(plain)
        variants = [x.variant, *([plain.variant] if plain else []), *([train] if train else [])]
        dead = set()
        for number, setting in enumerate(settings):
            for variant in variants:
                if variant.mode in dead or (number == 0 and not variant.training):
                    continue
                if variant.precision == torch.float32 != x.variant.precision and number % 2:
                    continue
                if variant.training and number == 2 and len(settings) > 3:
                    continue
                if not self._in_time(setting, variant):
                    return
                longer = self._made(variant, setting)
                if longer is None:
                    dead.add(variant.mode)
                    continue
                self._ask_often(longer)
                if number == 2 and variant is x.variant and x.subject.ours is None:
                    self._ask("f", longer)
        if settings[-1].length > 12 and "eval" not in dead:
            self._reach(x, settings[-1], 2)
        self._other_way_round(x, fresh, settings)

    def _in_time(self, setting: Setting, variant: Variant) -> bool:
        if self.thorough or time.process_time() - self.started < SECONDS:
            return True
        self.tried.notes.append(
            f"from length {setting.length} in {variant.mode} mode on left out after "
            f"{SECONDS:.0f} s; thorough tries all"
        )
        return False

    def _made(self, variant: Variant, setting: Setting) -> Examples | None:
        """A batch of some size; None, with a note, where the model does not take it."""
        try:
            x = Examples(variant, setting)
            x.wider_is_taken()
            return x
        except UserError as error:
            self.tried.notes.append(
                f"length {setting.length} in {variant.mode} mode not judged: {error}"
            )
            return None

    def _ask_often(self, x: Examples) -> None:
        for letter in OFTEN:
            self._ask(letter, x)

    def _ask(self, letter: str, x: Examples) -> None:
        """Ask one proof of a batch, unless it has failed already; the worst is kept."""
        if letter not in self.wanted:
            return
        known = self.found.get(letter)
        if known is not None and known.verdict in ("FAIL", "does not apply"):
            return
        if self.progress is not None:
            self.progress(f"({letter}) {PROOFS[letter][0]}, {_asked_of(x)}")
        self.tried.add(x.setting.length, len(x.src), x.variant.mode, x.dtype, x.setting.seed)
        new = self._found(letter, lambda: PROOFS[letter][1](x), x)
        if new.verdict == "FAIL" and new.difference is not None and math.isnan(new.difference):
            new = self._in_single(letter, x) or new
        self._keep(letter, new)

    def _in_single(self, letter: str, x: Examples) -> Finding | None:
        """What a proof that met NaN in a copy in fp64 finds in one in fp32, which users run."""
        if x.variant.precision != torch.float64 or self.subject is None:
            return None
        single = variant_of(self.subject, torch.float32, x.variant.training)
        try:
            y = Examples(single, x.setting) if single is not None else None
        except UserError:
            return None
        return None if y is None else self._found(letter, lambda: PROOFS[letter][1](y), y)

    def _found(self, letter: str, proof: Callable[[], Outcome], x: Examples) -> Finding:
        title = PROOFS[letter][0]
        try:
            outcome = proof()
        except NoAnswer as error:
            if letter in FRAGILE:
                return Finding(letter, title, "FAIL", str(error), math.nan)
            return Finding(letter, title, "cannot judge", f"{error}; give max_length=...?")
        except CannotJudge as reason:
            return Finding(letter, title, "cannot judge", str(reason))
        except NotApplicable as reason:
            return Finding(letter, title, "does not apply", str(reason))
        except UserError:
            raise
        except Exception as error:  # hooks in foreign models meet tensors of any kind
            if x.subject.ours is not None:
                raise
            what = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"
            return Finding(letter, title, "cannot judge", f"the proof met {what}")
        finding = finding_of(letter, title, outcome)
        return self._explained(finding, outcome, x) if finding.verdict == "FAIL" else finding

    def _explained(self, finding: Finding, outcome: Outcome, x: Examples) -> Finding:
        """A failure with where it shows, the smallest example, and how to see it again."""
        where = example = ""
        if outcome.witness is not None:
            where = locate.first_module(x, outcome.witness)
            example = locate.smallest(x, outcome.witness)
        plainly = x.setting.length == SIZES[0][0] and x.variant.mode == "eval"
        return dataclasses.replace(
            finding,
            words=finding.words if plainly else f"{finding.words} ({_asked_of(x)})",
            where=where or None,
            example=example or None,
            reproduce=f"toytrans.check(model, ..., only={finding.letter!r}, "
            f"length={x.setting.length}, seed={self.seed})",
        )

    def _keep(self, letter: str, new: Finding) -> None:
        """Of two findings the one that counts: a failure, else what was judged, else the worse."""
        old = self.found.get(letter)
        if letter in SEVERAL and old is not None:
            rank = {"PASS": 3, "FAIL": 2, "cannot judge": 1, "does not apply": 0}
        else:
            rank = {"FAIL": 3, "PASS": 2, "cannot judge": 1, "does not apply": 0}
        if old is None or rank[new.verdict] > rank[old.verdict]:
            self.found[letter] = new
        elif new.verdict == old.verdict == "PASS":
            more = (new.difference or 0) / (new.tolerance or 1) > (old.difference or 0) / (
                old.tolerance or 1
            )
            if more:
                kept = dataclasses.replace(new, words=old.words)
                self.found[letter] = kept

    # Several batches together ------------------------------------------------------------------

    def _reach(self, x: Examples, setting: Setting, seeds: int) -> None:
        """Whether every token is seen, in batches of several seeds."""
        wanted = [letter for letter in "st" if letter in self.wanted]
        if not wanted or not self._in_time(setting, x.variant):
            return
        trials = []
        for k in range(seeds):
            made = self._made(x.variant, dataclasses.replace(setting, seed=self.seed + k))
            if made is None:
                return
            trials.append(made)
        sides: dict[str, Callable[[Sequence[Examples]], Outcome]] = {
            "s": reach.source_seen,
            "t": reach.target_seen,
        }
        for letter in wanted:
            known = self.found.get(letter)
            if known is not None and known.verdict != "PASS":
                continue
            if self.progress is not None:
                self.progress(f"({letter}) {PROOFS[letter][0]}, length {setting.length}")
            self._keep(letter, self._found(letter, partial(sides[letter], trials), x))

    def _other_way_round(self, x: Examples, fresh: Variant | None, settings: list[Setting]) -> None:
        """A copy that was never asked meets the longest batch first, then the shortest."""
        known = self.found.get("v")
        if fresh is None or known is None or known.verdict != "PASS" or len(settings) < 2:
            return
        bad = self._met(fresh, x, settings)
        if bad:
            self.found["v"] = Finding("v", PROOFS["v"][0], "FAIL", bad, math.nan)

    def _met(self, fresh: Variant, x: Examples, settings: list[Setting]) -> str:
        for setting in (settings[-1], settings[0]):
            try:
                first, later = Examples(fresh, setting), Examples(x.variant, setting)
            except UserError:
                return ""
            by = later.differ(first.logits, later.logits, later.real)
            if not by <= later.tolerance:
                return (
                    f"a batch of length {setting.length} gives other logits after shorter batches "
                    f"than before any, by {by:.2g}: something is kept from call to call; is a mask "
                    "made for another batch?"
                )
        return ""

    def _ask_again(self, x: Examples) -> None:
        """The first batch is answered at the end as it was at first."""
        by = largest(apart(x.ask(x.src, x.tgt_in), x.logits).nan_to_num())
        if by > x.tolerance and "v" in self.wanted:
            words = (
                f"{x.subject.name} answers the same input otherwise after some more calls, by "
                f"{by:.2g}; what does it keep from call to call?"
            )
            self.found["v"] = Finding("v", PROOFS["v"][0], "FAIL", words, by, x.tolerance)


@contextlib.contextmanager
def _on_one_thread(subject: Subject) -> Iterator[None]:
    """Small models gain nothing by several threads, which wait for each other at every step."""
    before = torch.get_num_threads()
    count = sum(p.numel() for p in subject.module.parameters()) if subject.module else 0
    torch.set_num_threads(1 if count < SMALL else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _same_model(x: Examples, plain: Examples) -> bool:
    """Whether fp64 and fp32 answer alike, but for rounding."""
    if bool((x.logits.isnan() & ~plain.logits.isnan())[x.real].any()):
        return False
    new = x.tame(plain.logits.to(x.logits.dtype))
    by = (apart(new, x.tame(x.logits)).abs() * x.weight)[..., x.kept][x.real]
    return float(by.nan_to_num(0.0, 0.0, 0.0).median() if by.numel() else 0.0) <= 1e-2 * x.size


def _asked_of(x: Examples) -> str:
    precision = str(x.dtype).removeprefix("torch.")
    mode = "train mode with dropout 0" if x.variant.training else "eval mode"
    return f"length {x.setting.length}, {len(x.src)} rows, {mode}, {precision}"
