"""`toytrans.explain`: every key, task and fault, in words."""

from typing import get_args

import pytest

import toytrans
from toytrans.config.explain import keys
from toytrans.config.names import FaultName, TaskName


@pytest.mark.parametrize(
    "name", [*get_args(TaskName), *get_args(FaultName), *dict.fromkeys(k.path for k in keys())]
)
def test_every_key_task_and_fault_is_explained(name: str):
    first, *lines = toytrans.explain(name).splitlines()
    assert first == name and len(lines) >= 2
    assert all(line[:2] == "  " and ": " in line for line in lines)


@pytest.mark.parametrize(
    ("name", "hint"), [("revers", "reverse"), ("no_scal", "no_scale"), ("lr", "train.lr")]
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str):
    with pytest.raises(toytrans.UserError, match=f"{name!r}; did you mean {hint}\\?"):
        toytrans.explain(name)
