"""`check`: the proofs, for any model."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from toytrans.config.schema import Config
from toytrans.config.sealed import is_closed
from toytrans.errors import UserError
from toytrans.insight.proofs.adapters import model_under_test, own
from toytrans.insight.proofs.plan import Plan, Progress
from toytrans.insight.proofs.report import Report
from toytrans.insight.proofs.table import PROOFS
from toytrans.model.seq2seq import Seq2Seq
from toytrans.tokens import Vocabulary
from toytrans.training.run import Run


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
    scale: float | None = None,
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
    are padded there. batch_first: False where ids and logits are (T, B); detected if not given.
    max_length: the most places the model takes (limit is an alias). embedding: the embedding
    module, or (source's, target's). loss: (logits, tgt_out) -> mean. batch: pairs of lists of
    symbol ids -> (src, tgt_in, tgt_out). generate: (src, tgt_in) -> logits made step by step, or
    src -> ids decoded greedily, to be compared with the parallel pass. scale: what multiplies q k,
    where it is not 1 / root of the head's width.

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
        "batch_maker": batch,
        "limit": max_length if limit is None else limit,
        "source_pad_id": source_pad_id,
        "pad_side": pad_side,
        "batch_first": batch_first,
        "kind": kind,
        "generate": generate,
        "scale": scale,
    }
    plan = Plan(length, seed, *_selected(only, skip), thorough, progress)
    if isinstance(model, Run):
        if any(value is not None for value in given.values()):
            raise UserError("of a run all is known; give check nothing but length and seed")
        return _proved(plan, model.model, model.config, model.vocabulary, str(model.path))
    return plan.prove(model_under_test(model, **given))


def check_own(
    model: Seq2Seq,
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
    plan = Plan(length, seed, *_selected(only, skip), thorough, progress)
    return _proved(plan, model, config, vocabulary, name)


def _proved(
    plan: Plan, model: Seq2Seq, config: Config, vocabulary: Vocabulary, name: str
) -> Report:
    """The report on a model of ours; in a closed exercise it says what fails, and not why."""
    report = plan.prove(own(model, config, vocabulary, name))
    if not is_closed(config.fault):
        return report
    findings = (
        finding
        if finding.verdict == "PASS"
        else replace(
            finding,
            message="why is not told in a closed exercise",
            where=None,
            example=None,
            reproduce=None,
        )
        for finding in report.findings
    )
    return replace(report, findings=tuple(findings))


def _letters(given: Iterable[str]) -> str:
    """Letters of proofs, from "ab", ["a", "b"] or "a,b". Raises UserError for others."""
    letters = "".join(given).replace(",", "").replace(" ", "").replace("(", "").replace(")", "")
    if unknown := sorted(set(letters) - set(PROOFS)):
        raise UserError(f"no proof {', '.join(unknown)}; there are {''.join(PROOFS)}")
    return letters


def _selected(only: Iterable[str], skip: Iterable[str]) -> tuple[str, str]:
    """The letters to ask for and to leave out. Raises UserError where no proof is left."""
    wanted, left_out = _letters(only), _letters(skip)
    if set(wanted or PROOFS) <= set(left_out):
        raise UserError(f"skip {left_out}: no proof is left; leave out fewer")
    return wanted, left_out
