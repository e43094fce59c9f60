"""Trained models for other runtimes.

Each format is a module to_NAME, which has
    write(run, path): writes the file, or the folder
    decode(path, src, most): decodes with it in its runtime, greedily. src: sources as the encoder
        reads them; most: tokens of an answer. Answers are ids with EOS, or without it where `most`
        were not enough. What follows EOS is of no account.
"""

import errno
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from toytrans.config.faults import fault_remark
from toytrans.config.schema import ModelSettings
from toytrans.data.pairs import pad_rows
from toytrans.errors import UserError, how_to_install
from toytrans.exports import plain
from toytrans.files import drafted
from toytrans.model.decoding import search, token_limits
from toytrans.model.transformer import Transformer
from toytrans.references import shown
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID, SPECIALS, Vocabulary
from toytrans.training.run import Run

ExportFormat = Literal["safetensors", "huggingface", "ctranslate2", "onnx"]

Rows = list[list[int]]
"""Ragged rows of ids."""

PLACES = 1024
"""Longest sequence of a format with a table of positions, where the model itself has no limit."""

DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk, a user's share of it, or a file may grow no more."""


class Format(NamedTuple):
    """The packages that writing and decoding take, the positions that can be expressed, and whether
    its runtime computes an answer for an empty source."""

    needs: tuple[str, ...]
    positions: tuple[str, ...] = plain.POSITIONS
    reads_empty: bool = True


ABSOLUTE = ("sinusoidal", "learned", "none")
FORMATS: dict[ExportFormat, Format] = {
    "safetensors": Format(()),
    "huggingface": Format(("transformers", "tokenizers"), ABSOLUTE),
    "ctranslate2": Format(("ctranslate2",), (*ABSOLUTE, "rotary", "t5"), reads_empty=False),
    "onnx": Format(("onnx", "onnxscript", "onnxruntime")),
}


def refusal(name: ExportFormat, model: ModelSettings) -> str:
    """The option that a format cannot express; empty if it can express all."""
    positions = FORMATS[name].positions
    is_ours = name in ("safetensors", "onnx")  # the model of plain.py
    if model.positions not in positions:
        return f"model.positions: {model.positions}"
    if model.cross_positions not in (plain.CROSS_POSITIONS if is_ours else ("none",)):
        return f"model.cross_positions: {model.cross_positions}"
    if model.score_cap and not is_ours:
        return f"model.score_cap: {model.score_cap:g}"
    scheme = "random" if model.random_positions else model.positions
    if name == "huggingface" and model.norm == "post" and scheme != "sinusoidal":
        return f"model.norm: post with {scheme} positions"
    return ""


def check_installed(name: ExportFormat) -> None:
    """Raise UserError if a package that a format needs is not installed."""
    missing = [package for package in FORMATS[name].needs if find_spec(package) is None]
    if missing:
        raise UserError(
            f"--format {name} needs {' and '.join(missing)}; {how_to_install(*missing)}"
        )


def check_fits(run: Run, name: ExportFormat) -> None:
    """Raise UserError for a model that a format cannot express."""
    if run.settings.fault is not None:
        raise UserError(
            f"{run.path}: {fault_remark(run.settings.fault)}, which no format can "
            "express; export a run without a fault"
        )
    for key, code in run.settings.references.items():
        if key.startswith("model."):
            raise UserError(
                f"{run.path}: no format can express your own code, {key}: {shown(code)}"
            )
    if option := refusal(name, run.settings.model):
        fits = [other for other in FORMATS if not refusal(other, run.settings.model)]
        remedy = f"take --format {' or '.join(fits)}" if fits else "no format can"
        raise UserError(f"{run.path}: {name} cannot express {option}; {remedy}")


def default_path(run: Run, name: ExportFormat) -> Path:
    """Where an export goes by default: in the working directory, named after its run."""
    end = ".safetensors" if name == "safetensors" else f"-{name}"
    return Path(f"{run.path.resolve().name}{end}")


def export(run: Run, name: ExportFormat, out: Path) -> None:
    """Write the model of a run. Raises UserError; nothing is left behind then."""
    check_fits(run, name)
    try:
        with drafted(out) as draft:
            _module(name).write(run, draft)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    except Exception as error:  # of libraries in Rust, which have no class for it
        if not any(f"(os error {code})" in str(error) for code in DISK_IS_FULL):
            raise
        raise UserError(f"{out}: cannot be written (no space left on device)") from None


def _module(name: ExportFormat) -> Any:
    return import_module(f"{__name__}.to_{name}")


# What several formats share ------------------------------------------------------------------


def position_table(model: Transformer) -> Tensor:
    """What positions add to embeddings, in fp32: (PLACES or the model's own limit, D)."""
    nothing = torch.zeros(1, model.settings.max_length or PLACES, model.settings.d_model)
    return model.positions.embed(nothing.to(model.output.weight))[0].detach().float()


def token_names(vocabulary: Vocabulary) -> list[str]:
    """The text of every id. A special one gets more angles where a symbol has its name."""
    names = []
    for name in SPECIALS:
        while name in vocabulary.symbols:
            name = f"<{name}>"
        names.append(name)
    return [*names, *vocabulary.symbols]


# Comparing -----------------------------------------------------------------------------------


def random_sources(run: Run, rows: int, longest: int) -> Rows:
    """Sources of random symbols, of training lengths up to `longest`, as the encoder reads them;
    the first is of the shortest length."""
    draw = torch.Generator().manual_seed(0)
    low, high = (min(length, longest) for length in run.facts.train_length)
    lengths = torch.randint(low, high + 1, (rows,), generator=draw).tolist()
    lengths[0] = low
    start, size = [BOS_ID] if run.settings.model.source_bos else [], len(run.vocabulary)
    return [
        [*start, *torch.randint(FIRST_SYMBOL_ID, size, (n,), generator=draw).tolist(), EOS_ID]
        for n in lengths
    ]


def compare(
    run: Run, name: ExportFormat, path: Path, src: Rows
) -> list[tuple[list[int], list[int]]]:
    """The tokens of toytrans and of an export in its runtime for each source, EOS included, up to
    the limit of its length."""
    ids, growth = pad_rows(src)[0], run.facts.target_growth
    limits = token_limits(ids, growth, run.settings.model.max_length)
    most = min(int(limits.max()), PLACES - 1)
    there = ids.to(next(run.model.parameters()).device)
    ours = search(run.model, there, target_growth=growth).tokens[:, :most].tolist()
    both = zip(ours, _module(name).decode(path, src, most), limits.tolist(), strict=True)
    return [(_ended(our, limit), _ended(their, limit)) for our, their, limit in both]


def _ended(row: list[int], limit: int) -> list[int]:
    """A row up to its limit, or to EOS. Decoding fills ours up with PAD."""
    row = row[:limit]
    return row[: row.index(EOS_ID) + 1] if EOS_ID in row else [i for i in row if i != PAD_ID]
