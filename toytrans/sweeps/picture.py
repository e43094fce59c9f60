"""A comparison as a picture. It needs matplotlib, extra `plot`."""

from io import BytesIO
from textwrap import wrap
from typing import TYPE_CHECKING

from toytrans.errors import UserError, how_to_install
from toytrans.sweeps.comparison import Comparison
from toytrans.sweeps.measure import OF_RUN, PARTS, SHARES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOTS = 150


def check_matplotlib() -> None:
    """Raise UserError where matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UserError(
            "pictures are drawn with matplotlib, which is not installed; "
            f"{how_to_install('matplotlib')}"
        ) from None


def draw(compared: Comparison, title: str, format: str = "png") -> bytes:
    """Mean and 95% interval of each group: over lengths where these were measured, else beside the
    value of every seed. Groups with letters are written out below. Raises UserError without
    matplotlib."""
    check_matplotlib()
    import matplotlib.style
    from matplotlib.figure import Figure

    of_ours = {"text.parse_math": False, "svg.hashsalt": "toytrans"}
    with matplotlib.style.context(["default", of_ours]):
        meanings = [
            line for text in compared.legend() for line in wrap(text, 100, subsequent_indent="    ")
        ]
        figure = Figure((7, 4 + 0.15 * len(meanings)), layout="constrained")
        if meanings:
            figure.supxlabel("\n".join(meanings), x=0.01, ha="left", fontsize=8)
        axes = figure.subplots()
        axes.set_title(title.encode(errors="backslashreplace").decode(), fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        over_lengths = compared.measure.lengths and compared.metric not in OF_RUN
        (_draw_curves if over_lengths else _draw_seeds)(axes, compared)
        picture = BytesIO()
        metadata = {"Date": None} if format == "svg" else {}
        figure.savefig(picture, dpi=DOTS, format=format, metadata=metadata)
    return picture.getvalue()


def _draw_curves(axes: "Axes", compared: Comparison) -> None:
    """The metric against length: a line for the mean, a band for its interval."""
    from matplotlib.ticker import MaxNLocator

    for group in compared.groups:
        if curve := group.curve(compared.metric):
            middles = [(span.low + span.high) / 2 for span in curve]
            summaries = list(curve.values())
            (line,) = axes.plot(middles, [s.mean for s in summaries], marker=".", label=group.name)
            low = [s.mean if s.low is None else s.low for s in summaries]
            high = [s.mean if s.high is None else s.high for s in summaries]
            axes.fill_between(middles, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
            axes.legend(frameon=False, title=compared.key)
    results = [member.result for member in compared.members if member.result]
    measured = {span.shortest for result in results for span in result.spans}
    for shortest, longest in {result.train_length for result in results}:
        for end in (shortest - 0.5, longest + 0.5):
            if min(measured) < end < max(measured):
                axes.axvline(end, color="0.6", linestyle=":", linewidth=1)
    side = "source" if compared.measure.side == "src" else "target"
    axes.set_xlabel(f"{side} length (dotted: the ends of training; bands: 95% intervals)")
    axes.set_ylabel(compared.label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if compared.metric in SHARES:
        axes.set_ylim(-0.02, 1.02)


def _draw_seeds(axes: "Axes", compared: Comparison) -> None:
    """A row for each group: every seed, and the mean with its interval."""
    metric, groups, parts = compared.metric, compared.groups, compared.parts
    part = "in_range" if "in_range" in parts else parts[0] if parts else "all"
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
