"""Small inline SVG pictures, as text: no script, no style attribute, colours by class in the style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape

from harness.markup import cut

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 34, 40
SERIES = 4
"""Line styles in the style sheet; a fifth series uses the first again."""


def line_chart(
    x: Sequence[float], series: Mapping[str, Sequence[float]], *, title: str, x_label: str, name: str
) -> Markup:
    """Lines over `x`; a value that is not finite breaks its line, and a point without neighbours is a dot.

    Args:
        x: places of the points, not decreasing.
        series: name to values, as many as `x`; drawn in the order of their names.
        title: what a screen reader says first.
        x_label: text below the axis.
        name: unique on its page, for the ids of title and description.
    """
    finite = [v for values in series.values() for v in values if math.isfinite(v)]
    if not finite or not len(x):
        return Markup("")
    low, high = _axis(min(finite), max(finite))
    left, right = min(x), max(x)
    right = right if right > left else left + 1.0

    def at(px: float, py: float) -> tuple[float, float]:
        across = LEFT + (px - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        return across, TOP + (high - py) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [_grid(low, high, left, right, at, x_label)]
    told = []
    for i, (label, values) in enumerate(sorted(series.items())):
        style = f"s{i % SERIES}"
        for run in _unbroken(x, values):
            points = [at(px, py) for px, py in run]
            text = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
            if len(points) > 1:
                parts.append(f'<polyline class="line {style}" points="{text}"/>')
            if len(points) < 12:
                parts += [
                    f'<circle class="dot {style}" cx="{px:.1f}" cy="{py:.1f}" r="2.5"/>' for px, py in points
                ]
        key = LEFT + i * 140
        parts.append(f'<line class="line {style}" x1="{key}" y1="14" x2="{key + 20}" y2="14"/>')
        parts.append(f'<text class="label" x="{key + 26}" y="18">{escape(cut(label, 80))}</text>')
        ends = [v for v in values if math.isfinite(v)]
        told.append(f"{label} goes from {ends[0]:.4g} to {ends[-1]:.4g}" if ends else f"{label} has no value")
    desc = f"{len(x)} checks from {left:.4g} to {max(x):.4g} ({x_label}). {'; '.join(told)}."
    ids = f"{escape(name)}-t", f"{escape(name)}-d"
    return Markup(
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {HEIGHT}" aria-labelledby="{ids[0]} {ids[1]}">'
        f'<title id="{ids[0]}">{escape(cut(title))}</title><desc id="{ids[1]}">{escape(cut(desc))}</desc>'
        f"{''.join(parts)}</svg>"
    )


def interval_mark(
    mean: float | None, low: float | None, high: float | None, span: tuple[float, float]
) -> Markup:
    """A dot at the mean on a whisker from low to high, over `span`; empty without a mean.

    >>> interval_mark(None, None, None, (0.0, 1.0))
    Markup('')
    """
    if mean is None:
        return Markup("")
    wide = 96.0
    size = span[1] - span[0]

    def at(value: float) -> float:
        share = (value - span[0]) / size if size > 0 and math.isfinite(size) else 0.5
        return 4 + min(max(share, 0.0), 1.0) * (wide - 8)

    whisker = ""
    if low is not None and high is not None:
        whisker = f'<line class="whisker" x1="{at(low):.1f}" y1="8" x2="{at(high):.1f}" y2="8"/>'
    return Markup(
        f'<svg class="mark" viewBox="0 0 {wide:.0f} 16" aria-hidden="true">'
        f'<line class="rail" x1="4" y1="8" x2="{wide - 4:.0f}" y2="8"/>{whisker}'
        f'<circle class="mean" cx="{at(mean):.1f}" cy="8" r="3.2"/></svg>'
    )


def _axis(low: float, high: float) -> tuple[float, float]:
    """0..1 where all values are in it, else the values' own range with a little air."""
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        return low - max(abs(low), 1.0), high + max(abs(high), 1.0)
    air = 0.05 * (high - low)
    return low - air, high + air


def _grid(low: float, high: float, left: float, right: float, at, x_label: str) -> str:
    parts = []
    for i in range(5):
        value = low + (high - low) * i / 4
        _, y = at(left, value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{y + 4:.1f}">{value:.3g}</text>')
        value = left + (right - left) * i / 4
        px, _ = at(value, low)
        anchor = "end" if i == 4 else "start" if i == 0 else "mid"
        parts.append(
            f'<text class="tick {anchor}" x="{px:.1f}" y="{HEIGHT - BOTTOM + 16}">{value:.4g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="label mid" x="{middle:.1f}" y="{HEIGHT - 6}">{escape(cut(x_label))}</text>')
    return "".join(parts)


def _unbroken(x: Sequence[float], values: Sequence[float]) -> list[list[tuple[float, float]]]:
    runs: list[list[tuple[float, float]]] = [[]]
    for px, py in zip(x, values, strict=True):
        if math.isfinite(py):
            runs[-1].append((float(px), float(py)))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
