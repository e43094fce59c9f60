"""`check`, for any model: of what parts each check is made, which batches are asked, and what came
of it."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from toytrans.checks import attention, changes, loss, reach, steps, sublayers
from toytrans.checks.adapters import adapter_of
from toytrans.checks.batch import POLARITY, SHORTEST, Batch, Setting, Unsteady
from toytrans.checks.changes import located, stays
from toytrans.checks.result import CHECKS, ESSENTIAL, Report, Result, Told, measured
from toytrans.checks.subject import Adapter, NoAnswer
from toytrans.errors import UserError, did_you_mean

Progress = Callable[[str], None]


class Part(NamedTuple):
    """A part of a check, by its name in words. of: which batches it is asked of: the first
    (shortest), every one in every mode and precision, the first and the longest, or the first
    after all else."""

    check: str
    name: str
    ask: Callable[[Batch], Result]
    of: Literal["first", "every", "both ends", "last"] = "first"


pads_in_other_shapes = stays(partial(changes.other_shapes, with_symbols=False))
symbols_in_other_shapes = stays(partial(changes.other_shapes, with_symbols=True))
others_between = stays(changes.other_calls_between)

AT_THE_END = Part("calls", "the same at the end", others_between, "last")

PARTS = (
    Part("pads", "more pads", stays(changes.pads_appended), "every"),
    Part("pads", "other shapes", pads_in_other_shapes),
    Part("pads", "their embeddings", stays(changes.pads_hold_anything)),
    Part("pads", "gradients", reach.gradients_towards(of_future=False), "every"),
    Part("future", "single tokens", stays(changes.later_token), "every"),
    Part("future", "prefixes", stays(changes.prefixes), "every"),
    Part("future", "other shapes", symbols_in_other_shapes),
    Part("future", "gradients", reach.gradients_towards(of_future=True), "every"),
    Part("rows", "a pair alone", stays(changes.rows_alone), "every"),
    Part("rows", "another order", stays(changes.rows_in_another_order), "every"),
    Part("rows", "an empty pair", stays(changes.empty_pair_added)),
    Part("calls", "others between", others_between, "every"),
    AT_THE_END,
    Part("order", "neighbours swapped", changes.order_is_seen, "both ends"),
    Part("source", "token by token", reach.tokens_seen("source"), "both ends"),
    Part("target", "token by token", reach.tokens_seen("target"), "both ends"),
    Part("steps", "one by one", steps.steps_are_the_pass, "both ends"),
    Part("loss", "pads", loss.pad_labels_ignored),
    Part("loss", "halves", loss.halves_add_up),
    Part("loss", "likelier labels", loss.likelier_labels_cost_less),
    Part("labels", "the shift", loss.labels_shifted),
    Part("labels", "start and end", loss.ends_agree),
    Part("scale", "every attention", attention.attention_is_right),
    Part("sublayers", "residual connections", sublayers.input_passes_by),
    Part("sublayers", "norms", sublayers.scale_is_normed),
    Part("sublayers", "feed-forward", sublayers.feed_forward_at_work),
)

FOLLOWS = {
    **dict.fromkeys(("pads", "future", "source", "target"), ("scale",)),
    "rows": ("scale", "pads"),
    "order": ("scale", "source", "target"),
    "sublayers": ("scale", "source", "target", "pads", "future"),
}
"""Checks that fail as well where one of others does, the likelier first. Of `scale`, only a mask
that closes nothing, a wrong axis and mixed heads have consequences: there it `explains`."""

OF_DECODERS = ("future", "steps", "loss", "labels")
"""Checks that an encoder is not asked: it hides no future, and its labels are no next tokens."""

FEWER_PLACES = "if it takes fewer places, give max_length=..."
"""The remedy for a model that raises an exception at some lengths."""

LENGTH, THOROUGH = 64, 512
"""Symbols of the longest sequence tried; more are thorough."""

SIZES = ((7, 4), (16, 12), (33, 5), (64, 3))
MORE_SIZES = ((20, 32), (128, 4), (256, 2), (512, 2))
"""Symbols of the longest sequence of a batch, and its rows; more where longer ones are asked for,
which then have no bound of work."""

WORK = 75e9
"""Multiplications (`Watched`) that the checks are kept within, unless thorough: about 15 s."""


@dataclass
class Plan:
    """What is asked of a model, and what came of it. found: results of parts; asked: length, rows,
    mode, precision and seed of batches; spent: work so far; source_pad: the other id that pads
    sources, once it was looked for; nan: the first check that met outputs that are NaN."""

    length: int | None
    seed: int
    wanted: tuple[str, ...]
    progress: Progress | None
    found: dict[Part, Result] = field(default_factory=dict)
    asked: set[tuple[int, int, str, str, int]] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    spent: float = 0.0
    source_pad: tuple[int | None] | None = None
    nan: str | None = None

    def sizes(self, limit: int | None) -> list[Setting]:
        """The batches, cheap ones first, each with a seed of its own, none beyond a limit."""
        given, most = self.length, math.inf if limit is None else limit - 4
        if given is not None and (not isinstance(given, int) or given < SHORTEST):
            raise UserError(
                f"length {given}: the checks need sequences of {SHORTEST} symbols or more"
            )
        if most < (given or SHORTEST):
            shorter = "give a smaller length, or " if most >= SHORTEST else ""
            raise UserError(
                f"the model takes {limit} places and the checks need "
                f"{(given or SHORTEST) + 4}; {shorter}build the model with more"
            )
        self.length = wanted = given or int(min(LENGTH, most))
        sizes = SIZES + MORE_SIZES * (wanted > LENGTH)
        made = [Setting(n, rows, self.seed + k) for k, (n, rows) in enumerate(sizes) if n <= wanted]
        if wanted not in dict(sizes):
            made.append(Setting(wanted, 4 if wanted < 16 else 3, self.seed + len(sizes)))
        made[0] = replace(made[0], widest=wanted, most_rows=33 if wanted > LENGTH else 17)
        return made

    def check(self, model: Adapter) -> Report:
        """Every check wanted, on every batch, in each mode and precision that the model has."""
        self.model = model
        settings = self.sizes(model.facts.max_length)
        with _undisturbed(model.module), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            try:
                batch, *others = self._first_batches(settings[0])
            except Unsteady as error:
                batch = error.batch
                self.asked.add(batch.described_by)
                self.found[AT_THE_END] = measured(batch.jitter, batch.tolerance, "", str(error))
            else:
                self._ask_of(batch, "first", "every", "both ends")
                for other in others:
                    self._ask_of(other, "every")
                self._ask_longer(batch, settings)
                self._ask_of(batch, "last")
        if model.facts.equal_lengths:
            self.notes.append(
                "source and target are of one length in every batch, filled up with pads: the "
                "model refuses others"
            )
        asked = {part.check for part in self.found}
        names = ("lengths", "rows", "modes", "precisions", "seeds")
        tried = {name: sorted({each[n] for each in self.asked}) for n, name in enumerate(names)}
        return Report(
            model.facts.name,
            batch.precision,
            tuple(self._merged(name) for name in CHECKS if name in asked),
            tried | {"notes": self.notes, "left_out": self.left_out},
        )

    def _merged(self, name: str) -> Result:
        """The result of a check: of its parts the one that counts most, of passes with the evidence
        of the first. An essential check is not judged without its first part."""
        parts = {part.name: result for part, result in self.found.items() if part.check == name}
        (first, *_), gradients = parts.values(), parts.get("gradients")
        found = max(parts.values(), key=lambda part: part.weight)
        if found.verdict != "FAIL" and name in ESSENTIAL and first.verdict == "cannot judge":
            found = first
        message = found.message
        if found.verdict == "PASS":
            message = next(part.message for part in parts.values() if part.verdict == "PASS")
        is_number = gradients is not None and gradients.verdict == "PASS" and self.nan is None
        if found.verdict == "FAIL" and name == "pads" and is_number:
            message += (
                "; what pads hold does not matter, by gradients, so it may be how many there are: "
                "a mean, scale or position that uses the padded width"
            )
        return replace(found, name=name, parts=parts, message=message)

    def _first_batches(self, setting: Setting) -> list[Batch]:
        """The first batch in fp64 and in fp32, or else as the model came, where it cannot be copied
        on the model itself."""
        made: list[Batch] = []
        raised: list[UserError] = []
        for precision in (torch.float64, torch.float32, None):
            if precision is None and made:
                break
            if (copied := self.model.copied(precision)) is None:
                return [Batch(self.model, setting)]
            try:
                made.append(Batch(copied, setting))
            except UserError as error:
                raised.append(error)
        if not made:
            raise raised[0]
        if opened := made[0].model.opened:
            self.notes.append(
                f"{len(opened)} weights that are all zero hold small random numbers in the copy, "
                "for nothing is seen through them"
            )
        return made

    # Asking ------------------------------------------------------------------------------------

    def _ask_longer(self, first: Batch, settings: list[Setting]) -> None:
        """Longer batches in each mode; those that are refused, or too much work, are noted."""
        of, notes, longest = first.model, self.notes, first
        copies = [of]
        if self.model.module is None or of is self.model:
            no_module = self.model.module is None
            why = "there is no module to copy" if no_module else "it cannot be copied"
            notes.append(f"train mode not tried: {why}")
        elif (train := self.model.copied(of.precision, training=True)) is not None:
            copies.append(train)
        for number, setting in enumerate(settings):
            for copied in tuple(copies):
                is_skipped = number == 0 if copied is of else number == 2 < len(settings) - 1
                if is_skipped or copied not in copies:  # train mode skips one, to save time
                    continue
                try:
                    longer = Batch(copied, setting)
                except UserError as error:
                    why = f"{error}; {FEWER_PLACES}" if isinstance(error, NoAnswer) else str(error)
                    notes.append(f"length {setting.length} in {copied.mode} mode not judged: {why}")
                    copies = [] if copied is of else [of]
                    continue
                needed = 80 * longer.work  # so many answers are asked for, about
                if settings[-1].length <= LENGTH and self.spent + needed >= WORK:
                    left_out = f"lengths from {setting.length} on in {copied.mode} mode"
                    self.left_out.append(left_out)
                    notes.append(
                        f"{left_out} left out: the model is large; length={THOROUGH} tries them, "
                        "or give a smaller model"
                    )
                    copies.remove(copied)
                    continue
                self.spent += needed
                self._ask_of(longer, "every")
                longest = longer if copied is of else longest
        if longest is not first:
            self._ask_of(longest, "both ends")

    def _ask_of(self, batch: Batch, *of: str) -> None:
        for part in PARTS:
            if part.of in of and part.check in self.wanted:
                self._ask(part, batch)

    def _ask(self, part: Part, batch: Batch) -> None:
        """Ask one part of a batch, unless it has failed already."""
        known = self.found.get(part)
        if known is not None and known.verdict == "FAIL":
            return
        if self.progress is not None:
            self.progress(f"{part.check}: {part.name}, {batch.described}")
        self.asked.add(batch.described_by)
        new = self._result(part, batch)
        is_nan = new.difference is not None and math.isnan(new.difference)
        single = self.model.copied(torch.float32, batch.model.training) if is_nan else None
        if single is not None and batch.model.precision == torch.float64:  # masks may need fp32
            with contextlib.suppress(UserError):
                new = self._result(part, Batch(single, batch.setting))
        self.found[part] = new if known is None else max(known, new, key=lambda each: each.weight)

    def _result(self, part: Part, batch: Batch) -> Result:
        facts = batch.facts
        if part.check in OF_DECODERS and not facts.is_causal:
            return Result("", "does not apply", "an encoder sees both sides and predicts no token")
        if part.check == "source" and not facts.has_source:
            return Result("", "does not apply", "the model has no source")
        try:
            result = part.ask(batch)
        except Told as reason:
            if reason.verdict != "FAIL":
                return Result("", reason.verdict, str(reason), give=reason.give)
            result = measured(1.0, 0.0, "", str(reason))
        except NoAnswer as error:
            return Result("", "cannot judge", f"{error}; {FEWER_PLACES}")
        except UserError:
            raise
        except Exception as error:  # hooks in foreign models meet tensors of any kind
            if facts.is_textbook:
                raise
            what = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"
            return Result("", "cannot judge", f"the check met {what}")
        return self._explained(part, result, batch) if result.verdict == "FAIL" else result

    def _explained(self, part: Part, result: Result, batch: Batch) -> Result:
        """A failure with its mode, where it shows, the smallest example, and how to see it again;
        no failure where the source may have another pad, which is looked for once."""
        facts, check = batch.facts, part.check
        by_shapes = part.name == "other shapes"
        if check in ("pads", "rows", "calls", "source", "labels") or by_shapes:
            if self.source_pad is None:
                self.source_pad = (changes.other_source_pad(batch),)
            if (other := self.source_pad[0]) is not None:
                doubt = (
                    f"id {facts.pad_id} behind a source is seen as a symbol, and id {other} is "
                    "not seen: is the source's mask made from the wrong id? If the source has a "
                    f"pad of its own, give source_pad_id={other}"
                )
                return Result("", "cannot judge", doubt)
        message = result.message
        first: tuple[str, ...] = ()
        if check == "future" and by_shapes and facts.has_source:
            first = ("pads",)  # shapes change pads and symbols together
        elif check in ("pads", "rows") and facts.kind == "decoder":
            first = ("future",)  # pads behind ids lie in the future
        if math.isnan(result.difference or 0.0) and bool(batch.logits[batch.real].isnan().any()):
            self.nan = self.nan or check
            first = (self.nan,) if check != self.nan else ()
            message = (
                "output is NaN at a real place of an ordinary batch: does a mask close every key "
                f"of a query, and {POLARITY}"
            )
        elif not by_shapes:
            message += self._mode_named(part, batch)
        if batch.setting.length != SIZES[0][0] or batch.model.training:
            message += f" ({batch.described})"
        details = {} if result.change is None else located(batch, *result.change)
        asked = f'only="{check}", length={self.length}, seed={self.seed}'
        details["reproduce"] = f"toytrans.check(model, ..., {asked})"
        details = {name: text for name, text in details.items() if text}
        causes = (*FOLLOWS.get(check, ()), *first)
        return replace(result, message=message, causes=causes, details=details, change=None)

    def _mode_named(self, part: Part, batch: Batch) -> str:
        """Which mode fails, where the same batch passes in the other one; "" where both fail."""
        if batch.facts.is_textbook or batch.model is self.model:
            return ""
        fails, other = (
            batch.model,
            self.model.copied(batch.model.precision, not batch.model.training),
        )
        with contextlib.suppress(Exception):  # the other mode cannot be asked: it tells nothing
            if other is not None and part.ask(Batch(other, batch.setting)).verdict == "PASS":
                return (
                    f"; {fails.mode} mode alone, {other.mode} mode passes: look for self.training"
                )
        return ""


@contextlib.contextmanager
def _undisturbed(module: nn.Module | None) -> Iterator[None]:
    """A module in eval mode, whose parts are then as they were; gradients may be taken, whatever
    the program has set; and a small model has one thread, for several wait for each other."""
    before = {} if module is None else {part: part.training for part in module.modules()}
    weights, threads = () if module is None else module.parameters(), torch.get_num_threads()
    is_small = sum(weight.numel() for weight in weights) < 2_000_000
    try:
        torch.set_num_threads(1 if is_small else threads)
        if module is not None:
            module.eval()
        with torch.inference_mode(False):
            yield
    finally:
        torch.set_num_threads(threads)
        for part, training in before.items():
            part.training = training


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
    source_pad_id: int | None = None,
    batch_first: bool | None = None,
    max_length: int | None = None,
    kind: str | None = None,
    generate: Callable[..., Any] | None = None,
    scale: float | None = None,
    length: int | None = None,
    seed: int = 0,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Run every check that applies to a model.

    model: f(src (B, S), tgt_in (B, T)) -> logits (B, T, V), ids in int64; or a toytrans run, or a
    Hugging Face model, of which the rest is known. A module is copied: the one given stays as it
    is. A model of one stream takes ids alone: kind is then "decoder" or "encoder".

    pad_id, vocabulary_size: of the target; source_pad_id, source_size: the source's, if others.
    start_id: the first decoder input; eos_id: what ends a sequence. batch_first: False where ids
    and logits are (T, B); detected if not given. max_length: the most places the model takes.
    embedding: what embeds ids, or (source's,
    target's), if it is no nn.Embedding. loss: (logits, tgt_out) -> mean. batch: pairs of lists of
    symbol ids -> (src, tgt_in, tgt_out). generate: (src, tgt_in) -> logits made step by step, or
    src -> ids decoded greedily, to be compared with the parallel pass. scale: what multiplies q k,
    where it is not 1 / root of the head's width.

    length: symbols of the longest sequence tried, 64. With more (512 say) the checks are thorough:
    batches of 32 rows, and no bound on work. only, skip: names of checks, as ["pads", "future"].
    progress: called with what is being tried.

    Raises UserError where the model cannot be asked: wrong shape, NaN throughout, another answer
    at the second call, an exception of its own, fewer places than needed.
    """
    told = dict(locals())
    own = ("model", "length", "seed", "only", "skip", "progress")
    plan = Plan(length, seed, selected(only, skip), progress)
    return plan.check(adapter_of(model, **{n: value for n, value in told.items() if n not in own}))


def selected(only: Iterable[str], skip: Iterable[str] = ()) -> tuple[str, ...]:
    """The names of checks to ask for, all where none is given, but for those to skip: ["pads",
    "future"], or "pads,future". Raises UserError for others, and where none is left."""
    given = [each.split(",") if isinstance(each, str) else each for each in (only, skip)]
    wanted, left_out = ([name.strip() for name in each if name.strip()] for each in given)
    if unknown := [name for name in (*wanted, *left_out) if name not in CHECKS]:
        raise UserError(f"no check {unknown[0]}; {did_you_mean(unknown[0], CHECKS)}")
    names = tuple(name for name in wanted or CHECKS if name not in left_out)
    if not names:
        raise UserError(f"skip {', '.join(left_out)}: no check is left; leave out fewer")
    return names
