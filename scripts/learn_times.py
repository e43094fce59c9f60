"""Print how long models learn in a page, beside PyTorch with one thread, in turns:

    python scripts/learn_times.py [ROUNDS]

Seconds are those of steps until 99% of 500 validation pairs are right, without the counting. Then
milliseconds of a step where the page itself learns, without a worker, as it is and with a processor
that is slowed down four times, as browsers do to imitate a telephone. It takes a Chromium.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from toytrans.exercises.results import MODELS
from toytrans.live_pages.learning import engine_script, learning_payload
from toytrans.references import SHIPPED

SOLVED = 0.99

LEARN = """([payload, model, seed]) => new Promise((resolve, reject) => {
  const settings = learningSettings(payload, { task: "reverse", model, seed });
  let seconds = 0;
  const learning = startLearning(settings, (message) => {
    if (message.type === "step") ({ seconds } = message);
    if (message.type === "failed") reject(new Error(message.message));
    const isSolved = message.type === "counted" && message.alone >= 0.99 * message.of;
    if (isSolved || message.type === "done") {
      learning.stop();
      resolve([message.step, seconds]);
    }
  });
})"""

STEPS = """([payload, model, kernels, count]) => {
  const settings = learningSettings(payload, { task: "reverse", model }), { config } = settings;
  const longest = bucket(config.data.train_length[1] + 1);
  const learner = new Learner(config.model, 13, settings.switches, longest, kernels);
  learner.load(firstWeights(learner.parameters, 0));
  const stream = trainingBatches(new TaskDataset(config.data, 0)), times = [];
  const batches = Array.from({ length: count }, () => stream.next().value);
  for (const batch of batches) {
    const began = performance.now();
    learner.learn(batch, config.train);
    times.push(performance.now() - began);
  }
  return times;
}"""


def in_page(page: Any, model: str, seed: int) -> tuple[int, float]:
    """The step at which a model has learned in a worker of the page, and its seconds."""
    step, seconds = page.evaluate(LEARN, [learning_payload(), model, seed])
    return step, seconds


def in_pytorch(model: str, seed: int) -> tuple[int, float]:
    """The same of a training on the command line, with one thread."""
    with tempfile.TemporaryDirectory() as folder:
        sets = ("train.eval_every=10", f"train.stop_at_exact_match={SOLVED}")
        words = [sys.executable, "-m", "toytrans", "train", str(SHIPPED / f"{model}.yaml")]
        words += ["--seed", str(seed), "--out", f"{folder}/run", "--device", "cpu"]
        words += [word for key in (*sets, "data.valid_examples=500") for word in ("--set", key)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(words, check=True, capture_output=True, env=environment)
        *_, last = (Path(folder) / "run/metrics.jsonl").read_text().splitlines()
        record = json.loads(last)
        return record["step"], record["elapsed_s"]


def compare(page: Any, rounds: int) -> None:
    """Print step and seconds of each seed, the page's and PyTorch's in turns."""
    for model in MODELS:
        found: dict[str, list[float]] = {"page": [], "PyTorch": []}
        for seed in range(rounds):
            for name, (step, seconds) in (
                ("page", in_page(page, model, seed)),
                ("PyTorch", in_pytorch(model, seed)),
            ):
                found[name].append(seconds)
                print(f"{model} seed {seed}, {name}: step {step}, {seconds:.1f} s", flush=True)
        medians = ", ".join(
            f"{name} {statistics.median(each):.1f} s" for name, each in found.items()
        )
        print(f"{model}, median of {rounds}: {medians}", flush=True)


def slow_down(page: Any) -> None:
    """Print milliseconds of a step in the page itself, as it is and four times slower."""
    devtools = page.context.new_cdp_session(page)
    for slower in (1, 4):
        devtools.send("Emulation.setCPUThrottlingRate", {"rate": slower})
        for model in MODELS:
            for kernels in ("WebAssembly", "plain"):
                times = page.evaluate(STEPS, [learning_payload(), model, kernels, 40])
                median = statistics.median(times[10:])
                print(
                    f"{model}, {kernels}, slowed {slower} times: {median:.1f} ms a step", flush=True
                )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(0)
        page.add_script_tag(content=engine_script())
        page.evaluate("document.querySelector('script').id = 'engine'")
        compare(page, rounds)
        slow_down(page)
        browser.close()


if __name__ == "__main__":
    main()
