"""Modes: the same ids get the same answer in eval mode, with gradients, in train mode, and in the
precision and on the device that the model came in."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from toytrans.checks import tolerances
from toytrans.checks.asked import Asked
from toytrans.checks.ids import Ids
from toytrans.checks.model import Adapter, NoAnswer, raised_in
from toytrans.checks.not_a_number import nan_begins
from toytrans.checks.outcome import (
    Evidence,
    Outcome,
    does_not_apply,
    fails,
    measured,
    passes,
    unsure,
)
from toytrans.checks.registry import Check
from toytrans.checks.torch_modes import restored, set_dropout_to_zero

MODES = Check(
    "modes",
    "eval mode, gradients and train mode agree",
    how="one batch without and with gradients, in train mode without dropout, and as it came",
    limits="What draws random numbers in train mode is not compared, nor is what other precisions "
    "than its own do to a model.",
)

ROUNDING = "other kernels round half precision as far as modes may differ"

# With gradients ------------------------------------------------------------------------------


def is_gone_without_hints(evidence: Evidence) -> bool:
    """Whether both answers agree where no layer is told `is_causal`."""
    return bool(evidence["gone_without_hints"])


def is_gone_without_fast_path(evidence: Evidence) -> bool:
    """Whether both answers agree where torch's fast path is off."""
    return bool(evidence["gone_without_fast_path"])


APART = "{where}gives other logits with gradients than without, by {by:.2g}"

CAUSAL_HINT = MODES.cause(
    "causal_hint",
    when="answers without and with gradients differ, and agree where is_causal is not given",
    words="{where}is_causal=True says that the mask is the plain triangle, and it is another one: "
    "eval mode takes the mask, train mode the triangle alone (logits differ by {by:.2g})",
    remedy="leave is_causal out",
    fits=is_gone_without_hints,
)
FAST_PATH = MODES.cause(
    "fast_path",
    when="answers without and with gradients differ, and agree where torch's fast path is off",
    words=f"{APART}: torch's fast path in eval mode reads the masks in another way than training",
    remedy="torch.backends.mha.set_fastpath_enabled(False) makes them agree; a mask of True and "
    "False alone needs no such switch",
    fits=is_gone_without_fast_path,
)
BY_GRADIENTS = MODES.cause(
    "by_gradients",
    when="answers without and with gradients differ",
    words=APART,
    remedy="look for torch.is_grad_enabled and requires_grad in it",
)
NO_BACKWARD = MODES.cause(
    "no_backward",
    when="the model answers without gradients, and gradients cannot be taken of its logits",
    words="gradients cannot be taken of its logits, so it cannot be trained: {error}",
    remedy="is a tensor changed in place that a gradient needs (x += y, x[...] = y, relu_)?",
    explains=False,
)


@MODES.part("with gradients", on="both ends", compares_modes=True)
def with_gradients(asked: Asked) -> Outcome:
    """In eval mode gradients can be taken of the logits, and the batch gets the same logits as
    without: torch's fast path runs without them alone, and takes masks in another way."""
    if (error := _error_of_gradients(asked)) is not None:
        return fails(NO_BACKWARD, error=error)
    if asked.dtype not in tolerances.LOGITS:
        return does_not_apply(ROUNDING)
    by = asked.differ(_with_gradients(asked), asked.logits, asked.real)
    evidence: dict[str, Any] = {}
    if not by <= asked.tolerance:
        with _no_fast_path():
            without = _differs(asked, asked.ask(*asked.ids), _with_gradients(asked))
        with _no_hints(asked.model.module), torch.enable_grad():
            hinted = _differs(asked, asked.model.ask(*asked.ids).detach(), asked.logits)
        evidence = {"gone_without_fast_path": not without, "gone_without_hints": not hinted}
        evidence |= {"by": by, "where": _first_on_the_fast_path(asked)}
    said = "the same logits without gradients and with them"
    causes = (CAUSAL_HINT, FAST_PATH, BY_GRADIENTS)
    return measured(by, asked.tolerance, said, *causes, **evidence)


def _error_of_gradients(asked: Asked) -> str | None:
    """What is raised where gradients are taken; None where nothing is, or none flow."""
    module = asked.model.module
    weights = [] if module is None else [w for w in module.parameters() if w.requires_grad]
    try:
        with torch.enable_grad():
            logits = asked.model.ask(*asked.ids)
            asked.shared["with gradients"] = logits.detach()
            if weights and logits.requires_grad:
                torch.autograd.grad(logits.sum(), weights, allow_unused=True)
    except (NoAnswer, RuntimeError, NotImplementedError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0][:200]
    return None


def _with_gradients(asked: Asked) -> Tensor:
    """The logits in eval mode with gradients, asked for once."""
    if "with gradients" not in asked.shared:
        with torch.enable_grad():
            asked.shared["with gradients"] = asked.model.ask(*asked.ids).detach()
    found: Tensor = asked.shared["with gradients"]
    return found


def _differs(asked: Asked, new: Tensor, old: Tensor) -> bool:
    return not asked.differ(new, old, asked.real) <= asked.tolerance


@contextlib.contextmanager
def _no_fast_path() -> Iterator[None]:
    """torch takes no fast path through its layers meanwhile."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _no_hints(module: nn.Module | None) -> Iterator[None]:
    """No part of a module is told that its mask is causal meanwhile; each reads the mask."""

    def untold(_: nn.Module, given: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        hints = {name: False for name in named if name.endswith("is_causal") and named[name]}
        return given, named | hints

    with contextlib.ExitStack() as stack:
        for part in () if module is None else module.modules():
            if not isinstance(part, torch.jit.ScriptModule):  # which takes no hooks
                hook = part.register_forward_pre_hook(untold, with_kwargs=True)
                stack.callback(hook.remove)
        yield


def _first_on_the_fast_path(asked: Asked) -> str:
    """The first layer of torch's whose fast path changes the logits, as "encoder.layers.0: ". A
    hook on a part switches its fast path off."""
    module = asked.model.module
    for name, part in () if module is None else module.named_modules():
        if isinstance(part, nn.TransformerEncoderLayer | nn.MultiheadAttention):
            hook = part.register_forward_hook(lambda *_: None)
            try:
                if _differs(asked, asked.ask(*asked.ids), asked.logits):
                    return f"{name}: "
            finally:
                hook.remove()
    return ""


# Train mode ----------------------------------------------------------------------------------

BY_TRAINING = MODES.cause(
    "by_training",
    when="without dropout train mode gives other logits than eval mode with gradients",
    words="{where}without dropout train mode gives other logits than eval mode, by {by:.2g}",
    remedy="look for self.training in it: but for dropout, eval mode must compute what was trained",
    explains=False,
)
REFUSED_IN_TRAINING = MODES.doubt(
    "refused_in_training",
    when="the model does not answer in train mode what it answers in eval mode",
    words="in train mode, {error}",
)
RANDOM_IN_TRAINING = MODES.doubt(
    "random_in_training",
    when="two answers to one batch differ in train mode, though dropout is off",
    words="in train mode the model draws random numbers that are no dropout of torch's, so its "
    "modes cannot be compared",
)
STATISTICS = MODES.doubt(
    "statistics",
    when="train mode gives other logits where modules keep statistics, which change meanwhile",
    words="{where}train mode takes the statistics of the batch, and eval mode those it kept, so "
    "they differ by {by:.2g}, which is meant in such a layer",
)


@MODES.part("train mode", on="both ends", compares_modes=True)
def train_mode(asked: Asked) -> Outcome:
    """In train mode without dropout the batch gets the same logits as in eval mode. Where it does
    not, the parts are set to eval mode one by one, and the first whose mode matters is named."""
    if asked.model.module is None:
        return does_not_apply("a function has the mode that its user gave it")
    if asked.dtype not in tolerances.LOGITS:
        return does_not_apply(ROUNDING)
    train = asked.model.copied(asked.model.precision, training=True)
    if train is None:
        return does_not_apply("a model that cannot be copied is asked in eval mode alone")
    eval_logits = _with_gradients(asked)
    try:
        logits, again = (_in_training(train, asked) for _ in range(2))
    except NoAnswer as error:
        return unsure(REFUSED_IN_TRAINING, error=str(error))
    if _differs(asked, again, logits):
        return unsure(RANDOM_IN_TRAINING)
    by = asked.differ(logits, eval_logits, asked.real)
    if not by <= asked.tolerance:  # unless it is what was set to zero that eval mode uses too
        by = min(by, asked.differ(logits, _without_rates(asked, eval_logits), asked.real))
    if by <= asked.tolerance:
        return measured(by, asked.tolerance, "the same logits in train mode without dropout")
    deciding = [name for name, part in _parts(train) if _decides(train, part, asked, logits)]
    where = f"{deciding[0]}: " if deciding and deciding[0] else ""
    if deciding and {*deciding} <= _parts_that_keep_statistics(train, asked):
        return unsure(STATISTICS, where=where, by=by)
    return measured(by, asked.tolerance, "", BY_TRAINING, where=where, by=by)


def _parts(model: Adapter) -> list[tuple[str, nn.Module]]:
    return [] if model.module is None else list(model.module.named_modules())


def _without_rates(asked: Asked, eval_logits: Tensor) -> Tensor:
    """The logits in eval mode with rates of dropout and of jitter at 0, as they are in copies in
    train mode."""
    copied = asked.model.copied(asked.model.precision)
    if copied is None or copied.module is None:
        return eval_logits
    set_dropout_to_zero(copied.module)
    return copied.ask(*asked.ids)


def _in_training(train: Adapter, asked: Asked) -> Tensor:
    with torch.enable_grad():
        return train.ask(*asked.ids).detach()


def _decides(train: Adapter, part: nn.Module, asked: Asked, logits: Tensor) -> bool:
    """Whether the logits of train mode are others where one part alone is in eval mode."""
    part.training = False
    try:
        return _differs(asked, _in_training(train, asked), logits)
    except NoAnswer:
        return True
    finally:
        part.training = True


def _parts_that_keep_statistics(train: Adapter, asked: Asked) -> set[str]:
    """The parts whose own buffers change where the batch is asked in train mode."""
    buffers = {name: list(part.buffers(recurse=False)) for name, part in _parts(train)}
    before = {name: [buffer.clone() for buffer in kept] for name, kept in buffers.items()}
    with restored(buffer for kept in buffers.values() for buffer in kept):
        train.answer(*train.placed(*asked.ids[:2]))
        return {
            name for name, kept in buffers.items() if not all(map(torch.equal, kept, before[name]))
        }


# As it came ----------------------------------------------------------------------------------

RAISES = MODES.cause(
    "raises",
    when="the model as it came raises an exception at a batch that its copies answer",
    words="{where}as it came, in {came_in} on {device}, {error}; a copy in {other} answers",
    remedy="this is how you run it: does a mask or a number in it need another precision?",
    explains=False,
)
NOT_FINITE = MODES.cause(
    "not_finite",
    when="the model as it came gives NaN at real places where its copies give numbers",
    words="{at}as it came, in {came_in} on {device}, {count} of {all} real outputs hold NaN, which "
    "begins in {operation}; a copy in {other} gives numbers",
    remedy="does a mask's fill, or a sum, exceed the largest number of {came_in}, or is an eps 0 "
    "there?",
    explains=False,
)
NOT_IMPLEMENTED = MODES.doubt(
    "not_implemented",
    when="torch has no kernel on this device for the precision in which the model came",
    words="as it came, in {came_in} on {device}, {error}",
    remedy="ask it where you run it (device=...)",
)


@MODES.part("as it came")
def as_it_came(asked: Asked) -> Outcome:
    """The shortest batch is asked once in the precision and on the device that the model came in:
    it answers, and with numbers."""
    model = asked.model.original.as_it_came()
    if model is None:
        return does_not_apply("the model cannot be copied, so all is asked of it as it came")
    dtypes = [str(dtype).removeprefix("torch.") for dtype in model.dtypes]
    came_in = " and ".join(sorted(dtypes)) or "its precision"
    about: dict[str, Any] = {"came_in": came_in, "device": model.device}
    about |= {"other": asked.precision}
    try:
        with torch.no_grad():
            logits = model.ask(*asked.ids)
    except NoAnswer as error:
        is_missing = "not implemented for" in str(error)
        make = unsure if is_missing else fails
        about |= {"error": str(error), "where": raised_in(model.module, error)}
        return make(NOT_IMPLEMENTED if is_missing else RAISES, **about)
    lost = logits.isnan().any(-1) & ~asked.logits.isnan().any(-1) & asked.real
    if bool(lost.any()):
        row = int(lost.any(1).int().argmax())
        seen = nan_begins(model, Ids(asked.src[row, None], asked.tgt_in[row, None]))
        seen["operation"] = seen["operation"] or "an operation that is not seen"
        about |= {"count": int(lost.sum()), "all": int(asked.real.sum())}
        return fails(NOT_FINITE, **(seen | about))
    return passes("as it came, in {came_in} on {device}, it gives numbers".format(**about))
