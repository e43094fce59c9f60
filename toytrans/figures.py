"""Pictures in one style, drawn by matplotlib, which the extra `plot` installs."""

from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Any

from toytrans.errors import UserError, how_to_install

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS = 150
"""Of an inch."""


def check_matplotlib() -> None:
    """Raise UserError where matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UserError(
            "pictures are drawn with matplotlib, which is not installed; "
            f"{how_to_install('matplotlib')}"
        ) from None


def drawn(
    inches: tuple[float, float],
    draw: Callable[["Figure"], None],
    format: str = "svg",
    **settings: Any,
) -> bytes:
    """What `draw` draws in a figure, as png or svg. Raises UserError without matplotlib.

    The same drawing gives the same bytes. Text of an SVG stays text, which can be searched and read
    out. settings: of matplotlib, with `_` for the dots in their names.
    """
    check_matplotlib()
    import matplotlib.style
    from matplotlib.figure import Figure

    ours = {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "toytrans"}
    ours |= {name.replace("_", "."): value for name, value in settings.items()}
    with matplotlib.style.context(["default", ours]):
        figure = Figure(inches, layout="constrained")
        draw(figure)
        picture = BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type") if format == "svg" else ())
        figure.savefig(picture, format=format, dpi=DOTS, metadata=nothing)
    return picture.getvalue()
