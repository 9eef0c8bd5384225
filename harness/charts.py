"""Small inline SVG pictures, as text: no script, no style attribute, colours by class in the style sheet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup, escape

from harness.markup import cut

Place = Callable[[float, float], tuple[float, float]]
WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 34, 40
TINY = 1e-300
"""Values that differ by less are drawn as one."""
SERIES = 4
"""Line styles in the style sheet; a fifth series uses the first again."""
LEGEND = 18
"""Height of a line of names above a chart."""
_LIGHT = ("#c2410c", "#0b5fb0", "#6d28d9", "#15803d", "#0e7490", "#a16207", "#be185d", "#4b5563")
_DARK = ("#fb923c", "#6cb2f7", "#b69cf8", "#6ddb94", "#67d3e6", "#e6c15a", "#f591bd", "#b6bec8")
_DASHES = ("none", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 2", "9 2 2 2 2 2")
FILE_SERIES = len(_LIGHT)
"""Line styles of a chart in a file of its own; the first four are those of the site."""
FILE_STYLE = (
    "svg{--ink:#1c2024;--soft:#5d6670;--line:#e3e6ea;--paper:#fff;background:var(--paper);font:12px sans-serif}"
    + "".join(f".s{i}{{--c:{c};stroke-dasharray:{d}}}" for i, (c, d) in enumerate(zip(_LIGHT, _DASHES, strict=True)))
    + "@media (prefers-color-scheme:dark){svg{--ink:#e6e9ec;--soft:#a3adb8;--line:#2d333b;--paper:#14171a}"
    + "".join(f".s{i}{{--c:{c}}}" for i, c in enumerate(_DARK))
    + "}.grid{stroke:var(--line)}.tick{fill:var(--soft)}.label{fill:var(--ink)}.mid{text-anchor:middle}"
    ".end{text-anchor:end}.line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}.dot{fill:var(--c)}"
)  # fmt: skip


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
    at = place_in((left, right), (low, high))
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
    return picture(parts, name=name, title=title, desc=cut(desc))


def xy_chart(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    name: str,
    steps: bool = False,
) -> Markup:
    """Lines through points that each have a place of their own, in the order given; a single point is a dot.

    The axes span the values. A point that is not finite breaks its line. Up to `FILE_SERIES` lines are told apart by
    colour and by dashes.

    Args:
        lines: name to (x, y) points, in the order in which they are joined.
        title: what a screen reader says first.
        x_label: text below the axis.
        y_label: text at the top of the other axis.
        name: unique on its page, for the ids of title and description.
        steps: a line keeps its height up to the place of the next point.
    """
    finite = {k: [p for p in points if all(map(math.isfinite, p))] for k, points in lines.items()}
    every = [p for points in finite.values() for p in points]
    if not every:
        return Markup("")
    x_ticks, y_ticks = (ticks(min(axis), max(axis)) for axis in zip(*every, strict=True))
    columns = 4 if max(map(len, lines)) <= 18 else 2
    rows = -(-len(lines) // columns)
    at = place_in(x_ticks, y_ticks)
    parts = tick_marks(x_ticks, y_ticks, at) + axis_labels(x_label, y_label)
    told = []
    for i, (label, points) in enumerate(lines.items()):
        style = f"s{i % FILE_SERIES}"
        for run in _unbroken(*zip(*points, strict=True)) if points else []:
            placed = [at(px, py) for px, py in run]
            if len(placed) > 1:
                path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (_stairs(placed) if steps else placed))
                parts.append(f'<polyline class="line {style}" points="{path}"/>')
            parts += [
                f'<circle class="dot {style}" cx="{px:.1f}" cy="{py:.1f}" r="2.5"/>' for px, py in placed
            ]
        key, y = LEFT + i % columns * (580 // columns), 12 - LEGEND * (rows - i // columns)
        parts.append(f'<line class="line {style}" x1="{key}" y1="{y}" x2="{key + 20}" y2="{y}"/>')
        parts.append(f'<text class="label" x="{key + 26}" y="{y + 4}">{escape(cut(label, 48))}</text>')
        ends = finite[label]
        way = f"goes from {_place(ends[0])} to {_place(ends[-1])}" if ends else "has no value"
        told.append(f"{label} {way}")
    desc = f"{y_label} against {x_label}. {'; '.join(told)}."
    return picture(parts, name=name, title=title, desc=cut(desc, 1000), top=-LEGEND * rows)


def standalone(chart: Markup) -> str:
    """A chart as the text of an SVG file: with its own style sheet, for light and dark."""
    return str(chart).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(
        "</desc>", f"</desc><style>{FILE_STYLE}</style>", 1
    ) + "\n"  # fmt: skip


def place_in(across: Sequence[float], up: Sequence[float]) -> Place:
    """Where a point is in the picture, whose axes go from the first to the last of `across` and of `up`."""
    left, right, low, high = across[0], across[-1], up[0], up[-1]

    def at(px: float, py: float) -> tuple[float, float]:
        place = LEFT + (px - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        return place, TOP + (high - py) / (high - low) * (HEIGHT - TOP - BOTTOM)

    return at


def picture(parts: Sequence[str], *, name: str, title: str, desc: str, top: int = 0) -> Markup:
    """The element of a chart, from `top` (negative with lines of names above) down to `HEIGHT`."""
    ids = f"{escape(name)}-t", f"{escape(name)}-d"
    return Markup(
        f'<svg class="chart" role="img" viewBox="0 {top} {WIDTH} {HEIGHT - top}" aria-labelledby="{ids[0]} {ids[1]}">'
        f'<title id="{ids[0]}">{escape(cut(title))}</title><desc id="{ids[1]}">{escape(desc)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def tick_marks(x_ticks: Sequence[float], y_ticks: Sequence[float], at: Place) -> list[str]:
    """Grid lines and the numbers beside them; `at` says where a point is in the picture."""
    parts = []
    for value in y_ticks:
        _, y = at(x_ticks[0], value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{y + 4:.1f}">{value:.6g}</text>')
    for value in x_ticks:
        px, _ = at(value, y_ticks[0])
        parts.append(f'<text class="tick mid" x="{px:.1f}" y="{HEIGHT - BOTTOM + 16}">{value:.6g}</text>')
    return parts


def axis_labels(x_label: str, y_label: str) -> list[str]:
    """Text below the axis, and at the top of the other one."""
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [
        f'<text class="label mid" x="{middle:.1f}" y="{HEIGHT - 6}">{escape(cut(x_label))}</text>',
        f'<text class="label" x="{LEFT + 4}" y="{TOP - 5}">{escape(cut(y_label, 80))}</text>',
    ]


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """With a corner before each point but the first: there in `x`, and still as high as the one before."""
    corners = [(x, before) for (_, before), (x, _) in itertools.pairwise(points)]
    return [*points[:1], *(p for pair in zip(corners, points[1:], strict=True) for p in pair)]


def _place(point: tuple[float, float]) -> str:
    return f"{point[1]:.4g} at {point[0]:.4g}"


def ticks(low: float, high: float) -> list[float]:
    """Three to seven round places at equal steps (1, 2 or 5 times a power of ten) that enclose `low` to `high`.

    From 0 where the values are not negative and not far from it.

    >>> ticks(0.0, 3.0), ticks(0.107, 0.514)
    ([0.0, 1.0, 2.0, 3.0], [0.0, 0.2, 0.4, 0.6])
    """
    low = 0.0 if 0.0 <= low <= 0.5 * high else low
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, TINY):
        pad = 0.5 * size if size > TINY else 0.5
        low, high = low - pad, high + pad
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(s * power for s in (1, 2, 5, 10) if (high - low) / (s * power) <= 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


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


def _grid(low: float, high: float, left: float, right: float, at: Place, x_label: str) -> str:
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
