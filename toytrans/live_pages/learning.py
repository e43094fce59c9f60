"""What a page needs in which a model learns: what there is to choose from, and the scripts that
learn.

Sizes, steps and rates are those of the shipped configs, so that a page and a terminal train the
same run. The scripts are model.js and those of templates/learn/. They are one text, because a
worker of the page runs the same text.
"""

import base64
from typing import Any

from toytrans import __version__
from toytrans.config.schema import Config
from toytrans.config.yaml import read_yaml
from toytrans.data.open import open_dataset
from toytrans.data.tasks import TASKS as TASKS_OF_PROGRAM
from toytrans.exercises.results import MODELS, PARTS, TASKS
from toytrans.live_pages.payload import LEARNED_WITHOUT
from toytrans.live_pages.templates import TEMPLATES, script
from toytrans.references import SHIPPED
from toytrans.resolve import resolve

SCRIPTS = (
    "kernels.js",
    "seeded.js",
    "tasks.js",
    "learner.js",
    "worker.js",
    "learning.js",
    "save.js",
)
"""Of templates/learn/, in the order of the story. Behind model.js, they know nothing of a page."""


def learning_payload() -> dict[str, Any]:
    """What the page is told, as JSON takes it.

    models: by name, the config as it was `given`, and the whole `config`: data, model, train.
    about: what model.js is told of every model that learns here, but its sizes.
    """
    models = {name: _model(name) for name in MODELS}
    facts = open_dataset(resolve(_config(MODELS[0]))).facts
    return {
        "version": __version__,
        "models": models,
        "rules": {task: TASKS_OF_PROGRAM[task].rule for task in TASKS},
        "switches": [
            {"name": name, "fault": fault, "words": words, "switches": LEARNED_WITHOUT[fault]}
            for name, (fault, words) in PARTS.items()
        ],
        "about": {
            "symbols": facts.vocabulary.symbols,
            "separators": facts.vocabulary.separator_ids,
            "source_bos": False,
            "target_growth": facts.target_growth,
            "max_length": None,
            "fixed_places": None,
        },
    }


def _config(name: str) -> Config:
    return Config.model_validate(read_yaml(SHIPPED / f"{name}.yaml").values)


def _model(name: str) -> dict[str, Any]:
    settings = resolve(_config(name)).model_dump(mode="json")
    return {
        "given": read_yaml(SHIPPED / f"{name}.yaml").values,
        "config": {section: settings[section] for section in ("data", "model", "train")},
    }


def engine_script() -> str:
    """All scripts that learn, with the bytes of their kernels."""
    kernels = base64.b64encode((TEMPLATES / "learn/kernels.wasm").read_bytes()).decode()
    texts = [script(f"learn/{name}") for name in SCRIPTS]
    return "\n".join([script("model.js"), f'const KERNELS = "{kernels}";', *texts])
