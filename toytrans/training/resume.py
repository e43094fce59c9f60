"""Going on with a run: under which settings, what must be as it was, and what has changed.

Only `train --resume` imports this, because a new run reads no other.
"""

from pathlib import Path
from typing import Any, Literal, get_args

from toytrans.config.load import flatten, set_key, validate
from toytrans.config.schedules import learning_rate
from toytrans.config.schema import MAY_DIFFER, OWN_CODE, Config, Settings, TrainConfig
from toytrans.config.yaml import Tree, show_value
from toytrans.data.pairs import DataFacts
from toytrans.errors import UserError
from toytrans.references import is_reference
from toytrans.training.devices import Precision
from toytrans.training.run import Run
from toytrans.training.trainer import Trainer

FILES = ("data.files.train", "data.files.valid", "data.files.test", "train.init")
"""Keys that name what may lie in another place when a run goes on."""

CHANGE_NO_NUMBER = ("config", "started", "command", "python", "platform")
"""Parts of environment.json that change no number of the training."""


class ResumedRun:
    """A run that a training goes on with.

    settings: its own, within the limits of the config that is given now.
    """

    def __init__(self, path: Path, given: Config) -> None:
        """Raises UserError if the settings, or those that the newest checkpoint was trained with,
        are not those of the run."""
        self.run = Run.open(path)
        if self.run.steps:
            self.run.at("last").check_settings()
        self.settings = settings_for_resume(self.run.config, self.run.settings, given, path)
        self.environment = self.run.environment

    def check_data(self, facts: DataFacts) -> None:
        """Raise UserError if the training data is not that of the run."""
        if facts != self.run.facts:
            raise UserError(
                f"{self.run.path}: the training data is not that of the saved run; put it back, or "
                "start another run with --out"
            )

    @property
    def precision(self) -> Precision | Literal["auto"]:
        """The precision of the settings. What `auto` chose before stays."""
        asked = self.settings.train.precision
        before: Any = self.environment.get("precision")
        return before if asked == "auto" and before in get_args(Precision) else asked

    def what_changed(self, trainer: Trainer, environment: dict[str, Any]) -> list[str]:
        """Where the training goes on, and what is not as it was when the run was saved."""
        return [
            f"resumed at step {trainer.progress.step}",
            *self.run.at("last").notes,
            _other_conditions(self.environment, environment),
            _change_of_rate(self.run.settings, trainer),
        ]


def settings_for_resume(saved: Config, settings: Settings, given: Config, run: Path) -> Settings:
    """The settings with which a run goes on: its own, within the limits of a given config.

    saved: the config that the run was started with. settings: what followed from it, which stays.
    given: a config that may differ in limits, in the device, and in where files lie. What these
    hold counts, and the run compares that.
    Raises UserError with the keys that differ otherwise: `key (was -> is)`.
    """
    before, resolved, after = (
        flatten(each.model_dump(mode="json")) for each in (saved, settings, given)
    )
    moved = _moved(before, after)
    changed = [
        f"{key} ({show_value(before.get(key))} -> {show_value(after.get(key))})"
        for key in sorted((before.keys() | after.keys()) - {*MAY_DIFFER, *moved})
        if after.get(key) not in (before.get(key), resolved.get(key))
    ]
    if changed:
        raise UserError(
            f"{run}: cannot resume with other settings: {', '.join(changed)}; "
            "set them back, or start another run with --out"
        )
    tree = Tree(str(run), settings.model_dump(mode="json"))
    for key in (*MAY_DIFFER, *moved):
        set_key(tree, key, after[key], "the config")
    if given.train.warmup_steps is None:  # it followed from max_steps, which may be lower now
        warmup = min(settings.train.warmup_steps, given.train.max_steps)
        set_key(tree, "train.warmup_steps", warmup, "the config")
    return validate(Settings, tree)


def _moved(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The keys of files, and of own code by the same name, which may lie in another place now."""
    files = [key for key in FILES if before.get(key) and after.get(key)]
    named = [key for key in OWN_CODE if is_reference(before[key]) and is_reference(after[key])]
    return files + [key for key in named if _name_of(before[key]) == _name_of(after[key])]


def _name_of(reference: str) -> str:
    return reference.rpartition(":")[2]


def _other_conditions(before: dict[str, Any], now: dict[str, Any]) -> str:
    """A sentence if the environment is not that of the saved run; else empty."""
    both = [key for key in now if key in before and key not in CHANGE_NO_NUMBER]
    changed = [f"{key} {before[key]} -> {now[key]}" for key in both if before[key] != now[key]]
    if not changed:
        return ""
    listed = ", ".join(changed)
    return f"the run was saved under other conditions, so its numbers may differ: {listed}"


def _change_of_rate(saved: Settings, trainer: Trainer) -> str:
    """A sentence if another limit of steps has changed the learning rate of a step to come; else
    empty."""
    train = trainer.settings.train
    step = first_difference(saved.train, train, trainer.progress.step + 1)
    if step is None:
        return ""
    before, now = (learning_rate(step, each) for each in (saved.train, train))
    from_there = "" if step == trainer.progress.step + 1 else f" from step {step}"
    return (
        f"the {train.schedule} schedule now ends at step {train.max_steps}, not "
        f"{saved.train.max_steps}: the learning rate goes on{from_there} at {now:.3g}, not "
        f"{before:.3g}"
    )


def first_difference(before: TrainConfig, now: TrainConfig, step: int) -> int | None:
    """The first step from `step` to the end of `now` whose learning rate is not that of `before`;
    None if there is none. Of a long training some thousand steps are compared."""
    stride = max(1, (now.max_steps - step) // 4096)
    for each in range(step, now.max_steps + 1, stride):
        if _differ(each, before, now):
            between = range(max(step, each - stride + 1), each + 1)
            return next(k for k in between if _differ(k, before, now))
    return None


def _differ(step: int, before: TrainConfig, now: TrainConfig) -> bool:
    return learning_rate(step, now) != learning_rate(step, before)
