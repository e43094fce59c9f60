"""The first batch, in the precision that the proofs are judged in, and in the one users run."""

import dataclasses

import torch

from toytrans.errors import UserError
from toytrans.insight.proofs.answers import apart
from toytrans.insight.proofs.batch import ProofBatch, Setting
from toytrans.insight.proofs.copies import Variant, copies_run_it, variant_of
from toytrans.insight.proofs.model_under_test import ModelUnderTest


def first_batches(
    model: ModelUnderTest, setting: Setting, notes: list[str]
) -> tuple[ProofBatch, ProofBatch | None]:
    """The first batch in fp64, and in fp32 where the model has both: fp64 is left where it
    fails, gives NaN that fp32 does not give, or is another model altogether."""
    double = variant_of(model, torch.float64)
    if double is not None and copies_run_it(model):
        notes.append(
            "judged on the model itself, in eval mode: its forward was replaced by a function, so "
            "a copy would still run the original's modules"
        )
        double = None
    if double is None:
        only = ProofBatch(Variant(model, None), setting)
        only.wider_is_taken()
        return only, None
    came_as = {p.dtype for p in model.module.parameters() if p.is_floating_point()}  # type: ignore[union-attr]
    single = None if came_as == {torch.float64} else variant_of(model, torch.float32)
    once = dataclasses.replace(setting, widest=0)  # widths are tried in one precision
    batch: ProofBatch | None = None
    plain = raised = None
    try:
        batch = ProofBatch(double, setting)
    except UserError as error:
        raised = error
    try:
        plain = ProofBatch(single, once) if single is not None else None
    except UserError as error:
        raised = raised or error
        kept = variant_of(model)
        if batch is None and kept is not None:
            plain = ProofBatch(kept, setting)
    if batch is None and plain is None:
        assert raised is not None
        raise raised
    if batch is not None and plain is not None and not _same_model(batch, plain):
        notes.append("judged in fp32: the copy in fp64 is another model")
        batch = None
    if batch is None:
        assert plain is not None
        batch, plain = plain, None
    batch.wider_is_taken()
    if batch.variant.opened:
        notes.append(
            f"{len(batch.variant.opened)} weights that are all zero hold small random numbers in "
            "the copy, for nothing is seen through them"
        )
    return batch, plain


def _same_model(batch: ProofBatch, plain: ProofBatch) -> bool:
    """Whether fp64 and fp32 answer alike, but for rounding."""
    if bool((batch.logits.isnan() & ~plain.logits.isnan())[batch.real].any()):
        return False
    new = batch.tame(plain.logits.to(batch.logits.dtype))
    by = (apart(new, batch.tame(batch.logits)).abs() * batch.weight)[..., batch.kept][batch.real]
    return float(by.nan_to_num(0.0, 0.0, 0.0).median() if by.numel() else 0.0) <= 1e-2 * batch.size
