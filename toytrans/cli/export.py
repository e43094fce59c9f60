"""`toytrans export`: the model of a run for another runtime; the tokens of both are compared."""

from pathlib import Path

import typer

from toytrans import exports
from toytrans.cli.new_files import check_new
from toytrans.cli.opening import open_run
from toytrans.cli.terminal import note, printable
from toytrans.exports import ExportFormat
from toytrans.training.devices import choose_device

CHECKED, LONGEST = 8, 20
"""Sequences that are decoded after an export, and their longest, in symbols."""


def export(
    format: ExportFormat,
    run: Path | None,
    out: Path | None,
    checkpoint: str,
    device: str,
    trust_code: bool,
) -> None:
    """Write the model of a run for another runtime."""
    check_new(out)
    chosen = choose_device(device)
    exports.check_installed(format)
    loaded = open_run(run, trust_code, checkpoint)
    path = out or exports.default_path(loaded, format)
    check_new(path)
    exports.export(loaded, format, path)
    rest = loaded.unfinished
    training = f"; training is unfinished: {rest}" if rest else ""
    print(printable(f"wrote {path} from {loaded.path}, {loaded.which_step}{training}"))
    loaded.model.to(chosen)
    sources = exports.random_sources(loaded, CHECKED, LONGEST)
    if not exports.FORMATS[format].reads_empty:
        sources = [source for source in sources if loaded.vocabulary.decode(source)]
        if len(sources) < CHECKED:
            note(f"not compared: an empty source, which {format} answers with nothing")
    pairs = exports.compare(loaded, format, path, sources)
    equal = sum(ours == theirs for ours, theirs in pairs)
    print(f"decoded with it: {equal} of {len(pairs)} sequences give the tokens of this run")
    for source, (ours, theirs) in zip(sources, pairs, strict=True):
        if ours != theirs:
            texts = (" ".join(loaded.vocabulary.decode(ids)) for ids in (source, ours, theirs))
            src, here, there = map(printable, texts)
            note(f"differs: {src!r} gives {here!r} here and {there!r} there")
    if equal < len(pairs):
        raise typer.Exit(1)
