"""`toytrans demo`: one idea of attention in numbers."""

from pathlib import Path

import typer

from toytrans.cli.commands.learn import DEMOS
from toytrans.cli.common import (
    run_or_config,
)
from toytrans.cli.explain import print_rows
from toytrans.cli.inspected import batch_of
from toytrans.cli.tables import print_tables
from toytrans.cli.terminal import Progress, output, show
from toytrans.errors import UserError, did_you_mean
from toytrans.inspection import demos
from toytrans.model.manual_backward.gradients import TOLERANCE, compare, train_twice
from toytrans.table import Cell, Table, TextColumn

OWN_NUMBERS = {
    "sdpa": demos.sdpa,
    "projections": demos.projections,
    "heads": demos.heads,
    "scale": demos.scale,
}
"""Those that show numbers of their own, and what makes their tables."""

SEEDS = 3
"""Random draws of each gradient; the worst is shown."""

TRAINED_STEPS, SAME_LOSS = 200, 1e-9
"""How long a model is trained on derived gradients, and how far its loss may be from autograd's."""


def demo(
    name: str | None,
    run: Path | None,
    config: Path | None,
    checkpoint: str,
    trust_code: bool,
) -> None:
    """Show one idea of attention in numbers."""
    if name is None:
        print_rows("toytrans demo NAME shows one idea", DEMOS)
        return
    if name not in DEMOS:
        raise UserError(f"no demo {name!r}; {did_you_mean(name, DEMOS)}")
    run, config = run_or_config(run, config)
    if name == "decoding":
        inspected = batch_of(run, config, checkpoint=checkpoint, trust_code=trust_code)
        print_tables(demos.decoding(inspected, inspected.most_padded))
    elif run or config:
        raise UserError(f"demo {name} shows numbers of its own; give no run and no config")
    elif name in OWN_NUMBERS:
        print_tables(OWN_NUMBERS[name]())
    else:
        agree = _compare_gradients()
        if not (_train_twice() and agree):
            raise typer.Exit(1)


def _compare_gradients() -> bool:
    """One line per gradient, grouped by operation. Returns whether all agree."""
    compared, rows, before = compare(SEEDS, Progress()), list[list[str]](), ""
    for each in compared:
        operation = Cell("" if each.operation == before else each.operation, "strong")
        shape = " ".join(map(str, each.shape)) or "one number"
        differences = (f"{each.absolute:.1e}", f"{each.relative:.1e}")
        verdict = "PASS" if each.passed else "FAIL"
        rows.append([operation, each.of, shape, *differences, Cell(verdict, verdict)])
        before = each.operation
    texts = map(TextColumn, ("operation", "gradient of", "shape"))
    show(Table("", [*texts, "absolute", "relative", ""], rows))
    failed = sum(not each.passed for each in compared)
    output().print(
        "largest difference from autograd, absolute and divided by the largest number\n"
        f"PASS: both below {TOLERANCE:.0e}; fp64, the worst of {SEEDS} seeds\n"
        f"{len(compared) - failed} passed, {failed} failed",
        soft_wrap=True,
    )
    return not failed


def _train_twice() -> bool:
    """The losses of a training on autograd's gradients and on those derived by hand, side by side.
    Returns whether they are the same."""
    Progress()(f"training, {TRAINED_STEPS} steps")
    trained = train_twice(TRAINED_STEPS)
    shown = (1, *range(TRAINED_STEPS // 4, TRAINED_STEPS + 1, TRAINED_STEPS // 4))
    rows = [
        (str(step), f"{trained.autograd[step - 1]:.4f}", f"{trained.by_hand[step - 1]:.4f}")
        for step in shown
    ]
    output().print()
    show(Table("", [TextColumn("step"), "loss by autograd", "loss by hand"], rows))
    same = trained.difference < SAME_LOSS
    output().print(
        "a small model that learns to reverse, trained on either; nats per token, fp64\n"
        f"largest difference of any step {trained.difference:.1e}; PASS below {SAME_LOSS:.0e}: "
        f"{'PASS' if same else 'FAIL'}",
        soft_wrap=True,
    )
    return same
