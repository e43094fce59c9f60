"""Trained models for other runtimes.

Each format is a module of its name, which has
    write(run, path): writes the file, or the folder
    decoder(path): decodes with it in its runtime
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch

from toytrans.config.names import ExportFormat
from toytrans.config.schema import ModelConfig
from toytrans.config.sealed import fault_remark
from toytrans.data.pairs import pad_rows
from toytrans.errors import UserError, how_to_install
from toytrans.export import plain
from toytrans.export.shared import PLACES, Decoder, Rows, cut
from toytrans.files import drafted
from toytrans.model.decoding import search, token_limits
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, PAD_ID
from toytrans.training.run import Run
from toytrans.user_code import shown

BATCH = 100
"""Sequences that are decoded together."""


class Format(NamedTuple):
    """What a format needs and what it can express.

    needs: packages that writing and decoding take. suffix: the end of an export's default name.
    positions, cross_positions: values of the keys of a model. score_cap: whether it may be set.
    """

    needs: tuple[str, ...]
    suffix: str
    positions: tuple[str, ...] = plain.POSITIONS
    cross_positions: tuple[str, ...] = plain.CROSS_POSITIONS
    score_cap: bool = True


ABSOLUTE = ("sinusoidal", "learned", "none")
IN_BUCKETS = ("rotary", "relative", "t5")
FORMATS: dict[ExportFormat, Format] = {
    "safetensors": Format((), ".safetensors"),
    "huggingface": Format(
        ("transformers", "tokenizers"), "-huggingface", ABSOLUTE, ("none",), score_cap=False
    ),
    "ctranslate2": Format(
        ("ctranslate2",), "-ctranslate2", (*ABSOLUTE, *IN_BUCKETS), ("none",), score_cap=False
    ),
    "onnx": Format(("onnx", "onnxscript", "onnxruntime"), "-onnx"),
}


def refusal(name: ExportFormat, model: ModelConfig) -> str:
    """The option that a format cannot express; empty if it can express all."""
    fits = FORMATS[name]
    if model.positions not in fits.positions:
        return f"model.positions: {model.positions}"
    if model.cross_positions not in fits.cross_positions:
        return f"model.cross_positions: {model.cross_positions}"
    if model.score_cap and not fits.score_cap:
        return f"model.score_cap: {model.score_cap:g}"
    positions = "random" if model.random_positions else model.positions
    if name == "huggingface" and model.norm == "post" and positions != "sinusoidal":
        return f"model.norm: post with {positions} positions"
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
    if run.config.fault is not None:
        raise UserError(
            f"{run.path}: {fault_remark(run.config.fault)}, which no format can "
            "express; export a run without a fault"
        )
    for key, code in run.config.references.items():
        if key.startswith("model."):
            raise UserError(
                f"{run.path}: no format can express your own code, {key}: {shown(code)}"
            )
    if option := refusal(name, run.config.model):
        fits = [other for other in FORMATS if not refusal(other, run.config.model)]
        remedy = f"take --format {' or '.join(fits)}" if fits else "no format can"
        raise UserError(f"{run.path}: {name} cannot express {option}; {remedy}")


def default_path(run: Run, name: ExportFormat) -> Path:
    """Where an export goes by default: in the working directory, named after its run."""
    return Path(f"{run.path.resolve().name}{FORMATS[name].suffix}")


def export(run: Run, name: ExportFormat, out: Path) -> None:
    """Write the model of a run. Raises UserError; nothing is left behind then."""
    check_installed(name)
    check_fits(run, name)
    if any("\ud800" <= letter <= "\udfff" for letter in str(out)):  # bytes that are no UTF-8
        raise UserError(f"{out}: no name that every runtime can open; name another --out")
    try:
        with drafted(out) as draft:
            _module(name).write(run, draft)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None


def decoder_of(name: ExportFormat, path: Path) -> Decoder:
    """Greedy decoding of an export in its runtime, up to and with EOS."""
    decode: Decoder = _module(name).decoder(path)
    return lambda src, most: cut(decode(src, most))


def _module(name: ExportFormat) -> Any:
    return import_module(f"{__name__}.{name}")


# Comparing -----------------------------------------------------------------------------------


def random_sources(run: Run, rows: int, longest: int) -> Rows:
    """Sources of random symbols, of training lengths up to `longest`, as the encoder reads them."""
    draw = torch.Generator().manual_seed(0)
    low, high = (min(length, longest) for length in run.facts.train_length)
    lengths = torch.randint(low, high + 1, (rows,), generator=draw).tolist()
    start, size = [BOS_ID] if run.config.source_bos else [], len(run.vocabulary)
    return [
        [*start, *torch.randint(FIRST_SYMBOL_ID, size, (n,), generator=draw).tolist(), EOS_ID]
        for n in lengths
    ]


def greedy(run: Run, src: Rows, most: int) -> Rows:
    """Greedy tokens by toytrans itself, at most `most` of them."""
    tokens = search(run.model, pad_rows(src)[0], target_growth=run.facts.target_growth).tokens
    return [[token for token in row if token != PAD_ID] for row in tokens[:, :most].tolist()]


def compare(run: Run, decode: Decoder, src: Rows) -> list[tuple[list[int], list[int]]]:
    """The tokens of toytrans and of another runtime for each source, up to the limit of its
    length."""
    pairs = []
    for start in range(0, len(src), BATCH):
        batch = src[start : start + BATCH]
        limits = token_limits(
            pad_rows(batch)[0], run.facts.target_growth, run.config.model.max_length
        )
        most = min(int(limits.max()), PLACES - 1)
        both = zip(greedy(run, batch, most), decode(batch, most), limits.tolist(), strict=True)
        pairs += [(ours[:limit], theirs[:limit]) for ours, theirs, limit in both]
    return pairs
