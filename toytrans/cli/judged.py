"""What a command judges before it imports torch: the keys and the types of the config or the sweep
file that it is given. The command itself reads them again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from toytrans.cli.common import one_config, path_and_sequences, run_or_config
from toytrans.config.load import load_config
from toytrans.sweeps.choices import (
    config_of,
    each_value_once,
    naming_the_choice,
    narrowed,
    read_grid,
)
from toytrans.sweeps.sweep_file import plan_of


def a_config(
    run: Path | None = None,
    config: Path | None = None,
    words: list[str] | None = None,
    overrides: list[str] | None = None,
    fault: str | None = None,
    trust_code: bool = False,
    **_: Any,
) -> None:
    """Raise UserError for a config whose keys or values are wrong. words: a RUN or a CONFIG may be
    the first, before sequences."""
    first, _sequences = path_and_sequences(words)
    _run, config = run_or_config(run or first, config)
    if config is not None:
        load_config(config, overrides or (), {"fault": fault}, trust_code)


def a_sweep(
    argument: Path | None,
    option: Path | None,
    sets: list[str] | None,
    trust_code: bool,
    **_: Any,
) -> None:
    """Raise UserError for a config or a sweep file whose keys or values are wrong, those of the
    grid too."""
    path = one_config(argument, option)
    if path is not None:
        asked = plan_of(path)
        asked = replace(asked, origin="--set" if sets else asked.origin, trust_code=trust_code)
        for choice in each_value_once(narrowed(asked.grid, read_grid(sets or ()))):
            naming_the_choice(config_of, choice, asked)
