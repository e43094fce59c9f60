"""A session: what `train` and `board` prepare alike, and what it leaves behind."""

from pathlib import Path

import pytest
from conftest import config_of

from toytrans.errors import UserError
from toytrans.training.run import read_environment, read_run
from toytrans.training.run_folder import locked
from toytrans.training.session import Request, open_session

SMALL = {"data": {"valid_examples": 9, "test_examples": 9}}


def request_for(path: Path, more: dict | None = None, **options) -> Request:
    config = config_of(**SMALL, train={"max_steps": 3, "precision": "fp32"} | (more or {}))
    return Request("small", config, lambda _: config, path, **options)


def train(request: Request) -> tuple[list[str], bool]:
    """What was reported, and whether the session resumed."""
    sentences: list[str] = []
    with open_session(request, sentences.append) as session:
        list(session.trainer.train())
    return sentences, session.resumed


def test_a_session_describes_its_run_and_holds_its_lock(tmp_path: Path):
    path = tmp_path / "run"
    with open_session(request_for(path), lambda _: None):
        assert read_run(path)[0].train.max_steps == 3
        environment = read_environment(path)
        assert (environment["config"], environment["device"]) == ("small", "cpu")
        assert environment["precision"] == "fp32" and environment["processes"] == 1
        with pytest.raises(UserError, match="another training"), locked(path):
            pass
    with locked(path) as notes:
        assert notes == []


def test_a_session_resumes(tmp_path: Path):
    sentences, resumed = train(request_for(tmp_path / "run"))
    assert not resumed and sentences[0] == f"{tmp_path / 'run'}: cpu, fp32"
    sentences, resumed = train(request_for(tmp_path / "run", resume=True))
    assert resumed and "resumed at step 3" in sentences


def test_other_settings_are_refused_and_nothing_changes(tmp_path: Path):
    path = tmp_path / "run"
    train(request_for(path))
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=r"cannot resume with other settings: train.lr"):
        train(request_for(path, {"lr": 0.5}, resume=True))
    assert before == {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_an_error_before_the_first_file_leaves_no_folder(tmp_path: Path):
    config = config_of(fault="wrong_scale", model={"n_heads": 1})
    with pytest.raises(UserError, match="one head"):
        train(Request("c", config, lambda _: config, tmp_path / "run"))
    assert not (tmp_path / "run").exists()
