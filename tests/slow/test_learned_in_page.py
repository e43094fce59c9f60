"""Models that learn in a page solve their task within their steps, in a real browser."""

from typing import Any

import pytest
from live.test_learning import chosen_of, load_scripts, shares, told_of

from toytrans.exercises.results import MODELS, TASKS
from toytrans.live_pages.learning import engine_script

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_solves_its_task(browser: Any, model: str, task: str, seed: int) -> None:
    """At its last step 99% of 500 validation pairs are right alone."""
    page = browser.new_page()
    page.set_default_timeout(0)
    load_scripts(page, engine_script())
    told = told_of(page, chosen_of(task, seed, model=model))
    page.close()
    solved = [counted["step"] for counted in told["counted"] if shares(counted)[0] >= 0.99]
    print(f"{model} {task} seed {seed}: first at step {solved[:1]}, {told['done'][0]['seconds']} s")
    alone, given = shares(told["counted"][-1])
    assert alone == given >= 0.99


@pytest.mark.parametrize("seed", range(5))
def test_learned_without_the_causal_mask(browser: Any, seed: int) -> None:
    """It looks the next symbol up, and is lost where it has to write alone."""
    page = browser.new_page()
    load_scripts(page, engine_script())
    told = told_of(page, chosen_of("reverse", seed, "causal"))
    page.close()
    alone, given = shares(told["counted"][-1])
    assert given >= 0.99 and alone <= 0.1
