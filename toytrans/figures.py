"""Pictures in one style, drawn by matplotlib, which the extra `plot` installs."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from toytrans.errors import UserError, how_to_install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS = 150
"""Of an inch."""

Point = tuple[float, float, float, float]
"""A length, a mean, and the ends of its interval."""


def check_matplotlib() -> None:
    """Raise UserError where matplotlib is not installed, or where a variable of the environment
    has a value that it refuses."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UserError(
            "pictures are drawn with matplotlib, which is not installed; "
            f"{how_to_install('matplotlib')}"
        ) from None
    except ValueError as error:  # of MPLBACKEND
        reason = " ".join(str(error).split())
        raise UserError(f"matplotlib: {reason}; unset MPLBACKEND") from None


def drawn(
    inches: tuple[float, float],
    draw: Callable[["Figure"], None],
    format: str = "svg",
) -> bytes:
    """What `draw` draws in a figure, as png or svg. Raises UserError without matplotlib.

    The same drawing gives the same bytes. Text of an SVG stays text, which can be searched and read
    out; a reader's font may have letters that ours lacks.
    """
    check_matplotlib()
    import matplotlib.style
    from matplotlib.figure import Figure

    ours = {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "toytrans"}
    quiet = warnings.catch_warnings(action="ignore")
    with quiet, matplotlib.style.context(["default", ours]):
        figure = Figure(inches, layout="constrained")
        draw(figure)
        picture = BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type") if format == "svg" else ())
        figure.savefig(picture, format=format, dpi=DOTS, metadata=nothing)
    return picture.getvalue()


def draw_lengths(
    axes: "Axes", lines: Mapping[str, Sequence[Point]], trained: Iterable[tuple[int, int]]
) -> None:
    """Curves against length by name: a line for the mean, a band for its interval.

    trained: training lengths, whose ends are dotted where both sides of them were measured.
    """
    from matplotlib.ticker import MaxNLocator

    for name, points in lines.items():
        if points:
            where, means, low, high = zip(*points, strict=True)
            (line,) = axes.plot(where, means, marker=".", label=name)
            axes.fill_between(where, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    measured = [where for points in lines.values() for where, *_ in points]
    for first, last in trained:
        for end in (first - 0.5, last + 0.5):
            if measured and min(measured) < end < max(measured):
                axes.axvline(end, color="0.6", linestyle=":", linewidth=1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
