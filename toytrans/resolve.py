"""From a config as it was given to settings with nothing left open.

Keys that were left out may follow from others: the length of test sources from that of training
sources, say, or what an attention score is capped at from the scheme of positions. `resolve` fills
them, section by section, and judges what the config alone cannot: the names of tasks, position
schemes and schedules, and whether lengths and sizes fit these. Each task and each scheme says
itself what it needs. Code of the user's that the config names is loaded for that, so it must be
trusted before.
"""

from collections.abc import Mapping
from typing import Any

from toytrans.config.schedules import check_schedule_name
from toytrans.config.schema import (
    LONGEST,
    Config,
    DataConfig,
    DataSettings,
    ModelConfig,
    ModelSettings,
    Section,
    Settings,
    TrainConfig,
    TrainSettings,
)
from toytrans.config.yaml import naming_origins
from toytrans.data.open import check_lengths, longest_source, task_of
from toytrans.errors import BadKey
from toytrans.model.positions import (
    SCHEMES,
    check_scheme_name,
    cross_position_class,
    position_class,
    scheme_class,
)
from toytrans.model.positions.base import Positions
from toytrans.references import is_reference, shown

BEYOND = 5
"""Test sources are so many symbols longer than those of training, as far as a table of places
has room for them."""


def resolve(config: Config) -> Settings:
    """The complete settings of a config. Raises UserError with the place of the key."""
    with naming_origins(config.origins):
        model = resolve_model(config.model)
        data = _data(config.data, model)
        train = _train(config.train)
    rest = {"seed": config.seed, "device": config.device, "fault": config.fault}
    return Settings.model_validate(rest | {"data": data, "model": model, "train": train})


# model ---------------------------------------------------------------------------------------


def resolve_model(model: ModelConfig) -> ModelSettings:
    """The section `model` with what follows from its position schemes. Raises BadKey."""
    if model.class_ is not None:  # the user's own model, which heeds what it likes
        check_scheme_name(model.positions)
        defaults = {"cross_positions": "none", "source_bos": False, "score_cap": 0.0}
        return ModelSettings.model_validate(fill_missing(model, defaults))
    scheme = position_class(model.positions)
    _check_places(model, scheme)
    name = model.cross_positions
    if name is None:
        name = model.positions if scheme.measures_cross_attention() else "none"
    cross = cross_position_class(name)
    needs_bos = scheme.needs_source_bos or cross.needs_source_bos
    if needs_bos and model.source_bos is False:
        which = shown(model.positions if scheme.needs_source_bos else name)
        raise BadKey("model.source_bos", f"{which} positions count from BOS; leave it out")
    defaults = {
        "cross_positions": name,
        "source_bos": needs_bos,
        "score_cap": scheme.default_score_cap,
        "max_positions": 2048 if model.random_positions else scheme.default_max_positions,
    }
    settings = ModelSettings.model_validate(fill_missing(model, defaults))
    scheme.check(settings)
    return settings


def _check_places(model: ModelConfig, scheme: type[Positions]) -> None:
    """Raise BadKey where a scheme takes no random positions, or has no table whose rows a config
    could say."""
    if model.random_positions and not scheme.takes_random_positions:
        names = [each for each in SCHEMES if scheme_class(each).takes_random_positions]
        raise BadKey("model.random_positions", f"belongs to positions: {' or '.join(names)}")
    has_table = model.random_positions or scheme.default_max_positions is not None
    is_own = is_reference(model.positions) or is_reference(model.cross_positions)
    if model.max_positions is not None and not has_table and not is_own:
        names = [each for each in SCHEMES if scheme_class(each).default_max_positions is not None]
        reason = f"belongs to positions: {' or '.join(names)}, and to random_positions"
        raise BadKey("model.max_positions", reason)


# data ----------------------------------------------------------------------------------------


def _data(data: DataConfig, model: ModelSettings) -> DataSettings:
    """The section `data` with what follows from its task. Raises BadKey."""
    if data.task is None:
        for key in ("symbols", "train_length", "valid_length", "test_length"):
            if getattr(data, key) is not None:
                raise BadKey(f"data.{key}", "belongs to data.task, not to data.files")
        return DataSettings.model_validate(fill_missing(data, {}))
    task = task_of(data)
    if data.symbols is not None and data.symbols < task.fewest_symbols:
        raise BadKey("data.symbols", f"{data.task} needs at least {task.fewest_symbols}")
    low, high = data.train_length or (1, 20)
    room = longest_source(task, model)
    farther = min(high + BEYOND, LONGEST)
    if room is not None:
        farther = max(high, min(farther, room))
    defaults = {
        "symbols": task.symbols,
        "train_length": (low, high),
        "valid_length": (low, high),
        "test_length": (low, farther),
        "valid_examples": 1000,
        "test_examples": 1000,
    }
    settings = DataSettings.model_validate(fill_missing(data, defaults))
    check_lengths(task, settings, model)
    return settings


# train ---------------------------------------------------------------------------------------


def _train(train: TrainConfig) -> TrainSettings:
    """The section `train` with what follows from the number of steps. Raises BadKey."""
    check_schedule_name(train.schedule)
    defaults = {
        "warmup_steps": min(100, train.max_steps // 3),
        "eval_every": max(1, train.max_steps // 4),
    }
    return TrainSettings.model_validate(fill_missing(train, defaults))


def fill_missing(section: Section, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a section, with defaults in place of those that were left out.

    A key that has no default stays None, because that says something too: no limit, say.
    """
    values = section.model_dump()
    return {key: defaults.get(key) if value is None else value for key, value in values.items()}
