"""A model under check: what is known of it, the methods through which it is asked, and its copies,
in another precision or mode, without dropout."""

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from toytrans.checks.result import Told
from toytrans.errors import UserError

Kind = Literal["encoder-decoder", "decoder", "encoder"]

Symbols = Sequence[tuple[list[int], list[int]]]
"""Ragged pairs of symbol ids, without start, end or pads."""

IGNORED = -100
"""The label that torch's cross entropy, and with it Hugging Face's models, ignores."""

BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

RAISED = (Exception, SystemExit)
"""What foreign code may raise; an interruption is not its own."""


class NoAnswer(UserError):
    """A model raised an exception of its own, or answered with something that is no logits."""


class Ids(NamedTuple):
    """What a model is asked: src (B, S) and tgt_in (B, T). closed: which of tgt_in a mask closes,
    where the model is given one; None for the pads."""

    src: Tensor
    tgt_in: Tensor
    closed: Tensor | None = None


@dataclass(frozen=True)
class Facts:
    """What is known of a model.

    decoding_start: the id that decoding starts with; start_id: the one that tgt_in starts with.
    source_size: ids of the source, if not `vocabulary_size`. max_length: the most places.
    equal_lengths: it takes source and target of one length alone, so
    the shorter is filled up with pads. time_first: ids are (L, B), logits (T, B, V).
    masks_from_ids: the model makes its masks from ids alone, and is given none; takes_positions:
    it is given positions too, which count from the first token that is not closed.
    scale: what scores are multiplied with, if not 1 / root of d_head. is_textbook: norms, residual
    connections, scale and rows without keys are meant as in Vaswani et al. (2017), and whatever it
    raises is an error of this package.
    """

    name: str
    pad_id: int
    vocabulary_size: int
    kind: Kind = "encoder-decoder"
    source_pad_id: int | None = None
    start_id: int | None = None
    eos_id: int | None = None
    decoding_start: int | None = None
    source_size: int | None = None
    max_length: int | None = None
    equal_lengths: bool = False
    time_first: bool = False
    masks_from_ids: bool = True
    takes_positions: bool = False
    scale: float | None = None
    is_textbook: bool = False

    @property
    def has_source(self) -> bool:
        return self.kind == "encoder-decoder"

    @property
    def is_causal(self) -> bool:
        return self.kind != "encoder"

    @property
    def source_pad(self) -> int:
        return self.pad_id if self.source_pad_id is None else self.source_pad_id

    def symbols(self) -> list[int]:
        """Ids that may stand anywhere in source and target."""
        special = {self.pad_id, self.source_pad, self.start_id, self.eos_id, self.decoding_start}
        size = min(self.vocabulary_size, self.source_size or self.vocabulary_size)
        return [i for i in range(size) if i not in special]

    def real_source(self, src: Tensor) -> Tensor:
        """Which places of a source are real, (B, S); where pad and end share an id, the first of
        those at the end of a row is the end."""
        real = src != self.source_pad
        if self.source_pad == self.eos_id and real.shape[1]:
            length = real.long().mul(torch.arange(1, real.shape[1] + 1)).amax(1)
            real = torch.arange(real.shape[1]) <= length[:, None]
        return real

    def real_inputs(self, tgt_in: Tensor) -> Tensor:
        """Which decoder inputs are real, (B, T): the first whatever its id, since Marian and T5
        start with their pad id."""
        real = tgt_in != self.pad_id
        real[:, :1] |= self.is_causal
        return real

    def real_labels(self, tgt_out: Tensor) -> Tensor:
        """Which labels stand for no pads, (B, T); where the end has the pad's id, pads are told by
        their label."""
        is_ignored, is_pad = tgt_out == IGNORED, tgt_out == self.pad_id
        if self.pad_id == self.eos_id and bool(is_ignored.any()):
            return ~is_ignored
        return ~(is_ignored | is_pad)


class Adapter:
    """How a model is asked: `answer`, `batch`, `loss`, `own_loss`, `step`. This is how a callable
    is, and what other kinds of models change.

    call: (src (B, S), tgt_in (B, T)) -> logits (B, T, V); a model of one stream takes ids alone.
    embedding: of source and target ids. loss: (logits (B, T, V), tgt_out (B, T)) -> the mean.
    batch: pairs -> src, tgt_in, tgt_out. generate: (src, tgt_in) -> logits made step by
    step, or src -> ids (B, L) decoded greedily.

    Of a copy: `precision`, None as the model came; `training`, its mode; `opened`,
    weights that are all zero in the model, and here small random numbers; `came_as`, the coarsest
    precision of the model's weights. Found out while it is asked: `overwritten`, which of the ids
    that it is handed it changes; `drops_masked`, whether dropout is handed masked scores.
    """

    precision: torch.dtype | None = None
    training = False
    opened: tuple[nn.Parameter, ...] = ()
    came_as: torch.dtype | None = None
    drops_masked = False

    def __init__(
        self,
        call: Callable[..., Any],
        facts: Facts,
        embedding: tuple[nn.Module, ...] | None = None,
        loss: Callable[[Tensor, Tensor], Any] | None = None,
        batch: Callable[[Symbols], Any] | None = None,
        generate: Callable[..., Any] | None = None,
    ) -> None:
        self.call, self.facts, self.embeddings = call, facts, embedding
        self.given_loss, self.maker, self.generate = loss, batch, generate
        self.overwritten: set[str] = set()

    @property
    def module(self) -> nn.Module | None:
        """What holds the weights, where it is at hand."""
        return self.call if isinstance(self.call, nn.Module) else None

    @property
    def mode(self) -> str:
        return "train" if self.training else "eval"

    def copied(self, precision: torch.dtype | None = None, training: bool = False) -> Self | None:
        """The same on a copy of its module, in train mode without dropout; None where it has no
        copy.

        Weights that are all zero, as in freshly built branches that start closed, become small
        random numbers: nothing could be seen through them.
        """
        names = {} if self.module is None else {p: name for name, p in self.module.named_modules()}
        runs_the_original = any(isinstance(vars(p).get("forward"), FunctionType) for p in names)
        if not names or runs_the_original or any(p not in names for p in self.embeddings or ()):
            return None
        try:
            made = copy.deepcopy(self.module)
        except Exception:  # tensors inside a graph, locks, open files: anything may refuse
            return None
        assert made is not None
        made.eval().cpu()
        parts = dict(made.named_modules())
        found = copy.copy(self)
        found.call, found.overwritten = made, set()
        found.embeddings = self.embeddings and tuple(parts[names[p]] for p in self.embeddings)
        dtypes = {p.dtype for p in made.parameters() if p.is_floating_point()}
        found.came_as = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=None)
        if precision is not None:
            made.to(precision)
        found.opened = () if self.facts.is_textbook else _randomize_zero_weights(made)
        for parameter in made.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        if training:
            made.train()
            _without_dropout(made)
        found.precision, found.training = precision, training
        return found

    def answer(self, src: Tensor, tgt_in: Tensor, closed: Tensor | None = None) -> Any:
        """What the model itself gives, batch first. closed: see `Ids`."""
        facts, places = self.facts, tgt_in.shape[1]
        if facts.equal_lengths:
            width = max(src.shape[1], places)
            src = wider(src, width - src.shape[1], facts.source_pad)
            tgt_in = wider(tgt_in, width - places, facts.pad_id)
        given = (src, tgt_in) if facts.has_source else (tgt_in,)
        made = self.call(*(ids.T for ids in given) if facts.time_first else given)
        logits = logits_of(made)
        if not isinstance(logits, Tensor) or logits.dim() < 3:
            return made
        logits = logits.transpose(0, 1) if facts.time_first else logits
        return logits[:, :places] if facts.equal_lengths else logits

    def ask(self, src: Tensor, tgt_in: Tensor, closed: Tensor | None = None) -> Tensor:
        """Its answer, checked: logits (B, T, V). An encoder may pool them: its logits (B, C) then
        stand at every place. It is handed copies of the ids, which are compared afterwards."""
        facts, handed = self.facts, {"src": src.clone(), "tgt_in": tgt_in.clone()}
        of = f"src {tuple(src.shape)} and tgt_in" if facts.has_source else "ids"
        asked = f"{facts.name}, asked with {of} {tuple(tgt_in.shape)},"
        try:
            with self.without_dropout():
                answer = self.foreign(asked, self.answer, *handed.values(), closed)
        except UserError as error:
            raise NoAnswer(str(error)) from error.__cause__  # what the model raised
        same = zip(handed.items(), (src, tgt_in), strict=True)
        self.overwritten |= {name for (name, left), ids in same if not torch.equal(left, ids)}
        logits, pools = logits_of(answer), facts.kind == "encoder"
        is_logits = isinstance(logits, Tensor) and logits.is_floating_point()
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

    @contextlib.contextmanager
    def without_dropout(self) -> Any:
        """A copy in train mode is asked without dropout, and keeps its buffers. A textbook model
        has no other dropout than that whose rates are zero already, and no buffers that change."""
        if self.module is None or not self.training or self.facts.is_textbook:
            yield
            return
        with restored(self.module.buffers()), NoDropout() as mode:
            yield
        self.drops_masked |= mode.drops_masked

    def batch(self, pairs: Symbols) -> tuple[Tensor, Tensor, Tensor | None]:
        """src, tgt_in and tgt_out, this None without a batch maker where start or end is not known.
        Raises UserError for a batch maker that makes others."""
        facts = self.facts
        if self.maker is None:
            end = [] if facts.eos_id is None else [facts.eos_id]
            start = [] if facts.start_id is None else [facts.start_id]
            src = padded([s + end for s, _ in pairs], facts.source_pad)
            tgt_in = padded([start + t for _, t in pairs], facts.pad_id)
            tgt_out = padded([t + end for _, t in pairs], facts.pad_id)
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
        starts, ends = (tgt_in[:, :2] == facts.pad_id).all(1), tgt_in[:, -1] != facts.pad_id
        if facts.is_causal and bool((starts & ends).any()):
            raise UserError("the batch maker pads targets on the left; check asks with pads behind")
        return src, tgt_in, tgt_out

    def own_loss(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor | None:
        """The loss that the model itself gives, which may hold other terms; None where none."""
        return None

    def loss(self, logits: Tensor, tgt_out: Tensor) -> Tensor:
        """The mean loss, a scalar. Raises UserError where it is none."""
        assert self.given_loss is not None
        asked = "the loss function, given (logits (B, T, V), tgt_out (B, T)),"
        value = self.foreign(asked, self.given_loss, logits, tgt_out)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise UserError(
                f"the loss function gave {_described(value)}; expected a scalar tensor, the mean"
            )
        return value.reshape(())

    def step(self, src: Tensor, tgt_in: Tensor, positions: bool = True) -> Tensor:
        """Decoding step by step: the logits (B, T, V) of each step for tgt_in, or ids (B, L) that
        are decoded greedily. positions: they are given, where the model takes them."""
        if self.generate is None:
            raise Told("not asked", "needs decoding step by step with a cache", "generate")
        taken = [p for p in arguments(self.generate) if p.default is p.empty]
        takes_both = sum(p.kind in BY_PLACE for p in taken) > 1
        prompt = src if self.facts.has_source else tgt_in[:, :2]
        given = (src, tgt_in) if takes_both else (prompt,)
        made = self.foreign("generate", self.generate, *(ids.clone() for ids in given))
        steps = logits_of(made) if takes_both else getattr(made, "sequences", made)
        wanted = tgt_in.shape if takes_both else (len(tgt_in),)
        is_right = isinstance(steps, Tensor) and steps.dim() == len(wanted) + 1
        is_right = is_right and steps.is_floating_point() == takes_both
        if not is_right or steps.shape[: len(wanted)] != wanted:
            what = (
                "logits (B, T, V), of each step" if takes_both else "ids (B, L), decoded greedily"
            )
            raise UserError(f"generate gave {_described(steps)}; expected {what}")
        return steps if takes_both else steps.long().cpu()

    def foreign(self, what: str, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function that may be somebody else's; what it raises becomes one line."""
        if self.facts.is_textbook:
            return function(*given)
        try:
            return function(*given)
        except Told:  # raised by a hook of ours
            raise
        except RAISED as error:
            first = (str(error).splitlines() or [""])[0][:200]
            raise UserError(f"{what} raised {type(error).__name__}: {first}") from error


# Copies ----------------------------------------------------------------------------------------


@torch.no_grad()
def _randomize_zero_weights(module: nn.Module) -> tuple[nn.Parameter, ...]:
    """Give small random numbers to weights that are all zero and can be trained, but for biases
    and embeddings; which these are."""
    random, opened = torch.Generator().manual_seed(0), []
    trainable = any(parameter.requires_grad for parameter in module.parameters())
    for parent in module.modules():
        for name, parameter in parent.named_parameters(recurse=False):
            if isinstance(parent, nn.Embedding) or "bias" in name or name in ("b", "beta"):
                continue
            is_open = parameter.requires_grad or not trainable
            if not is_open or not parameter.is_floating_point() or not parameter.numel():
                continue
            if not bool(parameter.any()):
                noise = torch.randn(parameter.shape, generator=random, dtype=torch.float64)
                width = parameter.shape[-1] if parameter.dim() > 1 else 4
                parameter.copy_((noise * width**-0.5).to(parameter.dtype))
                opened.append(parameter)
    return tuple(opened)


def _without_dropout(module: nn.Module) -> None:
    """Set every rate of dropout or of skipped layers to zero."""
    configs = {id(c): c for part in module.modules() if (c := getattr(part, "config", None))}
    for owner in (*module.modules(), *configs.values()):
        is_dropout = isinstance(owner, nn.Module) and "drop" in type(owner).__name__.lower()
        for name, value in list(getattr(owner, "__dict__", {}).items()):
            is_named = "drop" in name.lower() or "jitter" in name.lower()
            is_named = is_named or (is_dropout and name in ("p", "rate", "prob"))
            if is_named and isinstance(value, float) and 0 < value <= 1:
                with contextlib.suppress(Exception):
                    setattr(owner, name, 0.0)


DROPOUTS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout}
DROPOUTS |= {F.alpha_dropout, F.feature_alpha_dropout}


class NoDropout(TorchFunctionMode):
    """Dropout that a model calls as a function, with a rate that no attribute holds, does nothing.
    drops_masked: whether it is handed scores of which some are masked."""

    drops_masked = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func in DROPOUTS:
            given = args[0] if args else named["input"]
            if given.numel() and bool(given.detach().min() < -1e4):
                self.drops_masked = True
            return given
        if func is F.scaled_dot_product_attention and "dropout_p" in named:
            named = named | {"dropout_p": 0.0}
        return func(*args, **named)


@contextlib.contextmanager
def restored(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors, which are afterwards what they were."""
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield [tensor for tensor, _ in kept]
    finally:
        with torch.no_grad():
            for tensor, value in kept:
                if tensor.shape == value.shape and not torch.equal(tensor, value):
                    tensor.data.copy_(value)


@contextlib.contextmanager
def zeroed(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Parameters are all zero meanwhile."""
    with restored(tensors) as kept:
        for tensor in kept:
            tensor.data.zero_()
        yield


# What models take and give -----------------------------------------------------------------------


def arguments(function: Any) -> list[inspect.Parameter]:
    """Those of a function or a module; none where it does not say."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        return list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return []


def wider(ids: Tensor, places: int, value: int) -> Tensor:
    """Rows of ids with pads behind them."""
    return F.pad(ids, (0, places), value=value)


def padded(rows: list[list[int]], value: int) -> Tensor:
    """Ragged rows of ids, each filled up with a value, at least one place wide: (N, L)."""
    width = max(1, *(len(row) for row in rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


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
        is_tensor = isinstance(value, Tensor)
        return f"{value.dtype} {tuple(value.shape)}" if is_tensor else type(value).__name__

    parts = f" of {', '.join(map(kind, given))}" if isinstance(given, tuple | list) else ""
    return f"{kind(given)}{parts}"
