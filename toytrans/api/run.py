"""A run in Python, and what can be asked of it."""

import copy
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from toytrans.config.sealed import fault_remark
from toytrans.data.pairs import Side, Split
from toytrans.data.selection import Selection
from toytrans.errors import UserError
from toytrans.evaluation import Scores
from toytrans.model.initialisation import count_parameters
from toytrans.training import run as training_run
from toytrans.training.isolation import Isolation
from toytrans.training.measured import measure
from toytrans.training.records import Records
from toytrans.training.run import RunFolder

if TYPE_CHECKING:
    from toytrans.insight.attention.maps import AttentionMaps
    from toytrans.insight.capture import Part
    from toytrans.insight.inspected import InspectedBatch

Sequences = str | Sequence[str]
"""One sequence of symbols, say "5 7 9", or several."""


class Run(training_run.Run):
    """A trained model and what can be asked of it.

    path: the run directory. config: its config. model: a torch.nn.Module in eval mode.
    vocabulary: symbols <-> ids. step: that of the checkpoint.
    """

    @property
    def records(self) -> Records:
        """The records of the training: one dict for each line of metrics.jsonl."""
        return Records(self.folder.records)

    @property
    def unfinished(self) -> str:
        """How far the training has come, say "step 3 of 200"; empty where it reached its end."""
        return self.folder.unfinished

    def evaluate(
        self,
        lengths: tuple[int, int] | None = None,
        split: Split = "test",
        examples: int | None = None,
        decode: int | None = None,
        beam: int = 1,
        *,
        length_of: Side = "src",
        files: str | Path | tuple[str | Path, str | Path] | None = None,
    ) -> Scores:
        """Measure the run as `toytrans eval` does. Raises UserError.

        lengths: the shortest and the longest; None = those of the split. split: valid or test.
        examples: pairs in all. decode: pairs of each length that are decoded; None = all.
        length_of: the side whose symbols a length counts.
        files: a file of pairs, or a file of sources and one of targets, one a line.
        """
        if split not in ("valid", "test") or length_of not in ("src", "tgt"):
            raise UserError(f"split {split!r}, length_of {length_of!r}: valid or test, src or tgt")
        check_positive(examples=examples, decode=decode, beam=beam)
        pairs_of: Split | Path | tuple[Path, Path] = split
        if isinstance(files, str | Path):
            pairs_of = Path(files)
        elif files is not None:
            pairs_of = Path(files[0]), Path(files[1])
        wanted = Selection(checked_lengths(lengths), examples, length_of)
        with Isolation().inside():
            return measure(self, pairs_of, wanted, decode, beam)

    def attention(
        self,
        src: Sequences = (),
        tgt: Sequences | None = None,
        *,
        part: "Part | None" = None,
        layer: int | None = None,
        head: int | None = None,
        sample: int = 200,
    ) -> "AttentionMaps":
        """What every head attends to, and which rule it follows, as `toytrans attention` shows.

        src: none = two validation pairs. tgt: the targets; None = the model's translations.
        part, layer, head: show only this one, counted from 1. sample: validation pairs on which
        the rules are measured; 0 = the pairs shown.
        """
        from toytrans.insight.attention.heads import Choice
        from toytrans.insight.attention.maps import maps_of

        if not is_count(sample):
            raise UserError(f"sample {sample!r}: expected a whole number")
        choice = Choice(part, layer, head)
        return maps_of(self._copy(), _several(src), _targets(src, tgt), choice, sample)

    def masks(self, src: Sequences, tgt: Sequences | None = None) -> "InspectedBatch":
        """The masks of pairs as one padded batch, and why each cell is masked.

        tgt: the targets; None = the model's translations.
        """
        from toytrans.insight.inspected import batch_of_run

        if not src:
            raise UserError('no src; give a sequence such as "5 7 9", or several')
        targets = _targets(src, tgt) or self.translate(_several(src))
        return batch_of_run(self._copy(), _several(src), targets)

    def _copy(self) -> "Run":
        """This run with a copy of its model on the CPU, in eval mode."""
        return replace(self, model=copy.deepcopy(self.model).cpu().eval())

    def __repr__(self) -> str:
        data = self.config.data
        task, parameters = data.task or "files", count_parameters(self.model)
        facts = (
            task,
            f"{parameters:,} parameters",
            f"step {self.step}",
            fault_remark(self.config.fault),
        )
        return f"Run({self.path}: {', '.join(filter(None, facts))})"


def load(
    path: str | Path,
    checkpoint: str | int = "best",
    device: str = "auto",
    trust_code: bool = False,
) -> Run:
    """The run of a directory. Raises UserError.

    checkpoint: best, last or a step. device: auto, cpu, cuda, cuda:N or mps. trust_code: whether
    code that the run names, its task's say, may be run.
    """
    with torch.random.fork_rng(devices=[]):  # a model draws weights before it gets those saved
        loaded = RunFolder.open(Path(path)).load(str(checkpoint), device, trust_code)
    return Run(**{field.name: getattr(loaded, field.name) for field in fields(loaded)})


def _several(sequences: Sequences) -> list[str]:
    return [sequences] if isinstance(sequences, str) else list(sequences)


def _targets(src: Sequences, tgt: Sequences | None) -> list[str] | None:
    """The targets of sources, as many. Raises UserError."""
    sources, targets = len(_several(src)), None if tgt is None else _several(tgt)
    if targets is not None and len(targets) != sources:
        raise UserError(f"{sources} src and {len(targets)} tgt; give one tgt for each src")
    return targets


def checked_lengths(lengths: Any) -> tuple[int, int] | None:
    """Lengths as a pair of numbers. Raises UserError."""
    if lengths is None:
        return None
    pair = tuple(lengths) if isinstance(lengths, Sequence) else ()
    if len(pair) != 2 or not all(map(is_count, pair)) or pair[0] > pair[1]:
        raise UserError(f"lengths {lengths!r}: write the shortest and the longest, say (1, 400)")
    return pair


def check_positive(**numbers: int | None) -> None:
    """Raise UserError for an argument that is neither None nor a whole number from 1."""
    for name, number in numbers.items():
        if number is not None and not (is_count(number) and number):
            raise UserError(f"{name} {number!r}: expected a whole number, 1 or more")


def is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0
