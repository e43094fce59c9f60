"""`check`, for any model."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from toytrans.checks.adapters import adapter_of
from toytrans.checks.plan import Plan, Progress
from toytrans.checks.result import CHECKS, Report
from toytrans.errors import UserError


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
    pad_side: str | None = None,
    batch_first: bool | None = None,
    max_length: int | None = None,
    kind: str | None = None,
    generate: Callable[..., Any] | None = None,
    scale: float | None = None,
    length: int | None = None,
    seed: int = 0,
    only: Iterable[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Run every check that applies to a model.

    model: f(src (B, S), tgt_in (B, T)) -> logits (B, T, V), ids in int64; or a toytrans run, or a
    Hugging Face model, of which the rest is known. A module is copied: the one given stays as it
    is. A model of one stream takes ids alone: kind is then "decoder" or "encoder".

    pad_id, vocabulary_size: of the target; source_pad_id, source_size: the source's, if others.
    start_id: the first decoder input; eos_id: what ends a sequence. pad_side: "left" where targets
    are padded there. batch_first: False where ids and logits are (T, B); detected if not given.
    max_length: the most places the model takes. embedding: what embeds ids, or (source's,
    target's), if it is no nn.Embedding. loss: (logits, tgt_out) -> mean. batch: pairs of lists of
    symbol ids -> (src, tgt_in, tgt_out). generate: (src, tgt_in) -> logits made step by step, or
    src -> ids decoded greedily, to be compared with the parallel pass. scale: what multiplies q k,
    where it is not 1 / root of the head's width.

    length: symbols of the longest sequence tried, 64. With more (512 say) the checks are thorough:
    batches of 32 rows, and no bound on work. only: names of checks, as ["pads", "future"].
    progress: called with what is being tried.

    Raises UserError where the model cannot be asked: wrong shape, NaN throughout, another answer
    at the second call, an exception of its own, fewer places than needed.
    """
    plan = Plan(length, seed, selected(only), progress)
    adapter = adapter_of(
        model,
        pad_id=pad_id,
        vocabulary_size=vocabulary_size,
        source_size=source_size,
        start_id=start_id,
        eos_id=eos_id,
        embedding=embedding,
        loss=loss,
        batch=batch,
        source_pad_id=source_pad_id,
        pad_side=pad_side,
        batch_first=batch_first,
        max_length=max_length,
        kind=kind,
        generate=generate,
        scale=scale,
    )
    return plan.check(adapter)


def selected(only: Iterable[str]) -> tuple[str, ...]:
    """The names of checks to ask for, all where none is given: ["pads", "future"], or
    "pads,future". Raises UserError for others."""
    parts = only.split(",") if isinstance(only, str) else only
    names = tuple(name.strip() for name in parts if name.strip())
    if unknown := [name for name in names if name not in CHECKS]:
        raise UserError(f"no check {', '.join(unknown)}; there are {', '.join(CHECKS)}")
    return names or tuple(CHECKS)
