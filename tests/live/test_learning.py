"""The scripts that learn in a page, in a real browser: the numbers of PyTorch, of the program's
training and of its data, for every switch."""

import base64
import json
import shlex
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, Command

from live.test_page import data_in
from toytrans import load
from toytrans.config.load import load_config
from toytrans.config.schedules import learning_rate
from toytrans.config.schema import Settings
from toytrans.data.batches import Batch, training_batches
from toytrans.data.open import open_dataset
from toytrans.exercises.results import PARTS, TASKS, read_results
from toytrans.live_pages.learning import engine_script, learning_payload
from toytrans.live_pages.payload import packed
from toytrans.measure import Measure
from toytrans.resolve import resolve
from toytrans.tokens import EOS_ID, FIRST_SYMBOL_ID, PAD_ID
from toytrans.training.session import new_model
from toytrans.training.trainer import Trainer

KERNELS = ROOT / "toytrans/live_pages/templates/learn"

TINY = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2, "d_ff": 24}
"""A model of which each part is there, and two layers of one side."""

STATES: dict[str, str | None] = {"": None} | {name: fault for name, (fault, _) in PARTS.items()}
"""What is switched off before a learning, by the page's name; and the fault that does the same."""

HELPERS = """
const payload = %s;
// A learner with weights that are given as text, in numbers of a kind
function learnerOf(chosen, kernels, text) {
  const settings = learningSettings(payload, chosen), { model } = settings.config;
  const learner = new Learner(model, 13, settings.switches, 33, kernels);
  if (text) learner.load(unpacked(text, "f4", learner.parameters));
  return learner;
}
// A batch from lists, and lists from a batch
function batchOfLists({ S, T, src, tgtIn, tgtOut }) {
  const [a, b, c] = [src, tgtIn, tgtOut].map((ids) => Int32Array.from(ids));
  return { pairs: [], rows: a.length / S, S, T, src: a, tgtIn: b, tgtOut: c };
}
function listsOfBatch({ S, T, src, tgtIn, tgtOut }) {
  return { S, T, src: [...src], tgtIn: [...tgtIn], tgtOut: [...tgtOut] };
}
// What a learning tells until it is done
function allTold(chosen, kernels) {
  return new Promise((resolve, reject) => {
    const told = [];
    const settings = { ...learningSettings(payload, chosen), kernels };
    const learning = startLearning(settings, (message) => {
      told.push(message);
      if (message.type === "failed") reject(new Error(message.message));
      if (message.type === "done") { learning.stop(); resolve(told); }
    });
  });
}
"""


@pytest.fixture(scope="module")
def js(browser: Any) -> Iterator[Any]:
    """An empty page that knows the scripts."""
    page = browser.new_page()
    load_scripts(page, engine_script())
    yield page
    page.close()


def load_scripts(page: Any, engine: str) -> None:
    page.add_script_tag(content=engine)
    page.evaluate("document.querySelector('script').id = 'engine'")
    page.add_script_tag(content=HELPERS % json.dumps(learning_payload()))


def run(js: Any, script: str, given: Any) -> Any:
    """What a function in the page gives. As text, it and what it is given travel far quicker."""
    text = js.evaluate(f"(text) => JSON.stringify(({script})(JSON.parse(text)))", json.dumps(given))
    return json.loads(text)


def settings_of(chosen: dict[str, Any]) -> Settings:
    """The settings of the program's training, in fp64, that is what was chosen in a page."""
    model = chosen.get("model", "small")
    sets = [f"data.task={chosen['task']}", "train.precision=fp64"]
    if "steps" in chosen:
        sets.append(f"train.max_steps={chosen['steps']}")
    if "lengths" in chosen:
        sets.append(f"data.train_length={chosen['lengths']}")
    if not isinstance(model, str):
        sets += [f"model.{key}={size}" for key, size in model.items()]
    (fault,) = [STATES[off] for off in chosen["learn"]] or [None]
    name = model if isinstance(model, str) else "small"
    options = {"seed": chosen["seed"], "fault": fault}
    return resolve(load_config(ROOT / f"configs/{name}.yaml", sets, options))


def chosen_of(task: str = "reverse", seed: int = 0, off: str = "", **more: Any) -> dict[str, Any]:
    """What is chosen in a page; off: what it learns without."""
    return {"task": task, "seed": seed, "learn": {off: False} if off else {}} | more


def trainer_of(settings: Settings) -> Trainer:
    """The program's training, at its first step."""
    dataset = open_dataset(settings)
    model = new_model(settings, dataset, "fp64", torch.device("cpu")).train()
    return Trainer(settings, dataset, model, "fp64")


def batches_of(settings: Settings, count: int) -> list[Batch]:
    """The first training batches, without the empty rows that fill them up."""
    stream = training_batches(open_dataset(settings), settings)
    found = []
    for batch, _ in (next(stream) for _ in range(count)):
        found.append(batch.take((batch.src != PAD_ID).any(1).nonzero()[:, 0]))
    stream.close()
    return found


def listed(batch: Batch) -> dict[str, Any]:
    """A batch as JavaScript takes it."""
    sizes = {"S": batch.src.shape[1], "T": batch.tgt_out.shape[1]}
    names = {"src": batch.src, "tgtIn": batch.tgt_in, "tgtOut": batch.tgt_out}
    return sizes | {name: ids.flatten().tolist() for name, ids in names.items()}


# Data and first weights ------------------------------------------------------------------------

FIRST_BATCHES = """({ chosen, count }) => {
  const { config, seed } = learningSettings(payload, chosen);
  const stream = trainingBatches(new TaskDataset(config.data, seed));
  return Array.from({ length: count }, () => listsOfBatch(stream.next().value));
}"""


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("task", TASKS)
def test_batches_and_pairs_are_those_of_the_program(js: Any, task: str, seed: int) -> None:
    chosen = chosen_of(task, seed)
    settings = settings_of(chosen)
    batches = [listed(batch) for batch in batches_of(settings, 60)]
    assert run(js, FIRST_BATCHES, {"chosen": chosen, "count": 60}) == batches
    dataset = open_dataset(settings)
    for count, lengths in ((500, [2, 7]), (50, [8, 12])):
        there = run(
            js,
            """({ chosen, count, lengths }) => {
              const { config, seed } = learningSettings(payload, chosen);
              const pairs = new TaskDataset(config.data, seed).pairs("valid", 0, count, lengths);
              return pairs.map(({ source, target }) => [source, target]);
            }""",
            {"chosen": chosen, "count": count, "lengths": lengths},
        )
        pairs = dataset.pairs("valid", torch.arange(count), tuple(lengths))  # type: ignore[call-arg]
        sides = (pairs.src, pairs.src_length), (pairs.tgt, pairs.tgt_length)
        sources, targets = (list(map(symbols, ids, length)) for ids, length in sides)
        assert there == [list(pair) for pair in zip(sources, targets, strict=True)]


def symbols(ids: torch.Tensor, length: torch.Tensor) -> list[int]:
    return (ids[: int(length)] - FIRST_SYMBOL_ID).tolist()


@pytest.mark.parametrize("lengths", [[1, 4], [5, 16]])
def test_batches_of_other_lengths(js: Any, lengths: list[int]) -> None:
    """Widths above 16 are no longer even, and of the shortest sources there are few. The second
    pool is reached."""
    chosen, count = chosen_of("sort", 3, lengths=lengths), 50 if lengths == [1, 4] else 5
    expected = [listed(batch) for batch in batches_of(settings_of(chosen), count)]
    assert run(js, FIRST_BATCHES, {"chosen": chosen, "count": count}) == expected


OWN_SIZES = (
    {"d_model": 24, "n_heads": 3, "n_decoder_layers": 2, "d_ff": 40},
    {"d_model": 8, "n_heads": 1, "d_ff": 8},
)
"""The numbers of their embeddings are no multiples of 16, in which torch draws them."""


FIRST_WEIGHTS = """(chosen) => {
  const parameters = parametersOf(learningSettings(payload, chosen).config.model, 13);
  const weights = firstWeights(parameters, chosen.seed);
  return parameters.flatMap(([name]) => [...weights[name]]);
}"""


@pytest.mark.parametrize("model", ["small", "textbook", *OWN_SIZES], ids=str)
def test_first_weights_are_those_of_torch(js: Any, model: Any) -> None:
    chosen = chosen_of(seed=2**31 - 1 if model == "small" else 1, model=model)
    parameters = dict(trainer_of(settings_of(chosen)).model.named_parameters())
    names = run(
        js,
        "(chosen) => parametersOf(learningSettings(payload, chosen).config.model, 13)",
        chosen,
    )
    assert names == [[name, list(values.shape)] for name, values in parameters.items()]
    theirs = np.concatenate([values.detach().flatten() for values in parameters.values()])
    assert np.abs(np.array(run(js, FIRST_WEIGHTS, chosen)) - theirs).max() <= 1e-6


# Gradients and steps ---------------------------------------------------------------------------


def rounded(model: torch.nn.Module, noise: float = 0.0) -> str:
    """Round the weights to fp32, perhaps after they were shaken; returns them as text."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw) * noise)
            parameter.copy_(parameter.float())
    return packed({name: x.detach().float() for name, x in model.named_parameters()}, "<f4")


def padded_batches(settings: Settings) -> list[Batch]:
    """The three of twenty with the most pads."""
    found = batches_of(settings, 20)
    return sorted(found, key=lambda batch: int((batch.tgt_out == PAD_ID).sum()))[-3:]


GRADIENTS = """({ chosen, kernels, text, batches }) => {
  const learner = learnerOf(chosen, kernels, text);
  return batches.map((batch) => {
    const loss = learner.gradientsOf(batchOfLists(batch)), gradients = learner.gradients();
    return [loss, learner.parameters.map(([name]) => [...gradients[name]])];
  });
}"""


def expected_gradients(trainer: Trainer, batches: list[Batch]) -> list[tuple[float, list[Any]]]:
    """Of each batch, the mean loss and the gradients by autograd."""
    found = []
    for batch in batches:
        trainer.optimizer.zero_grad()
        loss = float(trainer.backward([batch], batch.target_tokens)) / batch.target_tokens
        gradients = [x.grad.flatten().numpy() for x in trainer.model.parameters()]  # type: ignore[union-attr]
        found.append((loss, gradients))
    return found


@pytest.mark.parametrize("noise", [0.0, 0.1], ids=["first", "shaken"])
@pytest.mark.parametrize("off", STATES)
def test_gradients_are_those_of_autograd(js: Any, off: str, noise: float) -> None:
    """At shaken weights too, because biases of 0 hide a wrong slice of them."""
    chosen = chosen_of("sort", 0, off, model=TINY)
    trainer = trainer_of(settings_of(chosen))
    text, batches = rounded(trainer.model, noise), padded_batches(trainer.settings)
    names = [name for name, _ in trainer.model.named_parameters()]
    expected = expected_gradients(trainer, batches)
    given = {"chosen": chosen, "text": text, "batches": [listed(batch) for batch in batches]}
    for kernels, near in (("fp64", 1e-12), ("WebAssembly", 2e-6)):
        found = run(js, GRADIENTS, given | {"kernels": kernels})
        for (loss, gradients), (their_loss, theirs) in zip(found, expected, strict=True):
            assert loss == pytest.approx(their_loss, rel=near)
            for name, ours, their in zip(names, gradients, theirs, strict=True):
                apart = np.linalg.norm(np.array(ours) - their)
                assert apart <= near * (np.linalg.norm(their) + 0.01), (name, kernels)


def losses_of(trainer: Trainer, batches: list[Batch]) -> list[float]:
    """The losses of real updates, in nats a token."""
    losses = []
    for step, batch in enumerate(batches, 1):
        lr = learning_rate(step, trainer.settings.train)
        loss, _ = trainer.update([batch], batch.target_tokens, lr)
        losses.append(float(loss) / batch.target_tokens)
    return losses


LOSSES = """({ chosen, kernels, text, batches }) => {
  const learner = learnerOf(chosen, kernels, text);
  const { train } = learningSettings(payload, chosen).config;
  return batches.map((batch) => learner.learn(batchOfLists(batch), train));
}"""


@pytest.mark.parametrize("off", STATES)
def test_steps_are_those_of_the_real_update(js: Any, off: str) -> None:
    """Twenty steps, in most of which the rate falls: clip, AdamW and schedule."""
    chosen = chosen_of(off=off, model=TINY, steps=20)
    trainer = trainer_of(settings_of(chosen))
    text, batches = rounded(trainer.model), batches_of(trainer.settings, 20)
    given = {"chosen": chosen, "kernels": "fp64", "text": text}
    found = run(js, LOSSES, given | {"batches": [listed(batch) for batch in batches]})
    expected = losses_of(trainer, batches)
    assert np.abs(np.array(found) - np.array(expected)).max() <= 1e-12
    assert expected[-1] < expected[0] - 0.1


def test_steps_of_textbook(js: Any) -> None:
    chosen = chosen_of(model="textbook", steps=3)
    trainer = trainer_of(settings_of(chosen))
    text, batches = rounded(trainer.model), batches_of(trainer.settings, 3)
    given = {"chosen": chosen, "kernels": "fp64", "text": text}
    found = run(js, LOSSES, given | {"batches": [listed(batch) for batch in batches]})
    assert np.abs(np.array(found) - np.array(losses_of(trainer, batches))).max() <= 1e-12


def test_plain_javascript_takes_the_same_steps(js: Any) -> None:
    """For twelve steps: rounding is another, and grows from step to step."""
    chosen = chosen_of(model=TINY)
    trainer = trainer_of(settings_of(chosen))
    batches = [listed(batch) for batch in batches_of(trainer.settings, 12)]
    given = {"chosen": chosen, "text": rounded(trainer.model), "batches": batches}
    quick, plain, exact = (
        np.array(run(js, LOSSES, given | {"kernels": kernels}))
        for kernels in ("WebAssembly", "plain", "fp64")
    )
    assert np.abs(quick - plain).max() <= 1e-5 and np.abs(quick - exact).max() <= 1e-5


def test_the_schedule_is_that_of_the_program(js: Any) -> None:
    for steps in (1, 2, 50, 400, 1000):
        chosen = chosen_of(steps=steps)
        there = run(
            js,
            """(chosen) => {
              const { train } = learningSettings(payload, chosen).config;
              return Array.from({ length: chosen.steps }, (_, n) => learningRate(n + 1, train));
            }""",
            chosen,
        )
        train = settings_of(chosen).train
        assert there == pytest.approx([learning_rate(n, train) for n in range(1, steps + 1)])


# Kernels ---------------------------------------------------------------------------------------


def test_the_kernels_in_the_package_are_those_of_the_text() -> None:
    wasmtime = pytest.importorskip("wasmtime")
    text = (KERNELS / "kernels.wat").read_text()
    assert (KERNELS / "kernels.wasm").read_bytes() == bytes(wasmtime.wat2wasm(text))


def test_products_of_odd_shapes(js: Any) -> None:
    """Every shape, transposed or not, added or not, against fp64. What is beside c stays."""
    furthest = js.evaluate(
        """() => {
          const twister = new MersenneTwister(1), COUNT = 2500;
          const values = twister.uniforms(COUNT, 1), flags = [false, true];
          let furthest = 0;
          const compare = (rows, inner, columns, isTransposed, adds) => {
            const [tall, wide] = isTransposed ? [inner, rows] : [rows, inner];
            const matrix = { at: 8, rows: tall, columns: wide, step: eights(wide) + 8, across: 1 };
            const a = isTransposed ? transposed(matrix) : matrix;
            const wider = eights(columns);
            const b = { at: 600, rows: inner, columns, step: wider, across: 1 };
            const c = { at: 1200, rows, columns, step: wider + 16, across: 1 };
            const [right, quick] = ["fp64", "WebAssembly"].map((kind) => {
              const kernels = kernelsFor(COUNT, kind);
              kernels.numbers.set(values);
              kernels.product(a, b, c, adds);
              return kernels.numbers;
            });
            for (let at = 0; at < COUNT; at++) {
              const row = Math.floor((at - c.at) / c.step), column = (at - c.at) % c.step;
              const isInside = row >= 0 && row < rows && column < wider;
              if (isInside && column < columns) {
                furthest = Math.max(furthest, Math.abs(right[at] - quick[at]));
              } else if (!isInside && quick[at] !== Math.fround(values[at])) {
                throw new Error(`wrote beside: ${[rows, inner, columns, isTransposed, adds]}`);
              }
            }
          };
          for (const rows of [1, 2, 3, 4, 5, 8, 11]) {
            for (const inner of [1, 2, 7, 16]) {
              for (const columns of [1, 5, 8, 13, 24]) {
                for (const isTransposed of flags) {
                  for (const adds of flags) compare(rows, inner, columns, isTransposed, adds);
                }
              }
            }
          }
          return furthest;
        }"""
    )
    assert 0 < furthest <= 2e-6


def test_the_other_kernels(js: Any) -> None:
    assert js.evaluate(
        """() => {
          const values = [-2, -0, 0, 3, NaN, 1e-30, -1e-30, 5, 1, 2, 3, 4, 5, 6, 7, 8];
          const said = ["plain", "WebAssembly"].map((kind) => {
            const kernels = kernelsFor(64, kind), { numbers } = kernels;
            numbers.set(values);
            const x = { at: 0, rows: 1, columns: 8, step: 8, across: 1 };
            kernels.reluBack({ ...x, at: 8 }, x);
            kernels.relu({ ...x, columns: 4, step: 4 });
            const from = { at: 8, rows: 2, columns: 3, step: 4, across: 1 };
            kernels.transpose(from, { at: 32, rows: 3, columns: 2, step: 8, across: 1 });
            return numbers.slice(0, 64).map((value) => value + 0).join();
          });
          return said[0] === said[1] && said[0];
        }"""
    )


def test_the_kernels_are_quicker_than_javascript(js: Any) -> None:
    """By far; a busy machine slows both down."""
    quick, plain = js.evaluate(
        """() => ["WebAssembly", "plain"].map((kind) => {
          const matrix = (at, rows, columns) => ({ at, rows, columns, step: columns, across: 1 });
          const kernels = kernelsFor(80000, kind), times = [];
          const a = matrix(0, 256, 64), b = matrix(20000, 64, 64), c = matrix(40000, 256, 64);
          for (let n = 0; n < 40; n++) {
            const began = performance.now();
            for (let m = 0; m < 3; m++) kernels.product(a, b, c);
            times.push(performance.now() - began);
          }
          return Math.min(...times);
        })"""
    )
    assert quick <= 0.6 * plain


# Counting --------------------------------------------------------------------------------------

HALF_LEARNED = chosen_of("copy", model=TINY | {"n_decoder_layers": 1}, lengths=[1, 3])

LEARN = """({ chosen, steps }) => {
  const { config, seed } = learningSettings(payload, chosen);
  const learner = learnerOf(chosen), stream = trainingBatches(new TaskDataset(config.data, seed));
  learner.load(firstWeights(learner.parameters, seed));
  for (let n = 0; n < steps; n++) learner.learn(stream.next().value, config.train);
  return learner.parameters.map(([name]) => [...learner.weights()[name]]);
}"""


def half_learned(js: Any, off: str) -> tuple[dict[str, Any], str]:
    """What was chosen, and weights that write some answers right and some wrong."""
    chosen = HALF_LEARNED | {"learn": {off: False} if off else {}}
    weights = run(js, LEARN, {"chosen": chosen, "steps": 120})
    tensors = {str(n): torch.tensor(values) for n, values in enumerate(weights)}
    return chosen, packed(tensors, "<f4")


COUNTS = """({ chosen, text, pads }) => {
  const { config, seed } = learningSettings(payload, chosen);
  const learner = learnerOf(chosen, "fp64", text);
  return byLength(new TaskDataset(config.data, seed).pairs("valid", 0, 60)).flatMap((pairs) =>
    judgedPairs(learner, pairs, pads).map(({ alone, given }) => [alone, given]));
}"""

COUNTS_OF_MODEL = """({ chosen, text, pads }) => {
  const { about, switches, config, seed } = learningSettings(payload, chosen);
  const model = new Model(about, unpacked(text, "f4", parametersOf(config.model, 13)));
  const padding = Array(pads).fill(PAD);
  return byLength(new TaskDataset(config.data, seed).pairs("valid", 0, 60)).flat().map((pair) => {
    const answer = idsOf(pair.target), labels = [...answer, EOS];
    const encoded = model.encode([...idsOf(pair.source), EOS, ...padding], switches);
    const written = model.greedy(encoded, switches, labels.length).map(({ id }) => id);
    const { logits } = model.decode([BOS, ...answer, ...padding], encoded, switches);
    const told = labels.map((_, t) => likeliest(rowOf(logits, t, 13)));
    return [written.join() === labels.join(), told.join() === labels.join()];
  });
}"""
"""By the model that keeps every step: each answer is written symbol by symbol."""


@pytest.mark.parametrize("off", ["", "causal", "pad"])
def test_counts_are_those_of_writing_symbol_by_symbol(js: Any, off: str) -> None:
    chosen, text = half_learned(js, off)
    for pads in (0, 2):
        given = {"chosen": chosen, "text": text, "pads": pads}
        counts = run(js, COUNTS, given)
        assert counts == run(js, COUNTS_OF_MODEL, given)
        assert off == "causal" or 0 < sum(alone for alone, _ in counts) < 60
        assert 0 < sum(told for _, told in counts) < 60


# A whole learning ------------------------------------------------------------------------------

TOLD = """async ([chosen, kernels]) => {
  const told = await allTold(chosen, kernels);
  const ofType = (type) => told.filter((message) => message.type === type);
  return JSON.stringify({
    types: told.map(({ type }) => type), made: ofType("made"), counted: ofType("counted"),
    losses: ofType("step").flatMap(({ losses }) => losses), done: ofType("done"),
    steps: ofType("weights").map(({ step }) => step),
    sums: ofType("weights").map(({ tensors }) =>
      Object.values(tensors).map((values) => values.reduce((a, b) => a + b, 0))),
  });
}"""


def told_of(page: Any, chosen: dict[str, Any], kernels: str = "best") -> dict[str, Any]:
    """What a learning tells from its start to its end."""
    return json.loads(page.evaluate(TOLD, [chosen, kernels]))


def test_what_a_learning_tells(js: Any) -> None:
    chosen = chosen_of(model=TINY, steps=60)
    told = told_of(js, chosen)
    assert told["types"][:3] == ["made", "weights", "counted"]
    assert told["types"][-3:] == ["counted", "weights", "done"]
    (made,) = told["made"]
    parameters = trainer_of(settings_of(chosen)).model.parameters()
    assert made["engine"] == "WebAssembly" and made["where"] == "worker"
    assert made["parameters"] == sum(x.numel() for x in parameters)
    assert len(told["losses"]) == 60 and told["steps"] == [0, 60]
    assert told["losses"][-1] < told["losses"][0]
    assert [counted["step"] for counted in told["counted"]] == list(range(0, 61, 10))
    for counted in told["counted"]:
        assert counted["of"] == 500 == counted["seen"]["of"] + counted["unseen"]["of"]
        assert counted["alone"] == counted["seen"]["alone"] + counted["unseen"]["alone"]


def test_pause_goes_on_to_the_same_bits(js: Any) -> None:
    chosen = chosen_of(model=TINY, steps=60)
    there = js.evaluate(
        """async (chosen) => {
          const settings = learningSettings(payload, chosen), losses = [];
          const heard = {};
          const next = (type) => new Promise((resolve) => { heard[type] = resolve; });
          const learning = startLearning(settings, (message) => {
            if (message.type === "step") losses.push(...message.losses);
            heard[message.type]?.(message);
          });
          await next("counted");
          learning.pause();
          const { step } = await next("paused");
          await new Promise((resolve) => setTimeout(resolve, 60));
          const waited = losses.length;
          learning.weights();  // questions are answered in a pause, and change nothing
          learning.count({ of: 20 });
          await next("counted");
          learning.goOn();
          learning.goOn();
          await next("done");
          learning.stop();
          return { step, waited, losses };
        }""",
        chosen,
    )
    assert 0 <= there["step"] < 60 and there["waited"] == there["step"]
    assert there["losses"] == told_of(js, chosen)["losses"]


def test_the_longest_sources_are_counted(js: Any) -> None:
    """There is memory for them, and for the widest batch of training."""
    there = js.evaluate(
        """async (chosen) => {
          const settings = learningSettings(payload, chosen);
          return new Promise((resolve, reject) => {
            const learning = startLearning(settings, (message) => {
              if (message.type === "failed") reject(new Error(message.message));
              if (message.type === "done") learning.count({ lengths: [30, 32], pads: 8, of: 30 });
              if (message.type === "counted" && message.asked) {
                learning.stop();
                resolve(message);
              }
            });
            for (const wrong of [{ lengths: [1, 33] }, { pads: 9 }, { pads: -1 }, { of: 0.5 }]) {
              try {
                learning.count(wrong);
                reject(new Error("counted what it cannot"));
              } catch { /* it was refused */ }
            }
          });
        }""",
        chosen_of(model=TINY | {"n_encoder_layers": 4}, steps=2, lengths=[16, 16]),
    )
    assert (there["of"], there["lengths"], there["pads"]) == (30, [30, 32], 8)


def test_without_a_worker_it_learns_in_the_page(js: Any) -> None:
    """The same numbers."""
    chosen = chosen_of(model=TINY, steps=30)
    js.evaluate("() => { window.Kept = Worker; window.Worker = undefined; }")
    told = told_of(js, chosen)
    js.evaluate("() => { window.Worker = window.Kept; }")
    assert told["made"][0]["where"] == "page"
    there = told_of(js, chosen)
    assert there["made"][0]["where"] == "worker"
    assert told["losses"] == there["losses"] and told["sums"] == there["sums"]


def test_a_learning_that_fails_says_so(js: Any) -> None:
    said = js.evaluate(
        """(chosen) => new Promise((resolve) => {
          const settings = learningSettings(payload, chosen);
          settings.config.train.lr = 1e30;
          startLearning(settings, (message) => {
            if (message.type === "failed") resolve(message.message);
          });
        })""",
        chosen_of(model=TINY, steps=60),
    )
    assert "not finite at step" in said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seed": -3}, "the seed is a whole number from 0 to 2,147,483,647"),
        ({"seed": 1.5}, "the seed is a whole number"),
        ({"lengths": [5, 4]}, "the longest length is a whole number from 5"),
        ({"lengths": [1, 99]}, "the longest length is a whole number from 1 to 16"),
        ({"steps": 0}, "the number of steps"),
        ({"model": TINY | {"d_model": 20}}, "each head has a width of 8"),
        ({"model": TINY | {"d_ff": 20}}, "the inner width is a multiple of 8"),
        ({"model": TINY | {"n_heads": 5}}, "the number of heads is a whole number from 1 to 2"),
        ({"model": "large"}, "no model is called large"),
        ({"task": "parity"}, "no task is called parity"),
        ({"task": "toString"}, "no task is called toString"),
        ({"model": "constructor"}, "no model is called constructor"),
    ],
    ids=str,
)
def test_what_cannot_be_learned_is_refused(js: Any, wrong: dict[str, Any], said: str) -> None:
    told = js.evaluate(
        """(chosen) => {
          try {
            learningSettings(payload, chosen);
          } catch (error) {
            return error.message;
          }
        }""",
        chosen_of() | wrong,
    )
    assert told.startswith(said)


# In a page of a file ---------------------------------------------------------------------------

PAGE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>It learns</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src
'unsafe-inline' %s; worker-src blob:; img-src data:"><link rel="icon" href="data:,"></head>
<body><h1>It learns</h1>
<script id="engine">%s</script><script>%s</script>
<script>document.body.dataset.ready = "yes"</script></body></html>"""


def write_page(path: Path, may_compile: bool = True) -> Path:
    """A page that learns, under a policy that lets it load nothing."""
    helpers = HELPERS % json.dumps(learning_payload())
    policy = "'wasm-unsafe-eval'" if may_compile else ""
    path.write_text(PAGE % (policy, engine_script(), helpers))
    return path


def shares(counted: dict[str, Any]) -> tuple[float, float]:
    return counted["alone"] / counted["of"], counted["given"] / counted["of"]


def test_small_learns_to_copy_from_a_file(opened: Callable[..., Any], tmp_path: Path) -> None:
    """It asks for nothing and the browser complains of nothing, which `opened` sees to."""
    page = opened(write_page(tmp_path / "learn.html"))
    told = told_of(page, chosen_of("copy", steps=400))
    alone, given = shares(told["counted"][-1])
    assert alone == given >= 0.99
    assert told["made"][0] == {
        "type": "made",
        "engine": "WebAssembly",
        "where": "worker",
        "parameters": 30112,
        "steps": 400,
    }


def test_learned_without_the_causal_mask(opened: Callable[..., Any], tmp_path: Path) -> None:
    """It copies the answer that it is given, and writes nothing right alone."""
    page = opened(write_page(tmp_path / "learn.html"))
    told = told_of(page, chosen_of("reverse", off="causal", steps=300, lengths=[3, 5]))
    alone, given = shares(told["counted"][-1])
    assert given >= 0.9 and alone <= 0.1


def test_where_web_assembly_is_refused(opened: Callable[..., Any], tmp_path: Path) -> None:
    page = opened(write_page(tmp_path / "learn.html", may_compile=False))
    told = told_of(page, chosen_of(model=TINY, steps=12))
    assert told["made"][0]["engine"] == "plain JavaScript"
    assert told["losses"][-1] < told["losses"][0]


# What leaves the page --------------------------------------------------------------------------

LEARNED: list[dict[str, Any]] = [
    chosen_of(),
    chosen_of("copy", 7, "causal"),
    chosen_of("sort", 1, "places", model="textbook", lengths=[3, 9], steps=500),
    chosen_of("reverse", 2, "pad", model=TINY | {"n_heads": 1}),
]


@pytest.mark.parametrize("chosen", LEARNED, ids=str)
def test_the_config_and_the_command_are_of_the_same_run(
    js: Any, chosen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, command = run(
        js,
        """(chosen) => {
          const settings = learningSettings(payload, chosen);
          return [configOf(settings), commandOf(settings)];
        }""",
        chosen,
    )
    (tmp_path / "config.yaml").write_text(config)
    train = settings_of(chosen).train.model_copy(update={"precision": "auto"})
    expected = settings_of(chosen).model_copy(update={"train": train})
    assert resolve(load_config(tmp_path / "config.yaml")) == expected
    words = shlex.split(command)
    assert words[:3] == ["toytrans", "train", "--config"]
    monkeypatch.chdir(ROOT)
    sets = [after for before, after in pairwise(words) if before == "--set"]
    options: dict[str, Any] = {"seed": None, "fault": None}
    for before, after in pairwise(words):
        if before == "--seed":
            options["seed"] = int(after)
        if before == "--break":
            options["fault"] = after
    assert resolve(load_config(Path(words[3]), sets, options)) == expected


def test_no_config_says_that_several_parts_are_missing(js: Any) -> None:
    chosen = chosen_of() | {"learn": {"causal": False, "scale": False}}
    assert run(
        js,
        """(chosen) => {
          const settings = learningSettings(payload, chosen);
          return [configOf(settings), commandOf(settings)];
        }""",
        chosen,
    ) == [None, None]


def test_a_result_is_one_line_that_exercise_grade_reads(js: Any, tmp_path: Path) -> None:
    several = chosen_of("sort") | {"learn": {"causal": False, "scale": False}}
    counted = {"alone": 3, "given": 500, "of": 500, "step": 620}
    lines = [
        run(
            js,
            "([chosen, counted]) => resultLine(learningSettings(payload, chosen), counted)",
            [chosen, counted],
        )
        for chosen in [*LEARNED, several]
    ]
    assert lines[1] == (
        "copy, small, seed 7, learned without the causal mask: answer given 1.000, alone 0.006, "
        "620 steps"
    )
    (tmp_path / "results.txt").write_text("\n".join([*lines, f"Ada: {lines[0]}", "no result"]))
    found, unread = read_results(tmp_path / "results.txt")
    usual = ("", 1.0, 0.006, 620)
    assert [(row.lengths, row.given, row.alone, row.steps) for row in found if not row.lengths] == [
        usual
    ] * 5
    assert [row.task for row in found] == ["reverse", "copy", "sort", "reverse", "sort", "reverse"]
    assert [row.seed for row in found] == [0, 7, 1, 2, 0, 0]
    assert [row.student for row in found] == ["", "", "", "", "", "Ada"]
    assert found[2].lengths == "3 to 9" and found[2].model == "textbook"
    assert found[3].model == "d 16, 1 head, 1+2 layers, d_ff 24"
    assert [row.numbers for row in found[2:4]] == [
        sum(x.numel() for x in trainer_of(settings_of(chosen)).model.parameters())
        for chosen in LEARNED[2:]
    ]
    assert [row.without for row in found] == [
        "",
        "the causal mask",
        "position codes",
        "the pad mask",
        "the causal mask and the scale",
        "",
    ]
    assert [(line.number, line.text) for line in unread] == [(7, "no result")]


SAVED = """async (chosen) => {
  const settings = learningSettings(payload, chosen), told = await allTold(chosen);
  const last = (type) => told.filter((message) => message.type === type).at(-1);
  const weights = last("weights"), bytes = modelFile(settings, weights);
  const model = new Model(settings.about, weights.tensors);
  const pairs = new TaskDataset(settings.config.data, settings.seed).pairs("valid", 0, 60);
  const written = pairs.map(({ source }) =>
    model.greedy(model.encode([...idsOf(source), EOS], settings.switches), settings.switches)
      .map(({ id }) => id));
  return {
    config: configOf(settings), counted: last("counted"), written,
    model: btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")),
  };
}"""


@pytest.mark.parametrize("off", ["", "causal"])
def test_a_saved_model_is_a_run(js: Any, off: str, here: Path, command: Command) -> None:
    """Half learned, so that some pairs are right and some are not: the program counts as the page
    does, and writes what model.js writes with the same weights."""
    chosen = chosen_of("copy", off=off, model=TINY | {"n_decoder_layers": 1}, steps=150)
    saved = js.evaluate(SAVED, chosen | {"lengths": [1, 3]})
    Path("saved").mkdir()
    Path("saved/config.yaml").write_text(saved["config"])
    Path("saved/model.safetensors").write_bytes(base64.b64decode(saved["model"]))
    run = load(Path("saved"), device="cpu")
    scores = run.measure(Measure(split="valid", examples=500))
    counted = saved["counted"]
    alone, given = (
        round(scores[name] * 500) for name in ("free_exact_match", "forced_exact_match")
    )
    assert (alone, given) == (counted["alone"], counted["given"]) and 0 < alone <= given < 500
    dataset = open_dataset(run.settings)
    sources = run.vocabulary.decode
    pairs = dataset.pairs("valid", torch.arange(60))
    outputs = run.translate([" ".join(sources(row)) for row in pairs.src.tolist()])
    theirs = [" ".join(sources([id for id in ids if id != EOS_ID])) for ids in saved["written"]]
    assert theirs == outputs
    answer = command("eval", "saved", "--split", "valid", "--examples", "500", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["parts"]["all"]["free_exact_match"] == scores["free_exact_match"]
    assert command("check", "saved", "--only", "future").code == int(off == "causal")
    assert command("live", "saved", "--out", "saved.html").code == 0
    seen = [pair[2] for pair in data_in(Path("saved.html"))["pairs"]]
    assert sum(seen) == counted["seen"]["of"]
