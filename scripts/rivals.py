"""Transformer, recurrent and convolutional network side by side: paths, speed, what they learn.

    python scripts/rivals.py [--folder rivals] [--seeds 5] [--jobs 1] [--picture FILE]

Four measurements of models with equal numbers of parameters:
  paths   operations in sequence between two source tokens n places apart
  reach   how much a token moves the encoder's output n places later, fresh weights
  speed   target tokens a second of training by sequence length, all networks in turn in one process
  learn   exact match by length on `reverse`, the same data and steps for every network
The trainings are sweeps below --folder. The same command goes on where it was stopped. The picture
needs matplotlib (extra `plot`).
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import toytrans
from toytrans.config.schema import Config
from toytrans.data.batches import Batch
from toytrans.model.build import build
from toytrans.model.initialisation import count_parameters
from toytrans.model.seq2seq import Seq2Seq
from toytrans.model.transformer import Transformer
from toytrans.sweeps.groups import Group, Member
from toytrans.tokens import BOS_ID, EOS_ID, FIRST_SYMBOL_ID, Vocabulary
from toytrans.training.optimizer import AdamW
from toytrans.training.run import RunFolder
from toytrans.training.step import Update
from toytrans.user_code import SHIPPED

SYMBOLS = 20
NETWORKS: dict[str, dict] = {
    "transformer": {"norm": "pre"},
    "rnn": {"class": f"{SHIPPED}/examples/rnn.py:Recurrent", "d_model": 88},
    "conv": {"class": f"{SHIPPED}/examples/conv.py:Sinusoidal", "d_model": 72},
}
"""Two layers on either side, and within 3% as many parameters as the first."""

LONGEST = 20
CONFIG = {
    "data": {
        "task": "reverse",
        "symbols": SYMBOLS,
        "train_length": [1, 10],
        "test_length": [1, LONGEST],
        "batch_tokens": 512,
        "valid_examples": 300,
    },
    "train": {"max_steps": 1000, "lr": 2e-3, "eval_every": 100, "precision": "fp32"},
}
SOLVED = 0.99
"""Exact match on validation pairs from which a run counts as converged."""

DISTANCES = (1, 2, 4, 8, 16, 32)
LENGTHS = (8, 16, 32, 64, 128)
STEP_TOKENS, ROUNDS = 1024, 7
"""Target tokens of a step that is timed, and how often each is."""

COLOURS = {"transformer": "tab:blue", "rnn": "tab:red", "conv": "tab:green"}


def config(name: str, **model: object) -> Config:
    """The config of one network, some of its model's keys changed."""
    return Config.model_validate(CONFIG | {"model": NETWORKS[name] | model})


def model_of(name: str, seed: int = 0, **model: object) -> Seq2Seq:
    torch.manual_seed(seed)
    symbols = Vocabulary(tuple(map(str, range(SYMBOLS))))
    return build(config(name, **model).model, symbols)


# Paths and reach ------------------------------------------------------------------------------


def influence(model: Seq2Seq, length: int) -> Tensor:
    """How much each source token moves the encoder's output at the last place: (length,), the norm
    of the gradient of a random projection of that output with respect to each embedding."""
    leaves = []

    def leaf(module: torch.nn.Module, given: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    src = torch.randint(FIRST_SYMBOL_ID, FIRST_SYMBOL_ID + SYMBOLS, (8, length))
    hook = model.src_embedding.register_forward_hook(leaf)
    memory = model.encode(src) if isinstance(model, Transformer) else model.read(src)[0][1]
    hook.remove()
    last = memory[:, -1]
    (gradient,) = torch.autograd.grad((last * torch.randn_like(last)).sum(), leaves)
    return gradient.norm(dim=2).mean(0)


def path(name: str, distance: int) -> int:
    """Operations in sequence between two tokens: the fewest encoder layers through which the first
    moves the output of the second; of a recurrent layer, which reaches any, its steps."""
    layers = 1
    while True:
        sizes = {"d_model": 16, "n_encoder_layers": layers}
        if name == "transformer":
            sizes |= {"n_heads": 2, "d_ff": 16}
        if float(influence(model_of(name, **sizes).double(), distance + 1)[0]):
            return layers * distance if name == "rnn" else layers
        layers += 1


def reach(name: str, seeds: int, length: int = 33) -> list[float]:
    """The influence of tokens 0, 1, ... places back, as a share of that of the place's own: the
    geometric mean over seeds."""
    rows = []
    for seed in range(seeds):
        found = influence(model_of(name, seed).double(), length).flip(0)
        rows.append((found / found[0]).log())
    return torch.stack(rows).mean(0).exp().tolist()


# Speed ----------------------------------------------------------------------------------------


def batch(length: int) -> Batch:
    """Sequences without pads, of `length` places each."""
    rows = max(1, STEP_TOKENS // length)
    ids = torch.randint(FIRST_SYMBOL_ID, FIRST_SYMBOL_ID + SYMBOLS, (rows, length - 1))
    end, start = torch.full((rows, 1), EOS_ID), torch.full((rows, 1), BOS_ID)
    ended = torch.cat((ids, end), 1)
    return Batch(ended, torch.cat((start, ids), 1), ended)


def speeds() -> dict[str, list[float]]:
    """Target tokens a second of a whole training step, the median of the rounds, for each length.
    The networks take turns, so that whatever else the machine does meets all of them."""
    names = list(NETWORKS)
    train = config(names[0]).train
    taken: dict[tuple[str, int], list[float]] = {(k, n): [] for k in names for n in LENGTHS}
    updates = {}
    for name in names:
        model = model_of(name).train()
        updates[name] = Update(model, AdamW(model, 0.0), torch.device("cpu"), train, "fp32")
    for number in range(ROUNDS + 1):
        for length in LENGTHS:
            one = batch(length)
            for name, update in updates.items():
                began = time.process_time()
                update([one], lr=1e-3)
                seconds = time.process_time() - began
                if number:  # the first round warms up
                    taken[name, length].append(one.target_tokens / seconds)
    return {name: [statistics.median(taken[name, n]) for n in LENGTHS] for name in names}


# Learning -------------------------------------------------------------------------------------


def learn(folder: Path, seeds: int, jobs: int) -> dict[str, Group]:
    """Every network with every seed, by name."""
    groups = {}
    for name in NETWORKS:
        compared = toytrans.sweep(
            config(name),
            folder / f"reverse-{name}",
            seeds=range(seeds),
            lengths=(1, LONGEST),
            examples=100 * LONGEST,
            jobs=jobs,
        )
        if compared.trouble:
            raise SystemExit("\n".join(f"{path}: {why}" for path, why in compared.trouble.items()))
        (groups[name],) = compared.groups
    return groups


def measured(member: Member) -> Iterator[tuple[int, float]]:
    """Step and exact match of each evaluation of a run."""
    for record in RunFolder.open(member.path).records:
        if "valid_exact_match" in record:
            yield record["step"], record["valid_exact_match"]


def table(groups: dict[str, Group]) -> Table:
    """Every seed: exact match in range and beyond, the step of convergence, seconds."""
    shown = Table("model", title="reverse: exact match, seed by seed")
    for heading in ("1 to 10", f"11 to {LONGEST}", f"step of {SOLVED} on validation"):
        shown.add_column(heading, justify="right")
    for name, group in groups.items():
        members = sorted(group.counted, key=lambda member: member.seeds)
        steps = [next((s for s, v in measured(m) if v >= SOLVED), None) for m in members]
        shown.add_row(
            name,
            " ".join(f"{statistics.fmean(m.between(1, 10)):.3f}" for m in members),
            " ".join(f"{statistics.fmean(m.between(11, LONGEST)):.3f}" for m in members),
            " ".join("-" if step is None else f"{step:,}" for step in steps),
        )
    return shown


# All together ---------------------------------------------------------------------------------


def draw(
    paths: dict[str, list[int]],
    reached: dict[str, list[float]],
    speed: dict[str, list[float]],
    groups: dict[str, Group],
    file: Path,
) -> None:
    """All measurements on one picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(12, 7), layout="constrained")
    for name, colour in COLOURS.items():
        style = {"color": colour, "label": name}
        axes[0, 0].plot(DISTANCES, paths[name], "o-", **style)
        seen = [(n, x) for n, x in enumerate(reached[name]) if x > 0]
        axes[0, 1].plot(*zip(*seen, strict=True), ".-", **style)
        ratio = [a / b for a, b in zip(speed[name], speed["transformer"], strict=True)]
        axes[0, 2].plot(LENGTHS, ratio, "o-", **style)
        for member in groups[name].counted:
            axes[1, 0].plot(*zip(*member.curve.items(), strict=True), linewidth=1, **style)
            axes[1, 1].plot(*zip(*measured(member), strict=True), linewidth=1, **style)
    titles = {
        (0, 0): ("Path between two tokens", "places apart", "operations in sequence"),
        (0, 1): ("Influence of an earlier token, fresh encoder", "places back", "share of its own"),
        (0, 2): ("Training speed, one core", "length", "tokens/s beside the transformer's"),
        (1, 0): ("Reverse: trained on lengths 1 to 10", "length", "exact match"),
        (1, 1): ("Learning: a line a seed", "step", "exact match, validation"),
    }
    for place, (title, across, up) in titles.items():
        axes[place].set(title=title, xlabel=across, ylabel=up)
        axes[place].grid(alpha=0.3)
    axes[0, 0].set_yscale("log", base=2)
    axes[0, 0].set_yticks(DISTANCES, DISTANCES)
    for axis, across in ((axes[0, 0], DISTANCES), (axes[0, 2], LENGTHS)):
        axis.set_xscale("log", base=2)
        axis.set_xticks(across, across)
    axes[0, 1].set_yscale("log")
    axes[0, 2].set_ylim(bottom=0)
    for axis in axes[1, :2]:
        axis.set_ylim(-0.03, 1.03)
    axes[1, 0].axvspan(10.5, LONGEST, color="0.93", zorder=0)
    axes[1, 2].axis("off")
    axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), loc="upper left", fontsize=12)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("rivals"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=110)
    counts = {name: count_parameters(model_of(name)) for name in NETWORKS}
    console.print("parameters:", ", ".join(f"{name} {n:,}" for name, n in counts.items()))
    paths = {name: [path(name, n) for n in DISTANCES] for name in NETWORKS}
    reached = {name: reach(name, given.seeds) for name in NETWORKS}
    shown = Table("model", *map(str, DISTANCES), title="path: operations between tokens apart by")
    for name in NETWORKS:
        shown.add_row(name, *map(str, paths[name]))
    console.print(shown)
    shown = Table("model", *map(str, DISTANCES), title="influence of a token so many places back")
    for name in NETWORKS:
        shown.add_row(name, *(f"{reached[name][n]:.2g}" for n in DISTANCES))
    console.print(shown)
    groups = learn(given.folder, given.seeds, given.jobs)
    console.print(table(groups))
    speed_file = given.folder / "speed.json"
    if not speed_file.exists():
        speed_file.write_text(json.dumps(speeds()))
    speed: dict[str, list[float]] = json.loads(speed_file.read_text())
    shown = Table("model", *map(str, LENGTHS), title="training, target tokens a second by length")
    for name in NETWORKS:
        shown.add_row(name, *(f"{value:,.0f}" for value in speed[name]))
    console.print(shown)
    if given.picture:
        draw(paths, reached, speed, groups, given.picture)


if __name__ == "__main__":
    main()
