"""Points in a plane, as inline SVG like `harness.charts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from harness.charts import WIDTH, axis_labels, picture, place_in, tick_marks, ticks
from harness.markup import cut


@dataclass(frozen=True)
class Dot:
    """A point of a scatter chart; `best` ones are named, and those that are not `compared` are hollow."""

    label: str
    x: float
    y: float
    best: bool = False
    compared: bool = True


def scatter_chart(dots: Sequence[Dot], *, title: str, x_label: str, y_label: str, name: str) -> Markup:
    """Points, and a line through the best ones in the order of their places; empty without two points.

    Args:
        dots: finite places.
        title: what a screen reader says first.
        x_label: text below the axis.
        y_label: text at the top of the other axis.
        name: unique on its page, for the ids of title and description.
    """
    if len(dots) < 2:
        return Markup("")
    x_ticks, y_ticks = (ticks(min(axis), max(axis)) for axis in ([d.x for d in dots], [d.y for d in dots]))
    at = place_in(x_ticks, y_ticks)
    parts = tick_marks(x_ticks, y_ticks, at) + axis_labels(x_label, y_label)
    best = sorted((d for d in dots if d.best), key=lambda d: (d.x, d.y))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(d.x, d.y) for d in best))
    parts += [f'<polyline class="line front" points="{path}"/>'] if len(best) > 1 else []
    taken: list[tuple[float, float]] = []
    for d in sorted(dots, key=lambda d: (d.best, d.x, d.y, d.label)):
        x, y = at(d.x, d.y)
        kind = "best" if d.best else "plain" if d.compared else "apart"
        tip = f"{cut(d.label, 80)}: {d.x:.4g}, {d.y:.4g}"
        parts.append(
            f'<circle class="point {kind}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(tip)}</title></circle>'
        )
        if d.best and not any(abs(x - a) < 90 and abs(y - b) < 12 for a, b in taken):
            taken.append((x, y))
            end = x > WIDTH - 140
            side = f'class="label end" x="{x - 7:.1f}"' if end else f'class="label" x="{x + 7:.1f}"'
            parts.append(f'<text {side} y="{y - 6:.1f}">{escape(cut(d.label, 28))}</text>')
    front = ", ".join(cut(d.label, 60) for d in best)
    desc = f"{y_label} against {x_label} of {len(dots)} entries. On the front: {front or 'none'}."
    return picture(parts, name=name, title=title, desc=cut(desc, 1000))
