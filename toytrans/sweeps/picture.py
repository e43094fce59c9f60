"""A comparison as a picture."""

from textwrap import wrap
from typing import TYPE_CHECKING

from toytrans.figures import drawn
from toytrans.sweeps.comparison import Comparison
from toytrans.sweeps.measure import OF_RUN, PARTS, is_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(compared: Comparison, title: str, format: str = "png") -> bytes:
    """Mean and 95% interval of each group: over lengths where these were measured, else beside the
    value of every seed. Groups with letters are written out below. Raises UserError without
    matplotlib."""
    legend = [wrap(text, 100, subsequent_indent="    ") for text in compared.legend()]
    meanings = [line for lines in legend for line in lines]

    def fill(figure: "Figure") -> None:
        if meanings:
            figure.supxlabel("\n".join(meanings), x=0.01, ha="left", fontsize=8)
        axes = figure.subplots()
        axes.set_title(title.encode(errors="backslashreplace").decode(), fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        over_lengths = compared.measure.lengths and compared.metric not in OF_RUN
        (_draw_curves if over_lengths else _draw_seeds)(axes, compared)

    return drawn((7, 4 + 0.15 * len(meanings)), fill, format)


def _draw_curves(axes: "Axes", compared: Comparison) -> None:
    """The metric against length: a line for the mean, a band for its interval."""
    from matplotlib.ticker import MaxNLocator

    curves = [group.curve(compared.metric) for group in compared.groups]
    for group, curve in zip(compared.groups, curves, strict=True):
        if curve:
            middles = [(span.low + span.high) / 2 for span in curve]
            summaries = list(curve.values())
            (line,) = axes.plot(middles, [s.mean for s in summaries], marker=".", label=group.name)
            low = [s.mean if s.low is None else s.low for s in summaries]
            high = [s.mean if s.high is None else s.high for s in summaries]
            axes.fill_between(middles, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            axes.legend(frameon=False, title=compared.key)
    measured = [span.low for curve in curves for span in curve]
    for trained in {member.result.train_length for member in compared.members if member.result}:
        for end in (trained[0] - 0.5, trained[1] + 0.5):
            if measured and min(measured) < end < max(measured):
                axes.axvline(end, color="0.6", linestyle=":", linewidth=1)
    side = "source" if compared.measure.side == "src" else "target"
    axes.set_xlabel(f"{side} length (dotted: the ends of training; bands: 95% intervals)")
    axes.set_ylabel(compared.label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if is_share(compared.metric):
        axes.set_ylim(-0.02, 1.02)


def _draw_seeds(axes: "Axes", compared: Comparison) -> None:
    """A row for each group: every seed, and the mean with its interval."""
    metric, groups, parts = compared.metric, compared.groups, compared.parts
    part = "in_range" if "in_range" in parts else [*parts, "all"][0]
    for row, group in enumerate(groups):
        values = list(group.by_seed(part, metric).values())
        axes.plot(values, [row] * len(values), "o", color="0.6", alpha=0.6)
        if summary := group.summary(part, metric):
            axes.plot([summary.mean], [row], "D", color="C0")
            if summary.low is not None and summary.high is not None:
                axes.plot([summary.low, summary.high], [row, row], color="C0", linewidth=2)
    axes.set_yticks(range(len(groups)), [group.name for group in groups])
    axes.invert_yaxis()
    axes.set_ylabel(compared.key)
    axes.set_xlabel(f"{compared.label}, {PARTS[part]}: every seed, mean and 95% interval")
