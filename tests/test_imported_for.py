"""Parts that are imported when a config names them."""

import subprocess
import sys

USED = """
import sys
from toytrans.config.load import load_config
from toytrans.data.open import open_dataset
from toytrans.model.build import build_sound_model
from toytrans.resolve import resolve

for config in sys.argv[1:]:
    settings = resolve(load_config(config))
    build_sound_model(settings.model, open_dataset(settings).facts.vocabulary)
    print(*(name for name in sys.modules if name.startswith("toytrans.")))
"""


def imported_for(*configs: str) -> list[set[str]]:
    """The modules of toytrans that a new process has imported once it has opened the data and the
    models of so many configs."""
    command = [sys.executable, "-c", USED, *configs]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_what_a_config_does_not_name_is_not_imported():
    positions = {f"toytrans.model.positions.{name}" for name in ("rotary", "relative", "anchored")}
    own = {
        "toytrans.user_code",
        "toytrans.model.own",
        "toytrans.model.positions.own",
        "toytrans.data.own_tasks",
    }
    textbook, addition = imported_for("textbook", "addition")
    assert "toytrans.model.positions.absolute" in textbook
    assert not textbook & (positions | own | {"toytrans.data.files"})
    assert addition & positions == {"toytrans.model.positions.anchored"}
