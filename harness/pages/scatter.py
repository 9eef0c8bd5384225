"""Points in a plane, as inline SVG like `harness.charts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from harness.charts import WIDTH, axis_labels, picture, place_in, tick_marks, ticks
from harness.markup import clean, cut

LETTER, LINE = 6.6, 12.0
"""Width of a letter and height of a line of a label, in the picture's units."""
LONG = 36
"""Letters of a label; a longer one loses its middle, as what tells equal titles apart is at the end."""


@dataclass(frozen=True)
class Dot:
    """A point of a scatter chart; `best` ones are named, and those that are not `compared` are hollow."""

    label: str
    x: float
    y: float
    best: bool = False
    compared: bool = True


@dataclass(frozen=True)
class Layout:
    """Where things are: the places on both axes, and the labels that no other one is in the way of.

    Attributes:
        labels: number of a dot to its text and whether it ends at the dot, rather than begins there.
    """

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    labels: Mapping[int, tuple[str, bool]]


def lay_out(dots: Sequence[Dot]) -> Layout:
    """Axes that enclose the dots, of which there is at least one, and labels of the best that do not overlap."""
    x_ticks, y_ticks = (ticks(min(axis), max(axis)) for axis in ([d.x for d in dots], [d.y for d in dots]))
    at = place_in(x_ticks, y_ticks)
    labels: dict[int, tuple[str, bool]] = {}
    taken: list[tuple[float, float, float]] = []
    for i, d in sorted(enumerate(dots), key=lambda numbered: _order(numbered[1])):
        x, y = at(d.x, d.y)
        text = short(d.label)
        wide = LETTER * len(text) + 7
        end = x + wide > WIDTH
        left, right = (x - wide, x) if end else (x, x + wide)
        if d.best and not any(left < b and a < right and abs(y - c) < LINE for a, b, c in taken):
            taken.append((left, right, y))
            labels[i] = text, end
    return Layout(x_ticks, y_ticks, labels)


def short(label: str) -> str:
    """At most `LONG` letters.

    >>> short("EfficientSoup of a long-named method [depth=2]")
    'EfficientSoup of …d method [depth=2]'
    """
    text = clean(label)
    half = LONG // 2
    return text if len(text) <= LONG else f"{text[: half - 1]}…{text[-half:]}"


def scatter_chart(
    dots: Sequence[Dot], *, title: str, x_label: str, y_label: str, name: str, layout: Layout | None = None
) -> Markup:
    """Points, and a line through the best ones in the order of their places; empty without two points.

    Args:
        dots: finite places.
        title: what a screen reader says first.
        x_label: text below the axis.
        y_label: text at the top of the other axis.
        name: unique on its page, for the ids of title and description.
        layout: of these dots, where it is known already.
    """
    if len(dots) < 2:
        return Markup("")
    laid = layout or lay_out(dots)
    at = place_in(laid.x_ticks, laid.y_ticks)
    parts = tick_marks(laid.x_ticks, laid.y_ticks, at) + axis_labels(x_label, y_label)
    best = sorted((d for d in dots if d.best), key=lambda d: (d.x, d.y))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(d.x, d.y) for d in best))
    parts += [f'<polyline class="line front" points="{path}"/>'] if len(best) > 1 else []
    for i, d in sorted(enumerate(dots), key=lambda numbered: _order(numbered[1])):
        x, y = at(d.x, d.y)
        kind = "best" if d.best else "plain" if d.compared else "apart"
        tip = f"{cut(d.label, 80)}: {d.x:.4g}, {d.y:.4g}"
        parts.append(
            f'<circle class="point {kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(tip)}</title></circle>'
        )
        if i in laid.labels:
            text, end = laid.labels[i]
            side = f'class="label end" x="{x - 7:.1f}"' if end else f'class="label" x="{x + 7:.1f}"'
            parts.append(f'<text {side} y="{y - 6:.1f}">{escape(text)}</text>')
    front = ", ".join(cut(d.label, 60) for d in best)
    desc = f"{y_label} against {x_label} of {len(dots)} entries. On the front: {front or 'none'}."
    return picture(parts, name=name, title=title, desc=cut(desc, 1000))


def _order(d: Dot) -> tuple[bool, float, float, str]:
    """The best ones are drawn last, from the left to the right."""
    return d.best, d.x, d.y, d.label
