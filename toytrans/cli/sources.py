"""What `inspect-masks` and `trace` look at: a run, a config, or sequences given as options."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from toytrans.cli.common import (
    Overrides,
    Progress,
    RunArgument,
    broken,
    newest,
    open_run,
    warn_of_fault,
)
from toytrans.errors import EACH_ITS_OPTION, HOW_TO_SEPARATE, UserError

if TYPE_CHECKING:
    from toytrans.config.schema import Config
    from toytrans.inspection.shown import InspectedBatch


@dataclass(frozen=True)
class Source:
    """Where pairs and model come from. Pairs given as options take precedence."""

    run: Path | None
    config: Path | None
    overrides: list[str]
    src: list[str]
    tgt: list[str]
    rows: int | None

    @property
    def given(self) -> bool:
        """Whether the user chose anything."""
        return bool(self.run or self.config or self.overrides or self.src or self.rows)

    def check(self) -> None:
        """Raise UserError if the options contradict each other."""
        if self.src and self.run and " " in str(self.run) and not self.run.exists():
            raise UserError(f"{self.run}: a sequence without an option; {EACH_ITS_OPTION}")
        if not (self.run or self.config):  # whose vocabulary says what a symbol is
            _check_commas([*self.src, *self.tgt])
        sources, targets = len(self.src), len(self.tgt)
        if sources != targets:
            raise UserError(f"{sources} --src and {targets} --tgt; give one --tgt for each --src")
        if self.config and self.run:
            raise UserError(
                f"--config {self.config} and run {self.run}: a run has its own config; give one"
            )
        if self.overrides and not self.config:
            raise UserError(
                f"--set {self.overrides[0]}: changes a config; give --config FILE with it"
            )

    @property
    def settings(self) -> "Config | None":
        """The config given with --config."""
        from toytrans.config.load import load_config

        return load_config(self.config, self.overrides) if self.config else None

    def load_newest(self) -> "InspectedBatch | None":
        """The batch as the newest run reads it; None if there is no run. Raises UserError."""
        try:
            run = newest()
        except UserError:
            return None
        return replace(self, run=run).load()

    def load(self) -> "InspectedBatch":
        """The batch, and the model that reads it: a run's, a config's or a small fresh one."""
        progress = Progress()
        from toytrans.config.schema import ModelConfig
        from toytrans.data.open import open_dataset
        from toytrans.inspection.shown import (
            InspectedBatch,
            batch_of_config,
            batch_of_run,
            batch_of_sequences,
            fresh,
        )
        from toytrans.model.build import as_transformer
        from toytrans.model.transformer import Transformer
        from toytrans.training.faults import build_model

        loaded, settings = None, self.settings
        if self.run is not None:
            loaded = open_run(self.run, "best")
            settings = loaded.config
        warn_of_fault(settings.fault if settings else None)
        if settings is None:
            batch, vocabulary = batch_of_sequences(self.src, self.tgt)
            small = ModelConfig(norm="pre", n_encoder_layers=1, n_decoder_layers=1)
            model = fresh(lambda: Transformer(small, vocabulary), 0)
            return InspectedBatch(batch, vocabulary, model, "fresh weights")
        if loaded and self.src:
            return batch_of_run(loaded, self.src, self.tgt)
        facts = loaded.facts if loaded else None
        if self.src:
            vocabulary = open_dataset(settings).facts.vocabulary
            batch, _ = batch_of_sequences(self.src, self.tgt, vocabulary, settings.source_bos)
        else:
            batch, vocabulary = batch_of_config(settings, self.rows or 2, facts)
        progress("the model")
        if loaded:
            model, weights = as_transformer(loaded.model), f"weights of {loaded.title}"
        else:
            model = fresh(lambda: as_transformer(build_model(settings, vocabulary)), settings.seed)
            weights = f"fresh weights, seed {settings.seed}{broken(settings.fault)}"
        progress("what the model computes")
        return InspectedBatch(batch, vocabulary, model, weights, settings.fault)


def _check_commas(sequences: list[str]) -> None:
    """Raise UserError where commas seem to separate symbols or sequences."""
    for sequence in sequences:
        if any("," in symbol and len(symbol) > 1 for symbol in sequence.split()):
            raise UserError(f"{sequence!r}: {HOW_TO_SEPARATE}")


def _options(
    run: RunArgument = None,
    config: Annotated[
        Path | None, typer.Option(help="Take the training pairs and fresh weights of a config.")
    ] = None,
    overrides: Overrides = None,
    src: Annotated[
        list[str] | None,
        typer.Option(help='A source such as "5 7 9". Repeat it for a padded batch.'),
    ] = None,
    tgt: Annotated[list[str] | None, typer.Option(help="The target of each --src.")] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Number of training pairs to take.", show_default="2"),
    ] = None,
) -> Source:
    source = Source(run, config, overrides or [], src or [], tgt or [], rows)
    source.check()
    return source


def with_source(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options above. It receives them as one argument, `source`."""
    options = inspect.signature(_options)
    own = [p for name, p in inspect.signature(command).parameters.items() if name != "source"]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        source = _options(**{name: values.pop(name) for name in options.parameters})
        command(source, **values)

    every = [*options.parameters.values(), *own]
    every.sort(key=lambda parameter: parameter.default is not parameter.empty)
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return run
