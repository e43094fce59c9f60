"""toytrans in Python: train, load, ask a run, sweep. `toytrans` exports what users need of it."""

import contextlib
import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from toytrans.arguments import check_choice, check_whole, checked_lengths
from toytrans.config.load import check_and_trust, read_tree, set_key
from toytrans.config.schema import Config
from toytrans.config.yaml import IN_PYTHON, Tree
from toytrans.errors import UserError
from toytrans.measure import Measure, check_longest
from toytrans.measurement import Result
from toytrans.metrics import check_metric
from toytrans.sweeps import comparison
from toytrans.sweeps.choices import check_key, narrowed
from toytrans.sweeps.comparison import Comparison
from toytrans.sweeps.plan import plan
from toytrans.sweeps.sweep import SWEEPS, write
from toytrans.sweeps.sweep_file import Plan, SweepMeasure, plan_of
from toytrans.training.devices import tuned
from toytrans.training.folder import Record
from toytrans.training.run import Run
from toytrans.training.session import open_session

if TYPE_CHECKING:
    from toytrans.exports import ExportFormat
    from toytrans.inspection.heads import AttentionMaps
    from toytrans.inspection.record import Part
    from toytrans.inspection.shown import InspectedBatch
    from toytrans.live_pages.page import LivePage

logger = logging.getLogger("toytrans")
"""Gets what the commands print on standard error: at level INFO, an interruption as a WARNING."""

Settings = str | Path | Mapping[str, Any] | Config
"""A YAML file, its values as a dict, or a config."""

Sequences = str | Sequence[str]
"""One sequence of symbols, say "5 7 9", or several."""


def curves(run: Run) -> "Curves":
    """The curves of a training, which a notebook draws; elsewhere its last values, in one line."""
    return Curves(Run.open(run.path).records)  # as they are now


class Curves:
    """The records of a training, drawn."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records

    def __repr__(self) -> str:
        last = {key: value for record in self.records for key, value in record.items()}
        values = (f"{key} {last[key]:.4g}" for key in SHOWN if last.get(key) is not None)
        return f"{len(self.records)} records, the last values: {', '.join(values)}"

    def _repr_html_(self) -> str:
        from toytrans.report.charts import curves

        return "".join(list(curves({"": self.records}).values())[:2])


SHOWN = ("step", "loss", "lr", "grad_norm", "valid_exact_match", "valid_loss")


def attention(
    run: Run,
    src: Sequences = (),
    tgt: Sequences | None = None,
    *,
    part: "Part | None" = None,
    layer: int | None = None,
    head: int | None = None,
) -> "AttentionMaps":
    """What every head attends to, and which rule it follows, as `toytrans trace` shows.

    src: none = two validation pairs. tgt: the targets; None = the model's translations.
    part, layer, head: show only this one, counted from 1. Rules are measured on 200 validation
    pairs. Raises UserError for a model whose layers are not known.
    """
    from toytrans.inspection.heads import Choice, maps_of

    sources, targets = _both(src, tgt)
    with tuned():
        return maps_of(_on_cpu(run), sources, targets, Choice(part, layer, head))


def masks(run: Run, src: Sequences, tgt: Sequences | None = None) -> "InspectedBatch":
    """The masks of pairs as one padded batch, and why each cell is masked.

    tgt: the targets; None = the model's translations. Raises UserError for a model whose layers
    are not known.
    """
    from toytrans.inspection.shown import batch_of_run

    if not src:
        raise UserError('no src; give a sequence such as "5 7 9", or several')
    sources, targets = _both(src, tgt)
    return batch_of_run(_on_cpu(run), sources, targets or ())


def _on_cpu(run: Run) -> Run:
    """A run with a copy of its model on the CPU, in eval mode."""
    return run.with_model(copy.deepcopy(run.model).cpu().eval(), run.model_steps)


def load(
    path: str | Path,
    checkpoint: str | int = "best",
    device: str = "auto",
    trust_code: bool = False,
) -> Run:
    """The run of a directory. Raises UserError.

    checkpoint: best, last, a step, or average:N, the mean of the last N. device: auto, cpu, cuda,
    cuda:N or mps. trust_code: whether code that the run names, its task's say, may be run.
    """
    run = Run.open(Path(path), trust_code, str(checkpoint), device)
    with tuned():  # a model draws weights before it gets those saved
        run.model.eval()
    for sentence in run.notes:
        logger.warning("%s", sentence)
    return run


# What is made of runs ----------------------------------------------------------------------------


def compare(
    paths: str | Path | Iterable[str | Path],
    metric: str | None = None,
    *,
    lengths: tuple[int, int] | None = None,
    examples: int | None = None,
    beam: int = 1,
    checkpoint: str | int = "best",
    trust_code: bool = False,
) -> Comparison:
    """The runs of run directories, folders of runs and sweeps, grouped by what differs, as
    `toytrans eval` compares them. Raises UserError.

    metric: what is compared; None = exact match. lengths, examples, beam: what is measured, as in
    `Run.evaluate`; None = what a sweep of all of them has measured, or every test pair. What a
    sweep has kept is not measured again. checkpoint, trust_code: as in `load`.
    """
    check_whole(1, examples=examples, beam=beam)
    named = [paths] if isinstance(paths, str | Path) else list(paths)
    asked = SweepMeasure(
        lengths=checked_lengths(lengths), examples=examples, beam=beam, checkpoint=str(checkpoint)
    )

    def take(path: Path, measure: Measure) -> Result:
        run = load(path, measure.checkpoint, trust_code=trust_code)
        with tuned():
            return run.measure(measure)

    wanted = None if asked == SweepMeasure() else asked
    return comparison.compare(list(map(Path, named)), metric and check_metric(metric), wanted, take)


def export(run: Run, format: "ExportFormat", out: str | Path | None = None) -> Path:
    """Write the model of a run for another runtime, as `toytrans export` does, and return what was
    written. Raises UserError, also where a package that the format needs is not installed.

    format: safetensors, huggingface, ctranslate2 or onnx. out: a new file or folder; None = the
    run's name and the format's.
    """
    from toytrans import exports

    check_choice(tuple(exports.FORMATS), format=format)
    exports.check_installed(format)
    path = exports.default_path(run, format) if out is None else Path(out)
    with tuned():
        exports.export(run, format, path)
    return path


def live(run: Run | None = None) -> "LivePage":
    """The page in which the model of a run runs, or without one that in which a model learns, as
    `toytrans live` writes them. A notebook shows it in a cell, and `text` is the whole document.
    Raises UserError for a model that cannot run in a page."""
    from toytrans.live_pages.page import LivePage

    return LivePage(run)


# Training --------------------------------------------------------------------------------------


def train(
    config: Settings,
    out: str | Path | None = None,
    *,
    seed: int | None = None,
    changes: Mapping[str, Any] | None = None,
    resume: bool = False,
    on_record: Callable[[Record], object] | None = None,
    trust_code: bool = False,
) -> Run:
    """Train to the end, and return the run with its best checkpoint. Raises UserError.

    config: a YAML file, its values as a dict, or a Config. out: the run directory; None = runs/
    and the name of the file or task, then -2, -3. seed: changes the key `seed`. changes: other
    keys, say {"train.lr": 1e-3}. resume: go on from the last checkpoint of the run in `out`.
    on_record: gets each record, a dict; where it returns False, the run is saved and training
    stops. An exception of it saves the run too, and is raised. trust_code: whether code may run
    that the config of a run directory names.

    Ctrl-C saves after the running step, and the run so far is returned; a second one raises
    KeyboardInterrupt. The numbers are those of `toytrans train`, bit for bit.
    """
    tree = _tree_of(config)
    for key, value in (dict(changes or {}) | ({} if seed is None else {"seed": seed})).items():
        set_key(tree, str(key), value, "changes")
    checked = check_and_trust(tree, trust_code)
    name, folder = _name_of(config, tree), None if out is None else Path(out)
    with tuned(), open_session(checked, name, folder, resume, logger.info) as trainer:
        records = trainer.train()
        for record in records:
            try:
                if on_record is not None and on_record(record) is False:
                    trainer.stop()
            except BaseException:
                trainer.stop()
                next(records, None)  # it saves, and takes no step
                raise
        assert trainer.writer is not None, "a program trains in one process"
        path, step = trainer.writer.path, trainer.progress.step
        if trainer.stop_reason == "diverged":
            raise UserError(f"{path}: {trainer.divergence()}")
        if trainer.signals and trainer.saved_step is not None:
            trainer.signals.clear()
            logger.warning("%s: interrupted at step %d and saved; resume=True goes on", path, step)
    return load(path, device=str(trainer.device), trust_code=trust_code)


# Sweeps ------------------------------------------------------------------------------------------


def sweep(
    config: Settings,
    out: str | Path | None = None,
    *,
    seeds: Iterable[int] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    lengths: tuple[int, int] | None = None,
    examples: int | None = None,
    split: Literal["valid", "test"] | None = None,
    jobs: int | None = None,
    on: Literal["local", "ray"] = "local",
    trust_code: bool = False,
) -> Comparison:
    """Train every combination of values with every seed, and compare them. Raises UserError.

    config: as in `train`, or the path of a sweep file, or the name of a shipped one; the arguments
    then take the place of what it says. out: the folder of the runs; None = runs/sweeps/ and the
    name of the file or task. seeds: None = that of the config. grid: lists with the values of each
    key, say {"model.positions": ["rotary", "alibi"]}. lengths, examples, split: what is measured,
    as in `Run.evaluate`. jobs: runs at once; None = one a core. on: this machine or a Ray cluster.
    trust_code: as in `train`.

    The same call goes on where it was stopped. Ctrl-C lets every training save. Each run has a
    process of its own. A run that fails stops no other; see `Comparison.problems`.
    """
    check_choice(("local", "ray"), on=on)
    check_whole(1, examples=examples, jobs=jobs)
    asked = _plan_of(config)
    measures = asked.measures
    if span := checked_lengths(lengths):
        check_longest(span)
    if span or examples or split:
        name = split or "test"
        check_choice(("valid", "test"), split=name)
        measures = {name: SweepMeasure(split=name, lengths=span, examples=examples)}
    asked = replace(
        asked,
        grid=narrowed(asked.grid, _checked_grid(grid or {})),
        seeds=asked.seeds if seeds is None else _checked_seeds(seeds),
        measures=measures,
        checks_device=on == "local",
        trust_code=trust_code,
    )
    if out is None:
        out = SWEEPS / _name_of(config, asked.base)
    planned = plan(Path(out), asked)
    waiting = planned.waiting()
    logger.info(planned.beginning(waiting))
    with contextlib.closing(planned.train(waiting, jobs, on)) as rounds:
        for trial, failure in chain.from_iterable(rounds):
            logger.info("%s: %s", trial.path, failure.reason if failure else "done")
    compared = write(planned)
    return replace(next(iter(compared.values())), by_measure=compared)


def _plan_of(config: Settings) -> Plan:
    """What a sweep of a config is asked for: what its file says, or the config alone."""
    return plan_of(Path(config)) if isinstance(config, str | Path) else Plan(_tree_of(config))


def _checked_grid(grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """The values of each key. Raises UserError where they are no list."""
    for key, values in grid.items():
        check_key(key, f"grid: {key}")
        if isinstance(values, str | bytes) or not isinstance(values, Sequence) or not values:
            found = "none" if values == [] else repr(values)
            raise UserError(f"grid: {key}: {found}; give a list with its values, say [0.1, 0.2]")
    return {key: list(values) for key, values in grid.items()}


def _checked_seeds(seeds: Iterable[int]) -> list[int]:
    """The seeds, each once. Raises UserError."""
    if isinstance(seeds, str | bytes) or not isinstance(seeds, Iterable):
        raise UserError(f"seeds: {seeds!r}; give whole numbers from 0, say range(10)")
    known = list(dict.fromkeys(seeds))
    if not known:
        raise UserError("seeds: none; give whole numbers from 0, say range(10)")
    for seed in known:
        check_whole(0, seed=seed)
    return known


# What is given ---------------------------------------------------------------------------------


def _tree_of(config: Any) -> Tree:
    """The values of a config, for this call alone. Raises UserError."""
    if isinstance(config, str | Path):
        return read_tree(Path(config))
    if isinstance(config, Config):
        config = config.model_dump(mode="json", exclude_unset=True)
    if isinstance(config, Mapping):
        return Tree(IN_PYTHON, copy.deepcopy(dict(config)))
    kind = type(config).__name__
    raise UserError(f"a config is a path, a dict or a toytrans.Config, not {kind}")


def _name_of(config: Settings, tree: Tree) -> str:
    """A name for the runs of a config: that of its file, or of its task."""
    if isinstance(config, str | Path):
        return Path(config).stem
    data = tree.values.get("data")
    task = data.get("task") if isinstance(data, dict) else None
    return str(task or "files").rpartition(":")[2]


def _both(src: Sequences, tgt: Sequences | None) -> tuple[list[str], list[str] | None]:
    """Sources, and targets if they are given, as many. Raises UserError."""
    sources = [src] if isinstance(src, str) else list(src)
    if tgt is None:
        return sources, None
    targets = [tgt] if isinstance(tgt, str) else list(tgt)
    if len(targets) != len(sources):
        raise UserError(f"{len(sources)} src and {len(targets)} tgt; give one tgt for each src")
    return sources, targets
