"""Faults planted into the scripts that learn in a page, each of which the comparison with the
program must see: batches, first weights, gradients and steps, for every switch; and counts."""

from typing import Any

import numpy as np
import pytest
from live.test_learning import (
    COUNTS,
    COUNTS_OF_MODEL,
    FIRST_BATCHES,
    FIRST_WEIGHTS,
    GRADIENTS,
    LOSSES,
    OWN_SIZES,
    STATES,
    TINY,
    batches_of,
    chosen_of,
    expected_gradients,
    half_learned,
    listed,
    load_scripts,
    losses_of,
    padded_batches,
    rounded,
    run,
    settings_of,
    trainer_of,
)
from playwright.sync_api import Error

from toytrans.live_pages.learning import engine_script

pytestmark = pytest.mark.slow

FAULTS = {
    # tasks.js and seeded.js
    "another constant of the hash": ("0xBF58476D1CE4E5B9n", "0xBF58476D1CE4E5B7n"),
    "sources of another split": ("train: lot > 1n", "train: lot > 0n"),
    "short sources held out": ("< FEWEST_SOURCES", "< 1000"),
    "a source is drawn again from the next key": ("word(key + again)", "word(key + again + 1n)"),
    "full batches and a small one": ("fewest) [plans, high]", "fewest) [, high]"),
    "batches in the order of their lengths": ("of permutation(plans.length", "of plans.keys("),
    "sorted from short to long": ("keys[b] - keys[a]", "keys[a] - keys[b]"),
    "widths not even": (
        "(Math.floor(Math.log2(length)) - 2) : 2",
        "(Math.floor(Math.log2(length)) - 2) : 1",
    ),
    "labels not shifted": ("tgtIn.set([BOS, ...targetIds]", "tgtIn.set([...targetIds, EOS]"),
    "a pool of other pairs": ("pool * size, size)", "pool * size + 1, size)"),
    "queries, keys and values as one matrix": ("? outer / 3 : outer", "? outer : outer"),
    "unused draws forgotten": ("while (unused--)", "while (false)"),
    "the end of normal numbers not drawn again": ("if (count % 16) {", "if (false) {"),
    # the forward
    "a place sees the next one": ("(closesLater && j > i)", "(closesLater && j > i + 1)"),
    "pads open": ("const isPad = key === PAD ||", "const isPad = false &&"),
    "the scale of the whole width": ("? Dh ** -0.5 : 1", "? this.width ** -0.5 : 1"),
    "another epsilon": ("NORM_EPSILON = 1e-5", "NORM_EPSILON = 1e-6"),
    "embeddings not scaled": ("numbers[from + c] * root + place", "numbers[from + c] + place"),
    "biases of keys for values": (
        "this.block(bias, 0, 1, D, 2 * D)",
        "this.block(bias, 0, 1, 0, 2 * D)",
    ),
    # the backward
    "softmax backward without its mean": ("(numbers[d + j] - mean)", "numbers[d + j]"),
    "no scale in the backward": ("= scale * numbers[w + j]", "= numbers[w + j]"),
    "norm backward without its mean": (
        "(numbers[at + c] - mean - numbers",
        "(numbers[at + c] - numbers",
    ),
    "norm backward without its slope": (" - numbers[normal + c] * slope", ""),
    "keys not transposed": (
        "kernels.product(transposed(ofScores), ofHead(q, Tq)",
        "kernels.product(ofScores, ofHead(q, Tq)",
    ),
    "no gate of relu": ("this.kernels.reluBack(ofInner, inner.output);", ""),
    "no residual around attention": (
        "return this.linearBack(ofProjected, projected, gradient);",
        "return this.linearBack(ofProjected, projected);",
    ),
    "no residual around the feed-forward": (
        "return this.linearBack(ofInner, inner, gradient);",
        "return this.linearBack(ofInner, inner);",
    ),
    "memory learns from the first layer alone": (
        "this.linearBack(ofBoth, keysAndValues, ofMemory);",
        "this.numbers.fill(0, ofMemory.at, ofMemory.at + rows * D); "
        "this.linearBack(ofBoth, keysAndValues, ofMemory);",
    ),
    "target embeddings learn nothing": ("this.embedBack(gradient, tgtIn);", ""),
    "source embeddings learn nothing": ("this.embedBack(gradient, src);", ""),
    "embeddings learn too little": ("+= numbers[from + c] * root", "+= numbers[from + c]"),
    "biases learn nothing": ("if (bias) {\n      const ones", "if (false) {\n      const ones"),
    "gradients of the last step stay": ("this.numbers.fill(0, from, from + this.span);", ""),
    "rows beyond the first sixteen left out": ("row < batch.rows; row +=", "row < 1; row +="),
    # the loss and the step
    "pads count in the loss": ("tokens += label !== PAD", "tokens += 1"),
    "pads are labels": ("if (label === PAD) {", "if (label === -1) {"),
    "another beta": ("0.98 * numbers[secondMoment", "0.999 * numbers[secondMoment"),
    "no correction of the first moment": ("rate / (1 - 0.9 ** step)", "rate"),
    "epsilon inside the root": (
        "(Math.sqrt(second) / rootOfBias + 1e-8)",
        "(Math.sqrt(second + 1e-8) / rootOfBias)",
    ),
    "no clip": ("Math.min(1, limit / (norm + 1e-6))", "1"),
    "clipped by the square": ("return Math.sqrt(squares)", "return squares"),
    "the rate of the step before": (
        "learningRate(this.step, train)",
        "learningRate(this.step - 1, train)",
    ),
    "no floor of the rate": ("(0.02 + 0.98 * (1 - done))", "(1 - done)"),
    # counting
    "alone is not read anew": ("if (learner.switches.causal) return", "if (true) return"),
    "the last place alone counts": ("places.every(Boolean)", "places.at(-1)"),
    "pads count": ("if (label !== PAD) places", "if (true) places"),
}


def compared(chosen: dict[str, Any], noise: float) -> dict[str, Any]:
    """What the program says of three padded batches and of six steps."""
    trainer = trainer_of(settings_of(chosen))
    text, batches = rounded(trainer.model, noise), padded_batches(trainer.settings)
    gradients = [np.concatenate(each) for _, each in expected_gradients(trainer, batches)]
    steps = batches_of(trainer.settings, 6)
    given = {"chosen": chosen, "kernels": "fp64", "text": text}
    return {
        "gradients": given | {"batches": [listed(batch) for batch in batches]},
        "steps": given | {"batches": [listed(batch) for batch in steps]},
        "expected_gradients": gradients,
        "expected_losses": losses_of(trainer, steps),
    }


@pytest.fixture(scope="module")
def expected(browser: Any) -> dict[str, Any]:
    """All that a script must compute."""
    page = with_scripts(browser, engine_script())
    data, first = [], []
    for task, lengths in (("reverse", [2, 7]), ("sort", [3, 16]), ("copy", [3, 6])):
        chosen = chosen_of(task, 1, lengths=lengths)
        batches = [listed(batch) for batch in batches_of(settings_of(chosen), 20)]
        data.append(({"chosen": chosen, "count": 20}, batches))
    for model in (*OWN_SIZES, TINY):
        chosen = chosen_of(seed=3, model=model)
        parameters = trainer_of(settings_of(chosen)).model.parameters()
        first.append((chosen, np.concatenate([x.detach().flatten() for x in parameters])))
    states = [chosen_of("sort", 0, off, model=TINY, steps=6) for off in STATES]
    counted = []
    for off in ("", "causal"):
        chosen, text = half_learned(page, off)
        for pads in (0, 2):
            given = {"chosen": chosen, "text": text, "pads": pads}
            counted.append((given, run(page, COUNTS_OF_MODEL, given)))
    page.close()
    compared_states = [compared(chosen, 0.1) for chosen in states]
    return {"data": data, "first": first, "states": compared_states, "counted": counted}


def with_scripts(browser: Any, script: str) -> Any:
    page = browser.new_page()
    load_scripts(page, script)
    return page


def is_seen(browser: Any, script: str, expected: dict[str, Any]) -> bool:
    """Whether scripts differ from the program anywhere, or fail."""
    page = with_scripts(browser, script)
    try:
        return any(
            differs(page, expected)
            for differs in (differ_in_data, differ_in_numbers, differ_in_counts)
        )
    except Error:
        return True
    finally:
        page.close()


def differ_in_data(page: Any, expected: dict[str, Any]) -> bool:
    if any(run(page, FIRST_BATCHES, given) != batches for given, batches in expected["data"]):
        return True
    for chosen, weights in expected["first"]:
        found = np.array(run(page, FIRST_WEIGHTS, chosen))
        if found.shape != weights.shape or np.abs(found - weights).max() > 1e-6:
            return True
    return False


def differ_in_numbers(page: Any, expected: dict[str, Any]) -> bool:
    for state in expected["states"]:
        found = run(page, GRADIENTS, state["gradients"])
        for (_, ours), theirs in zip(found, state["expected_gradients"], strict=True):
            if not are_near(np.concatenate(ours), theirs):
                return True
        if not are_near(np.array(run(page, LOSSES, state["steps"])), state["expected_losses"]):
            return True
    return False


def are_near(ours: Any, theirs: Any) -> bool:
    """Whether numbers are equal but for rounding. A number that is none came as None."""
    return ours.dtype == np.float64 and bool(np.abs(ours - theirs).max() <= 1e-11)


def differ_in_counts(page: Any, expected: dict[str, Any]) -> bool:
    return any(run(page, COUNTS, given) != counts for given, counts in expected["counted"])


def test_every_planted_fault_is_seen(browser: Any, expected: dict[str, Any]) -> None:
    sound = engine_script()
    assert not is_seen(browser, sound, expected)
    for right, _ in FAULTS.values():
        assert right in sound, f"no script has {right}"
    unseen = [
        name
        for name, (right, wrong) in FAULTS.items()
        if not is_seen(browser, sound.replace(right, wrong, 1), expected)
    ]
    assert unseen == []
