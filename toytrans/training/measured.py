"""The measurement of a run: what `toytrans eval` prints."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from toytrans.data.pairs import Split
from toytrans.data.selection import Selection, pairs_of_files, pairs_of_split, trained_lengths
from toytrans.evaluation import Scores, evaluate
from toytrans.training.run import Run


def measure(
    run: Run,
    pairs_of: Split | Path | tuple[Path, Path],
    wanted: Selection,
    decode: int | None = None,
    beam: int = 1,
    follow: Callable[[int, int], None] | None = None,
) -> Scores:
    """Measure a run on a split, a file of pairs, or two files of parallel text. Raises UserError.

    decode: pairs of each length to decode; None = all. follow: as in `evaluate`.
    """
    config, facts = run.config, run.facts
    trained = trained_lengths(config, facts, wanted.side)
    if not isinstance(pairs_of, str):
        files = config.data.files
        named = isinstance(pairs_of, tuple) or pairs_of.suffix.lower() in (".tsv", ".jsonl")
        kind = files.format if files and not named and files.format != "text" else None
        pairs, data = pairs_of_files(pairs_of, kind, facts, wanted), "files"
    else:
        pairs, data = pairs_of_split(config, facts, pairs_of, wanted), str(pairs_of)
    scores = evaluate(
        run.model,
        pairs,
        facts,
        source_bos=config.source_bos,
        beam=beam,
        decode=decode,
        side=wanted.side,
        follow=follow,
    )
    about = {"run": str(run.path), "seed": config.seed, "split": data, "checkpoint": run.step}
    return replace(scores, train_length=trained, about=about | {"fault": config.fault})
