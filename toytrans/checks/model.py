"""A model under check, and how it is asked: its `Adapter`, which makes copies of it too, in another
precision or mode and without dropout."""

import contextlib
import copy
import inspect
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import FunctionType
from typing import Any, Self

import torch
from torch import Tensor, nn

from toytrans.checks.beam_scores import Hypotheses, hypotheses_of
from toytrans.checks.facts import Facts
from toytrans.checks.ids import Symbols, filled_up, rolled, wider
from toytrans.checks.outcome import Judged, does_not_apply, not_asked
from toytrans.checks.torch_modes import NoDropout, restored, set_dropout_to_zero
from toytrans.errors import UserError

BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

RAISED = (Exception, SystemExit)
"""What foreign code may raise; an interruption is not its own."""


class NoAnswer(UserError):
    """A model raised an exception of its own, or answered with something that is no logits.
    lengths: places of the source and of the target that it was asked with, where it raised."""

    def __init__(self, message: str, *lengths: int) -> None:
        super().__init__(message)
        self.lengths = lengths


class Several(tuple[Tensor, ...]):
    """Parts of an answer which may all be the logits."""


class Adapter:
    """How a model is asked: `answer`, `batch`, `loss`, `own_loss`, `step`. This class asks any
    callable; its subclasses ask other kinds of models.

    call: (src (B, S), tgt_in (B, T)) -> logits (B, T, V); a model of one stream takes ids alone.
    embedding: the modules that embed source and target ids. loss: (logits (B, T, V), tgt_out
    (B, T)) -> the mean. batch: pairs -> src, tgt_in, tgt_out. generate: (src, tgt_in) -> logits
    made step by step, or src -> ids (B, L) decoded greedily, or `Hypotheses`. device: where ids go
    and copies are; where it is not given, that of the model's weights.

    Of a copy: `precision`, None as the model came; `training`, its mode; `randomized`, weights that
    are all zero in the model, and small random numbers here; `came_as`, the coarsest precision of
    the model's weights, and `came_on`, their device; `frozen`, names of weights that need no
    gradient where others do; `original`, the adapter of the model itself. Found out while it is
    asked: `overwritten`, which of the ids that it is handed it changes; `drops_masked`, whether
    dropout is handed masked scores; `work_of` the original, the work of an answer to a batch, and
    whether something in fp64 is rounded to fewer digits there.
    """

    precision: torch.dtype | None = None
    training = False
    randomized: tuple[nn.Parameter, ...] = ()
    came_as: torch.dtype | None = None
    frozen: frozenset[str] = frozenset()
    drops_masked = False
    may_raise: tuple[type[BaseException], ...] = RAISED
    """What hooks in this model may meet: it is somebody else's, so its tensors may be of any
    kind."""

    def __init__(
        self,
        call: Callable[..., Any],
        facts: Facts,
        embedding: tuple[nn.Module, ...] | None = None,
        loss: Callable[[Tensor, Tensor], Any] | None = None,
        batch: Callable[[Symbols], Any] | None = None,
        generate: Callable[..., Any] | None = None,
        inputs: Mapping[str, Callable[..., Tensor]] | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.call, self.facts, self.embeddings = call, facts, embedding
        self.given_loss, self.maker, self.generate = loss, batch, generate
        self.inputs = inputs or {}
        weights = () if self.module is None else self.module.parameters()
        self.came_on = next((w.device for w in weights), torch.device("cpu"))
        self.device = device or self.came_on
        self.original = self
        self.overwritten: set[str] = set()
        self.work_of: dict[Hashable, tuple[float, bool]] = {}

    @property
    def module(self) -> nn.Module | None:
        """What holds the weights, where it is at hand."""
        return self.call if isinstance(self.call, nn.Module) else None

    @property
    def mode(self) -> str:
        """The mode of the copy, "train" or "eval"."""
        return "train" if self.training else "eval"

    # Copies ----------------------------------------------------------------------------------

    def copied(self, precision: torch.dtype | None = None, training: bool = False) -> Self | None:
        """The same on a copy of its module, on its device, in train mode without dropout; None
        where it has no copy.

        Weights that are all zero, as in freshly built branches that start closed, become small
        random numbers: nothing could be seen through them.
        """
        names = {} if self.module is None else {p: name for name, p in self.module.named_modules()}
        names_of = {} if self.module is None else {p: n for n, p in self.module.named_parameters()}
        runs_the_original = any(isinstance(vars(p).get("forward"), FunctionType) for p in names)
        if not names or runs_the_original or any(p not in names for p in self.embeddings or ()):
            return None
        try:
            made = copy.deepcopy(self.module)
        except RAISED:  # tensors inside a graph, locks, open files: anything may refuse
            return None
        assert made is not None
        made.eval().to(self.device)
        parts = dict(made.named_modules())
        found = copy.copy(self)
        found.call, found.overwritten = made, set()
        found.embeddings = self.embeddings and tuple(parts[names[p]] for p in self.embeddings)
        if self is self.original:
            frozen = {n for n, p in made.named_parameters() if not p.requires_grad}
            some_learn = len(frozen) < sum(1 for _ in made.parameters())
            found.frozen = frozenset(frozen if some_learn else ())
        found.came_as = max(found.dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=None)
        if precision is not None:
            made.to(precision)
        if self is self.original:
            found.randomized = self.randomize_zero_weights(made)
        else:
            mine = {names_of[parameter] for parameter in self.randomized}
            found.randomized = tuple(p for name, p in made.named_parameters() if name in mine)
        for parameter in made.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        if training:
            made.train()
            set_dropout_to_zero(made)
        found.precision, found.training = precision, training
        return found

    def as_it_came(self) -> Self | None:
        """A copy in the precision and on the device that the model came in."""
        there = copy.copy(self)
        there.device = self.came_on
        return there.copied()

    @property
    def dtypes(self) -> set[torch.dtype]:
        """The precisions of its weights."""
        weights = () if self.module is None else self.module.parameters()
        return {weight.dtype for weight in weights if weight.is_floating_point()}

    @torch.no_grad()
    def randomize_zero_weights(self, module: nn.Module) -> tuple[nn.Parameter, ...]:
        """Give small random numbers to weights that are all zero and can be trained, but for biases
        and embeddings; which these are. A single number called b is a gate rather than a bias."""
        random, changed = torch.Generator().manual_seed(0), []
        trainable = any(parameter.requires_grad for parameter in module.parameters())
        for parent in module.modules():
            for name, parameter in parent.named_parameters(recurse=False):
                is_bias = "bias" in name or (name in ("b", "beta") and parameter.numel() > 1)
                if isinstance(parent, nn.Embedding) or is_bias:
                    continue
                may_change = parameter.requires_grad or not trainable
                if not may_change or not parameter.is_floating_point() or not parameter.numel():
                    continue
                if not bool(parameter.any()):
                    noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
                    width = parameter.shape[-1] if parameter.dim() > 1 else 4
                    parameter.copy_((noise * width**-0.5).to(parameter.dtype))
                    changed.append(parameter)
        return tuple(changed)

    # Answers ---------------------------------------------------------------------------------

    def placed(self, *ids: Tensor) -> tuple[Tensor, ...]:
        """Copies of ids on the model's device, which a model may change."""
        return tuple(x.to(self.device, copy=True) for x in ids)

    def answer(self, src: Tensor, tgt_in: Tensor, masked: Tensor | None = None) -> Any:
        """What the model itself gives, batch first. masked: see `Ids`."""
        facts, places = self.facts, tgt_in.shape[1]
        right = tgt_in
        src, tgt_in = self.as_handed(src, True), self.as_handed(tgt_in, False)
        if facts.equal_lengths:
            width = max(src.shape[1], places)
            src = wider(src, width - src.shape[1], facts.source_pad)
            tgt_in = wider(tgt_in, width - places, facts.pad_id)
        given = (src, tgt_in) if facts.has_source else (tgt_in,)
        more = {name: make(*given) for name, make in self.inputs.items()}
        made = self.call(*((ids.T for ids in given) if facts.time_first else given), **more)
        logits, several = logits_of(made), self._several(made)
        if several or not isinstance(logits, Tensor) or logits.dim() < 3:
            return Several(several) or made
        logits = logits.transpose(0, 1) if facts.time_first else logits
        if facts.pad_side == "left" and logits.shape[1] == places:
            logits = rolled(logits, -facts.pads_behind(right, is_source=False))
        return logits[:, :places] if facts.equal_lengths else logits

    def as_handed(self, ids: Tensor, is_source: bool) -> Tensor:
        """Ids with their pads on the side where the model wants them."""
        if self.facts.pad_side == "right" or not ids.numel():
            return ids
        return rolled(ids, self.facts.pads_behind(ids, is_source))

    def _several(self, made: Any) -> list[Tensor]:
        """Parts of an answer which may all be the logits; none where one alone may be."""
        parts = made if type(made) in (tuple, list) and self.facts.kind != "encoder" else ()
        size = self.facts.vocabulary_size
        alike = [x for x in parts if isinstance(x, Tensor) and x.dim() == 3 and x.shape[-1] == size]
        return alike if len(alike) > 1 else []

    def ask(self, src: Tensor, tgt_in: Tensor, masked: Tensor | None = None) -> Tensor:
        """Its answer, checked: logits (B, T, V), on the CPU. An encoder may pool them: its logits
        (B, C) then stand at every place. It is handed copies of the ids, which are compared
        afterwards."""
        facts = self.facts
        handed = dict(zip(("src", "tgt_in"), self.placed(src, tgt_in), strict=True))
        masked = None if masked is None else masked.to(self.device)
        said = f"src {tuple(src.shape)} and tgt_in" if facts.has_source else "ids"
        asked = f"{facts.name}, asked with {said} {tuple(tgt_in.shape)},"
        try:
            with self.without_dropout():
                answer = self.foreign(asked, self.answer, *handed.values(), masked)
        except UserError as error:
            lengths = src.shape[1], tgt_in.shape[1]
            raise NoAnswer(str(error), *lengths) from error.__cause__  # what the model raised
        same = zip(handed.items(), (src, tgt_in), strict=True)
        self.overwritten |= {name for (name, left), ids in same if not torch.equal(left.cpu(), ids)}
        if isinstance(answer, Several):
            raise NoAnswer(
                f"{asked} gave {len(answer)} tensors {tuple(answer[0].shape)}, and nothing says "
                "which holds the logits: give a module around it whose forward returns them, as "
                "`return self.model(...)[-1]`"
            )
        logits, pools = logits_of(answer), facts.kind == "encoder"
        is_logits = isinstance(logits, Tensor) and logits.is_floating_point()
        is_logits = is_logits and logits.layout == torch.strided and not logits.is_nested
        if is_logits and pools and logits.dim() == 2 and len(logits) == len(tgt_in):
            logits = logits[:, None].expand(-1, tgt_in.shape[1], -1)
        size = logits.shape[-1] if is_logits and pools else facts.vocabulary_size
        if not is_logits or logits.shape != (*tgt_in.shape, size):
            wanted = ", ".join(map(str, (*tgt_in.shape, "C" if pools else size)))
            last = "classes; or, of a pooled one, rows and classes" if pools else "vocabulary"
            raise NoAnswer(
                f"{asked} gave {_described(logits)}; expected floating-point logits ({wanted}): "
                f"batch first, places, {last}"
            )
        return logits.clone().cpu()

    def without_dropout(self) -> AbstractContextManager[None]:
        """A copy in train mode is asked without dropout, and keeps its buffers."""
        if self.module is None or not self.training:
            return contextlib.nullcontext()
        return self._silenced(self.module)

    @contextlib.contextmanager
    def _silenced(self, module: nn.Module) -> Iterator[None]:
        with restored(module.buffers()), NoDropout() as mode:
            yield
        self.drops_masked |= mode.drops_masked

    def batch(self, pairs: Symbols) -> tuple[Tensor, Tensor, Tensor | None]:
        """src, tgt_in and tgt_out, this None without a batch maker where start or end is not known.
        Raises UserError for a batch maker that makes others."""
        facts = self.facts
        if self.maker is None:
            end = [] if facts.eos_id is None else [facts.eos_id]
            start = [] if facts.start_id is None else [facts.start_id]
            src = filled_up([s + end for s, _ in pairs], facts.source_pad)
            tgt_in = filled_up([start + t for _, t in pairs], facts.pad_id)
            tgt_out = filled_up([t + end for _, t in pairs], facts.pad_id)
            return src, tgt_in, tgt_out if start and end and facts.is_causal else None
        made = self.foreign("the batch maker", self.maker, pairs)
        is_three = isinstance(made, tuple | list) and len(made) == 3
        parts: Any = made if is_three else [None] * 3
        src, tgt_in, tgt_out = parts

        def are_ids(x: Any) -> bool:
            is_right = isinstance(x, Tensor) and x.dtype == torch.int64 and x.dim() == 2
            return is_right and len(x) == len(pairs)

        are_right = are_ids(src) and are_ids(tgt_in)
        if are_right and tgt_out is not None:
            are_right = are_ids(tgt_out) and tgt_out.shape == tgt_in.shape
        if not are_right:
            raise UserError(
                f"the batch maker gave {_described(made)}; expected src (B, S), tgt_in (B, T) and "
                f"tgt_out (B, T), tensors of int64 ids, a row for each of {len(pairs)} pairs"
            )
        on_cpu: Any = tuple(x if x is None else x.cpu() for x in parts)
        src, tgt_in, tgt_out = on_cpu
        if facts.pad_side == "left":
            turned: Any = self._turned_to_the_right(src, tgt_in, tgt_out)
            src, tgt_in, tgt_out = turned
        starts = (tgt_in[:, :2] == facts.pad_id).all(1)
        ends = (tgt_in[:, -1:] != facts.pad_id).any(1)
        if facts.is_causal and bool((starts & ends).any()):
            raise UserError(
                "the batch maker pads targets on the left; if the model wants that, give "
                "pad_side='left'"
            )
        return src, tgt_in, tgt_out

    def _turned_to_the_right(
        self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """A batch whose pads stand in front, with its pads behind."""
        before = [
            (ids == pad).long().cumprod(1).sum(1)
            for ids, pad in ((src, self.facts.source_pad), (tgt_in, self.facts.pad_id))
        ]
        tgt_out = tgt_out if tgt_out is None else rolled(tgt_out, -before[1])
        return rolled(src, -before[0]), rolled(tgt_in, -before[1]), tgt_out

    def own_loss(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor | None:
        """The loss that the model itself gives, which may hold other terms; None where none."""
        return None

    def loss(self, logits: Tensor, tgt_out: Tensor) -> Tensor:
        """The mean loss, a scalar. Raises UserError where it is none."""
        assert self.given_loss is not None
        asked = "the loss function, given (logits (B, T, V), tgt_out (B, T)),"
        placed = logits.to(self.device), tgt_out.to(self.device)
        value = self.foreign(asked, self.given_loss, *placed)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise UserError(
                f"the loss function gave {_described(value)}; expected a scalar tensor, the mean"
            )
        return value.reshape(()).cpu()

    def step(self, src: Tensor, tgt_in: Tensor, positions: bool = True) -> Tensor | Hypotheses:
        """Decoding step by step: the logits (B, T, V) of each step for tgt_in; or ids (B, L) that
        are decoded greedily, or hypotheses of a beam search. positions: they are given, where the
        model takes them."""
        if self.generate is None:
            raise Judged(not_asked("needs decoding step by step with a cache", "generate"))
        taken = [p for p in arguments(self.generate) if p.default is p.empty]
        takes_both = sum(p.kind in BY_PLACE for p in taken) > 1
        prompt = src if self.facts.has_source else tgt_in[:, :2]
        given = (src, tgt_in) if takes_both else (prompt,)
        made = self.foreign("generate", self.generate, *self.placed(*given))
        if not takes_both and (found := hypotheses_of(made, len(tgt_in))) is not None:
            return found
        steps = logits_of(made) if takes_both else getattr(made, "sequences", made)
        wanted = tgt_in.shape if takes_both else (len(tgt_in),)
        is_right = isinstance(steps, Tensor) and steps.dim() == len(wanted) + 1
        is_right = is_right and steps.is_floating_point() == takes_both
        if not is_right or steps.shape[: len(wanted)] != wanted:
            what = (
                "logits (B, T, V), of each step"
                if takes_both
                else "ids (B, L), decoded greedily, or ids (B, K, L) and scores (B, K) of beams"
            )
            raise UserError(f"generate gave {_described(steps)}; expected {what}")
        return steps.cpu() if takes_both else steps.long().cpu()

    def state(self, src: Tensor, places: int, beams: int) -> Any:
        """A state that decodes targets of so many places, some for each source (A, S), with
        `next_logits` and `select` as those of `toytrans.model.seq2seq.DecoderState`."""
        raise Judged(does_not_apply("no state is known whose rows could be exchanged"))

    def foreign(self, what: str, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function that may be somebody else's; what it raises becomes one line."""
        try:
            return function(*given)
        except Judged:  # raised by a hook of ours
            raise
        except RAISED as error:
            first = (str(error).splitlines() or [""])[0][:200]
            raise UserError(f"{what} raised {type(error).__name__}: {first}") from error


def raised_in(module: nn.Module | None, error: BaseException) -> str:
    """The innermost part of a module in which the model raised what an error was made from, as
    "decoder.0.self_attn: "; "" where it is not known."""
    names = {} if module is None else {part: name for name, part in module.named_modules()}
    frames = traceback.walk_tb(None if error.__cause__ is None else error.__cause__.__traceback__)
    running = (frame.f_locals.get("self") for frame, _ in frames)
    parts = [names[part] for part in running if isinstance(part, nn.Module) and part in names]
    return f"{parts[-1]}: " if parts and parts[-1] else ""


def is_our_own(error: BaseException) -> bool:
    """Whether an exception is a fault of the checks: one that their own code raises, outside of a
    call of the model. What torch raises of the model's tensors is the model's."""
    last = [*traceback.walk_tb(error.__traceback__)][-1][0]
    is_here = last.f_code.co_filename.startswith(str(Path(__file__).parent))
    return is_here and not isinstance(error, RuntimeError | NotImplementedError)


# What models take and give -----------------------------------------------------------------------


def arguments(function: Any) -> list[inspect.Parameter]:
    """Those of a function or a module; none where it does not say."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        return list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return []


def logits_of(answer: Any) -> Any:
    """The logits in what a model returns: itself, `.logits`, ["logits"], or of a tuple the first
    tensor of numbers (B, T, V)."""
    if isinstance(answer, Tensor):
        return answer
    found = [getattr(answer, "logits", None)]
    found += [answer.get("logits")] if isinstance(answer, dict) else []
    if isinstance(answer, tuple | list):
        found += [x for x in answer if isinstance(x, Tensor) and x.dim() == 3]
    found.append(getattr(answer, "last_hidden_state", None))
    return next((x for x in found if isinstance(x, Tensor) and x.is_floating_point()), answer)


def _described(given: Any) -> str:
    """What a function of somebody else's gave, for an error: its kind, and those of its parts."""

    def kind(value: Any) -> str:
        if not isinstance(value, Tensor):
            return type(value).__name__
        if value.is_nested or value.layout != torch.strided:
            return f"a {'nested' if value.is_nested else 'sparse'} tensor"
        return f"{value.dtype} {tuple(value.shape)}"

    parts = f" of {', '.join(map(kind, given))}" if isinstance(given, tuple | list) else ""
    return f"{kind(given)}{parts}"
