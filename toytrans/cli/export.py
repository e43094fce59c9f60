"""`toytrans export`."""

from pathlib import Path
from typing import Annotated

import typer

from toytrans.cli.common import Checkpoint, RunArgument, TrustCode, check_new, open_run
from toytrans.cli.terminal import printable
from toytrans.config.names import ExportFormat

CHECKED, LONGEST = 8, 20
"""Sequences that are decoded after writing, and their longest, in symbols."""


def export(
    format: Annotated[ExportFormat, typer.Option("--format", help="The runtime to write for.")],
    run: RunArgument = None,
    out: Annotated[
        Path | None, typer.Option(help="What to write. Default: the run's name and the format's.")
    ] = None,
    checkpoint: Checkpoint = "best",
    trust_code: TrustCode = False,
) -> None:
    """Write the model of a run for another runtime.

    The tokens of both are compared. A model that a format cannot express is
    refused. docs/export.md shows how each is used.

    safetensors: one file for plain PyTorch.
    huggingface: a folder for transformers.
    ctranslate2: a folder for CTranslate2.
    onnx: a folder for ONNX runtimes.
    """
    if out is not None:
        check_new(out)
    from toytrans import export as exports

    exports.check_installed(format)
    loaded = open_run(run, checkpoint)
    path = out or exports.default_path(loaded, format)
    check_new(path)
    exports.export(loaded, format, path)
    rest = loaded.unfinished
    training = f"; training is unfinished: {rest}" if rest else ""
    print(printable(f"wrote {path} from {loaded.path}, step {loaded.step}{training}"))
    sources = exports.random_sources(loaded, CHECKED, LONGEST)
    pairs = exports.compare(loaded, exports.decoder_of(format, path), sources)
    equal = sum(ours == theirs for ours, theirs in pairs)
    print(f"decoded with it: {equal} of {len(pairs)} sequences give the tokens of this run")
    if equal < len(pairs):
        raise typer.Exit(1)
