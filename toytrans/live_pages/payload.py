"""What a live page holds of a run: weights, pairs to count on, and PyTorch's logits as proof."""

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toytrans.config.faults import fault_remark, is_hidden, openly_named_fault
from toytrans.data.batches import make_batch, training_batches
from toytrans.data.hashing import fingerprint
from toytrans.data.open import open_dataset, task_of
from toytrans.data.pairs import Pairs
from toytrans.data.selection import Selection, pairs_of_split
from toytrans.errors import UserError
from toytrans.exports.to_safetensors import about, weights_of
from toytrans.model.seq2seq import count_parameters
from toytrans.references import is_reference, shown
from toytrans.tokens import FIRST_SYMBOL_ID
from toytrans.training.checkpoint import read_progress
from toytrans.training.run import Run
from toytrans.training.snapshots import MOST_PARAMETERS, read_snapshot, snapshot_steps

COUNTED, LONGER = 500, 60
"""Validation pairs that the page counts on, and test pairs beyond the training lengths."""

SNAPSHOTS = 8
"""Steps of training whose weights the page has, the shown one among them."""

PROVED = 3
"""Pairs whose logits the page compares with those of PyTorch."""

LEARNED_WITHOUT: dict[str, tuple[str, ...]] = {
    "no_causal": ("causal",),
    "pad_visible": ("encoderPads", "decoderPads", "crossPads"),
    "no_scale": ("scale",),
    "no_position": ("places",),
}
"""Faults of the model that the page runs as one of its switches, off: model.js's names of them."""

NOT_OF_THE_MODEL: tuple[str, ...] = (
    "labels_not_shifted",
    "pad_is_eos",
    "wrong_start",
    "loss_on_pads",
    "batch_mean_of_means",
)
"""Faults of the batch or of the loss, whose weights run as any others."""

Follow = Callable[[str], object]
"""Told what is being done."""


def check_fits(run: Run) -> None:
    """Raise UserError for a run whose model does not run in a page."""
    for key, code in run.settings.references.items():
        if key.startswith("model."):
            raise UserError(
                f"{run.path}: the page cannot run your own code, {key}: {shown(code)}; `toytrans "
                "inspect-masks` and `toytrans report` show the run"
            )
    fault = run.settings.fault
    if is_hidden(fault):
        raise UserError(
            f"{run.path}: an exercise, and the page would tell its fault; answer it first"
        )
    if fault is not None and fault not in (*LEARNED_WITHOUT, *NOT_OF_THE_MODEL):
        raise UserError(
            f"{run.path}: {fault_remark(fault)}, which the page cannot run; it runs "
            f"{', '.join((*LEARNED_WITHOUT, *NOT_OF_THE_MODEL))}"
        )
    numbers = count_parameters(run.model)
    if numbers > MOST_PARAMETERS:
        raise UserError(
            f"{run.path}: {numbers:,} numbers would make a page of {numbers * 16 / 3e6:.0f} MB; "
            f"train a model of at most {MOST_PARAMETERS:,}"
        )


def payload(run: Run, follow: Follow = lambda what: None) -> dict[str, Any]:
    """All that the page knows of a run, as JSON takes it. Raises UserError."""
    check_fits(run)
    weights = weights_of(run)
    weights.pop("positions.fixed", None)  # whole numbers, which fp16 would round
    follow("pairs")
    counted = counted_pairs(run)
    follow("which sources training has met")
    met = met_in_training(run, counted)
    follow("logits of PyTorch")
    return {
        "about": described(run),
        "shapes": [[name, list(each.shape)] for name, each in weights.items()],
        "snapshots": snapshots_of(run, weights),
        "pairs": [[*each, int(seen)] for each, seen in zip(texts(run, counted), met, strict=True)],
        "longer": longer_pairs(run),
        "curve": [
            [record["step"], record["loss"]]
            for record in run.records
            if record.get("loss") is not None
        ],
        "proof": proof(run, counted),
    }


def described(run: Run) -> dict[str, Any]:
    """The model as model.js is told it, and what the page's head says of the run."""
    data, fault = run.settings.data, openly_named_fault(run.settings.fault)
    task = data.task
    rule = ""
    if task is not None:
        rule = task_of(data).rule
    name = Path(shown(task)).name if task and is_reference(task) else task
    return about(run) | {
        "max_length": run.settings.model.max_length,
        "fixed_places": fixed_places(run),
        "task": name or "pairs of files",
        "rule": rule,
        "train_length": list(run.facts.train_length),
        "parameters": count_parameters(run.model),
        "run": run.path.resolve().name,
        "seed": run.settings.seed,
        "fault": fault or "",
        "learned_without": list(LEARNED_WITHOUT.get(fault, ())) if fault else [],
    }


def fixed_places(run: Run) -> list[int] | None:
    """The places at which a model with random positions evaluates; None for any other."""
    if not run.settings.model.random_positions:
        return None
    return run.model.get_buffer("positions.fixed").tolist()


def snapshots_of(run: Run, weights: dict[str, Tensor]) -> list[dict[str, Any]]:
    """The weights of a few steps in their order: before the run's step in fp16, its own in fp32."""
    shapes = {name: values.shape for name, values in weights.items()}
    before = {
        step: found
        for step in snapshot_steps(run.path)
        if step < run.step
        and (found := read_snapshot(run.path, step))
        and {name: values.shape for name, values in found.items()} == shapes
    }
    steps = [*before][:1] + [*before][1:][2 - SNAPSHOTS :]
    packs = [(step, "f2", {name: before[step][name] for name in weights}) for step in steps]
    return [
        {"step": step, "kind": kind, "weights": packed(values, f"<{kind}")}
        for step, kind, values in (*packs, (run.step, "f4", weights))
    ]


def packed(weights: dict[str, Tensor], kind: str) -> str:
    """The numbers of all tensors, one after the other, in base64. kind: <f4 or <f2."""
    numbers = np.concatenate([each.numpy().ravel() for each in weights.values()])
    return base64.b64encode(numbers.astype(kind).tobytes()).decode()


# Pairs -----------------------------------------------------------------------------------------


def counted_pairs(run: Run) -> Pairs:
    """The first validation pairs within the training lengths, or all that there are if none is:
    those of `toytrans eval --split valid --examples 500`."""
    pairs = pairs_of_split(run.settings, run.facts, "valid", Selection(examples=COUNTED))
    known = (pairs.tgt != run.vocabulary.unknown_id).all(1)  # no output of <unk> is right
    pairs = pairs.take(known.nonzero()[:, 0]) if bool(known.any()) else pairs
    low, high = run.facts.train_length
    within = (pairs.src_length >= low) & (pairs.src_length <= high)
    return pairs.take(within.nonzero()[:, 0]) if bool(within.any()) else pairs


def longer_pairs(run: Run) -> list[list[str]]:
    """Test pairs whose source is longer than any of training, as `texts`; none where there are no
    such, or no test data."""
    files = run.settings.data.files
    if files is not None and files.test is None:
        return []
    pairs = pairs_of_split(run.settings, run.facts, "test", Selection(examples=COUNTED))
    beyond = pairs.src_length > run.facts.train_length[1]
    return texts(run, pairs.take(beyond.nonzero()[:LONGER, 0]))


def met_in_training(run: Run, pairs: Pairs) -> list[bool]:
    """Of each pair, whether the training had its source before this checkpoint. Short sources are
    few, so all splits share them."""
    used = read_progress(run.path, run.step).pairs_used
    asked = fingerprint(pairs.src, pairs.src_length, 0)
    met = torch.zeros(len(asked), dtype=torch.bool)
    if used:
        for batch, dealt in training_batches(open_dataset(run.settings, run.facts), run.settings):
            symbols = batch.src[
                :, int(run.settings.model.source_bos) :
            ]  # the end and pads come after them
            length = (symbols >= FIRST_SYMBOL_ID).sum(1)
            met |= torch.isin(asked, fingerprint(symbols, length, 0))
            if dealt >= used:
                break
    return met.tolist()


def texts(run: Run, pairs: Pairs) -> list[list[str]]:
    """Sources and targets as text, [source, target] each."""
    decode = run.vocabulary.decode
    rows = zip(pairs.src.tolist(), pairs.tgt.tolist(), strict=True)
    return [[" ".join(decode(src)), " ".join(decode(tgt))] for src, tgt in rows]


# Proof -----------------------------------------------------------------------------------------


@torch.no_grad()
def proof(run: Run, pairs: Pairs) -> list[dict[str, Any]]:
    """A padded batch of a few pairs, row by row, with PyTorch's logits in fp64: what the page
    compares its own with."""
    longest_first = pairs.src_length.argsort(descending=True, stable=True)
    spread = torch.linspace(0, len(pairs) - 1, PROVED).long().unique()
    batch = make_batch(pairs.take(longest_first[spread]), run.settings.model.source_bos)
    model = copy.deepcopy(run.model).cpu().float().double()  # rounded, as the page has them
    logits = model(batch.src, batch.tgt_in)
    rows = zip(batch.src.tolist(), batch.tgt_in.tolist(), logits, strict=True)
    return [
        {"src": src, "tgtIn": tgt_in, "logits": of_row.flatten().tolist()}
        for src, tgt_in, of_row in rows
    ]


def as_script(data: dict[str, Any]) -> str:
    """JSON for a script element, which no text in it can end."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
