"""One chart as SVG. It is written by hand, so that a page needs no other library.

Lines of points -> the spans of both axes -> places in the picture -> SVG, whose text stays text: it
can be searched, and is read out.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup

from toytrans.errors import printable

Point = tuple[float, float]
"""Where something was measured, and the value."""

WIDTH, HEIGHT = 600.0, 276.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 590.0, 10.0, 222.0
"""The sides of the plot in a picture of that size; labels stand around it."""

LINE, LETTER = 16.0, 6.2
"""The height of a line of text, and the width that a letter takes about."""

COLOURS = ("#1f77b4", "#d95f02", "#2ca02c", "#c2185b", "#7b4fb5", "#8c564b", "#5f6b6d", "#8a8a00")
"""Of lines, in their order; then from the first again."""


class Line(NamedTuple):
    """One line of a chart.

    name: as the legend has it; empty = not in it. colour: a number, so that the lines of one run
    have one. band: the places, and the ends of an interval there.
    """

    name: str
    points: Sequence[Point]
    colour: int = 0
    dashed: bool = False
    band: Sequence[tuple[float, float, float]] = ()


class Scale(NamedTuple):
    """An axis: where a value lies in the picture, and the values that are written beside it."""

    place: Callable[[float], float]
    ticks: Sequence[float]


def chart(
    title: str,
    lines: Sequence[Line],
    x_label: str,
    *,
    logarithmic: bool = False,
    span: tuple[float, float] | None = None,
    dotted: Iterable[float] = (),
) -> Markup:
    """The SVG of some lines, which have points. Screen readers read its title.

    span: of the values; None = theirs. logarithmic: for values above 0 alone. dotted: places that
    upright lines mark where both sides of them were measured.
    """
    places = [x for line in lines for x, _ in line.points]
    values = [y for line in lines for _, y in line.points]
    values += [end for line in lines for _, *ends in line.band for end in ends]
    across = linear(min(places), max(places), LEFT + 6, RIGHT)
    axis = logarithm if logarithmic else linear
    up = axis(*(span or (min(values), max(values))), BOTTOM, TOP)
    named = [line for line in lines if line.name]
    marks = [x for x in sorted({*dotted}) if min(places) < x < max(places)]
    parts = [
        *_axes(across, up, x_label),
        *(_path(f"M{across.place(x):.1f} {TOP}V{BOTTOM}", "#888", 1.0, "1 4") for x in marks),
        *(_band(line, across, up) for line in lines if line.band),
        *(part for line in lines for part in _line(line, across, up)),
        *_legend(named),
    ]
    height = HEIGHT + LINE * (_rows(named)[-1][0] if named else 0)
    head = (
        '<svg role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}" '
        'font-size="11" font-family="system-ui, sans-serif">'
    )
    size = f"{WIDTH:g}", f"{height:g}"
    return Markup(head).format(printable(title), *size, *size) + Markup("").join(
        [*parts, Markup("</svg>")]
    )


# Axes ------------------------------------------------------------------------------------------


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """An axis from start to end in the picture, with four to eight round values."""
    if low == high:
        margin = max(0.5, abs(low) / 1000)  # one that 1e30, too, is changed by
        low, high = low - margin, high + margin
    step = _round_step((high - low) / 7)
    ticks = [k * step for k in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]

    def place(value: float) -> float:
        return start + (value - low) / (high - low) * (end - start)

    return Scale(place, ticks)


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10, 20 and so on."""
    size = 10.0 ** math.floor(math.log10(least))
    return next(each * size for each in (1, 2, 5, 10) if each * size >= least * (1 - 1e-9))


def logarithm(low: float, high: float, start: float, end: float) -> Scale:
    """An axis of equal ratios. Its values are powers of ten; where these are few, 1, 2 and 5 times
    one; and where these are few too, those of a linear axis."""
    if low == high:
        low, high = low / 1.5, high * 1.5
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    powers = [10.0**k for k in exponents if low <= 10.0**k <= high]
    between = [digit * 10.0**k for k in exponents for digit in (1, 2, 5)]
    ticks: Sequence[float] = powers
    if len(powers) < 3:
        ticks = [each for each in between if low <= each <= high]
    if len(ticks) < 3:
        ticks = linear(low, high, start, end).ticks
    ticks = ticks[:: len(ticks) // 8 + 1]

    def place(value: float) -> float:
        return start + math.log(value / low) / math.log(high / low) * (end - start)

    return Scale(place, ticks)


def _axes(across: Scale, up: Scale, x_label: str) -> list[Markup]:
    """Both axes with their values and faint lines across, and what is below them."""
    parts = []
    for value in up.ticks:
        y = up.place(value)
        parts.append(_path(f"M{LEFT} {y:.1f}H{RIGHT}", "#ddd"))
        parts.append(_text(LEFT - 6, y + 4, f"{value:.3g}", "end"))
    for value in across.ticks:
        x = across.place(value)
        parts.append(_path(f"M{x:.1f} {BOTTOM}v4", "#444"))
        parts.append(_text(x, BOTTOM + LINE, f"{value:g}", "middle"))
    parts.append(_path(f"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}", "#444"))
    return [*parts, _text((LEFT + RIGHT) / 2, BOTTOM + 2 * LINE, x_label, "middle")]


# Lines -----------------------------------------------------------------------------------------


def _line(line: Line, across: Scale, up: Scale) -> list[Markup]:
    """A line, and a dot at each of its points where these are few."""
    colour = COLOURS[line.colour % len(COLOURS)]
    places = [(across.place(x), up.place(y)) for x, y in line.points]
    course = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places) if len(places) <= 40 else ""
    parts = [_path(course, colour, 1.5, "5 3" if line.dashed else "")]
    return [*parts, _path(dots, colour, 5)] if dots else parts


def _band(line: Line, across: Scale, up: Scale) -> Markup:
    """The area between the ends of intervals."""
    upper = [f"{across.place(x):.1f} {up.place(high):.1f}" for x, _, high in line.band]
    lower = [f"{across.place(x):.1f} {up.place(low):.1f}" for x, low, _ in reversed(line.band)]
    form = '<path d="M{}Z" fill="{}" opacity="0.2"/>'
    colour = COLOURS[line.colour % len(COLOURS)]
    return Markup(form).format("L".join([*upper, *lower]), colour)


def _legend(named: Sequence[Line]) -> Iterable[Markup]:
    """A stroke and a name for each line, in as many rows as they need."""
    for line, (row, x) in zip(named, _rows(named), strict=True):
        y = BOTTOM + LINE * (row + 3)
        colour = COLOURS[line.colour % len(COLOURS)]
        yield _path(f"M{x} {y - 4}h20", colour, 2.0, "5 3" if line.dashed else "")
        yield _text(x + 26, y, line.name, "start")


def _rows(named: Sequence[Line]) -> list[tuple[int, float]]:
    """Of each line of the legend the row, and where it begins in it."""
    found, row, x = list[tuple[int, float]](), 0, LEFT
    for line in named:
        width = 40 + LETTER * len(printable(line.name))
        if x > LEFT and x + width > RIGHT:
            row, x = row + 1, LEFT
        found.append((row, x))
        x += width
    return found


def _path(course: str, colour: str, width: float = 1.0, dashes: str = "") -> Markup:
    form = '<path d="{}" fill="none" stroke="{}" stroke-width="{}" stroke-linecap="round"'
    dashed = Markup(' stroke-dasharray="{}"').format(dashes) if dashes else Markup("")
    return Markup(form).format(course, colour, f"{width:g}") + dashed + Markup("/>")


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    form = '<text x="{}" y="{}" text-anchor="{}" fill="#222">{}</text>'
    return Markup(form).format(f"{x:.1f}", f"{y:.1f}", anchor, printable(text))
