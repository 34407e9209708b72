"""The plot of a timeline as SVG: work rate and stalled seconds over one axis of time, and marks for what happened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT = 900, 70, 20
TOP, HEIGHT, BETWEEN = 104, 150, 46
MOST_MARKS = 12
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
STYLE = """
  svg { font: 12px sans-serif; }
  .title { stroke: #ffffff; stroke-width: 5px; paint-order: stroke; }
  .ground { fill: #ffffff; } text { fill: #1f2328; } .axis { stroke: #59636e; fill: none; }
  .grid { stroke: #d1d9e0; } .rate { stroke: #0969da; } .stalled { stroke: #bc4c00; }
  .rate, .stalled { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
  .limit { stroke: #cf222e; stroke-dasharray: 7 4; fill: none; stroke-width: 1.5; }
  .mark { stroke: #59636e; stroke-dasharray: 2 3; } .badge { fill: #59636e; } .number { fill: #ffffff; }
  @media (prefers-color-scheme: dark) {
    .title { stroke: #0d1117; }
    .ground { fill: #0d1117; } text { fill: #f0f6fc; } .axis { stroke: #9198a1; } .grid { stroke: #3d444d; }
    .rate { stroke: #58a6ff; } .stalled { stroke: #f0883e; } .limit { stroke: #ff7b72; }
    .mark { stroke: #9198a1; } .badge { fill: #9198a1; } .number { fill: #0d1117; }
  }
"""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at an instant."""

    at: float
    text: str


@dataclass(slots=True)
class Plot:
    """What is drawn: pairs of Unix seconds and steps per second, or seconds; read every `step` seconds."""

    name: str
    start: float
    end: float
    step: int
    rate: Points = ()
    stalled: Points = ()
    limit: Points = ()
    marks: Sequence[Mark] = field(default_factory=list)


def draw(plot: Plot) -> str:
    """The picture, complete in itself: no script, no font or address from elsewhere."""
    marks = plot.marks[:MOST_MARKS]
    left_out = len(plot.marks) - len(marks)
    axis = TOP + 2 * HEIGHT + BETWEEN
    height = axis + 52 + 18 * math.ceil((len(marks) + (left_out > 0)) / 2)
    name = escape(plot.name)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title desc">',
        f'<title id="title">Work rate and stalled seconds of {name}</title>',
        f'<desc id="desc">{escape(_described(plot))}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
        *(part for number, mark in enumerate(marks, 1) for part in _mark(plot, number, mark, axis)),
        *_panel(
            plot, TOP, "work rate (engine steps, or the runtime's own unit of work, per second)", [("rate", plot.rate)]
        ),
        *_panel(
            plot,
            TOP + HEIGHT + BETWEEN,
            "stalled (seconds); dashed: the limit from which it can be proven stuck",
            [("stalled", plot.stalled), ("limit", plot.limit)],
        ),
        *_time_axis(plot, axis),
    ]
    if left_out:
        parts.append(_legend(len(marks), axis, f"and {left_out} more, in the table"))
    return "\n".join([*parts, "</svg>", ""])


def _described(plot: Plot) -> str:
    text = f"From {_clock(plot.start)} to {_clock(plot.end)} UTC."
    if plot.rate:
        text += f" Work rate between {_low(plot.rate):.4g} and {_high(plot.rate):.4g} per second."
    if plot.stalled:
        text += f" Stalled for at most {_high(plot.stalled):.0f} seconds."
    if plot.limit:
        text += f" The limit is {plot.limit[-1][1]:.0f} seconds."
    return text + "".join(f" {_clock(mark.at)}: {mark.text}." for mark in plot.marks[:MOST_MARKS])


def _low(points: Points) -> float:
    return min(value for _, value in points)


def _high(points: Points) -> float:
    return max((value for _, value in points), default=0.0)


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _x(plot: Plot, at: float) -> float:
    share = (at - plot.start) / max(plot.end - plot.start, 1.0)
    return LEFT + (WIDTH - LEFT - RIGHT) * min(max(share, 0.0), 1.0)


def _panel(plot: Plot, top: float, title: str, series: Sequence[tuple[str, Points]]) -> list[str]:
    grid = _grid(max((_high(points) for _, points in series), default=0.0))
    most, right = grid[-1], WIDTH - RIGHT
    parts = [f'<text class="title" x="{LEFT}" y="{top - 8}">{escape(title)}</text>']
    for value in grid:
        y = top + HEIGHT * (1 - value / most)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {top}V{top + HEIGHT}H{right}"/>')
    for name, points in series:
        if points:
            parts.append(f'<path class="{name}" d="{_path(plot, points, top, most)}"/>')
    if not any(points for _, points in series):
        parts.append(f'<text x="{(LEFT + right) / 2}" y="{top + HEIGHT / 2}" text-anchor="middle">no data</text>')
    return parts


def _grid(most: float) -> list[float]:
    """Round values from 0 to at least the greatest one."""
    rough = max(most, 1e-3) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= rough * 0.999)
    return [step * n for n in range(max(1, math.ceil(most / step - 1e-9)) + 1)]


def _path(plot: Plot, points: Points, top: float, most: float) -> str:
    """A line that breaks where values are missing."""
    words, before = [], None
    for at, value in points:
        joined = before is not None and at - before <= 1.5 * plot.step
        y = top + HEIGHT * (1 - min(max(value, 0.0), most) / most)
        words.append(f"{'L' if joined else 'M'}{_x(plot, at):.1f} {y:.1f}")
        if not joined:
            words.append("h0.1")  # one value alone is to be seen
        before = at
    return "".join(words)


def _time_axis(plot: Plot, y: float) -> list[str]:
    span = plot.end - plot.start
    tick = next((seconds for seconds in TICKS if span / seconds <= 8), math.ceil(span / 8 / 86400) * 86400)
    form = "%H:%M:%S" if tick < 60 else "%H:%M" if tick < 86400 and span <= 86400 else "%m-%d %H:%M"
    parts, at = [], math.ceil(plot.start / tick) * tick
    while at <= plot.end:
        x = _x(plot, at)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 5}"/>')
        words = datetime.fromtimestamp(at, UTC).strftime(form)
        parts.append(f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{words}</text>')
        at += tick
    day = datetime.fromtimestamp(plot.start, UTC).strftime("%Y-%m-%d")
    return [
        *parts,
        f'<text x="{LEFT - 60}" y="{y + 18}">UTC</text>',
        f'<text x="10" y="18">{escape(plot.name)}, {day}</text>',
    ]


def _mark(plot: Plot, number: int, mark: Mark, axis: float) -> list[str]:
    x, y = _x(plot, mark.at), 34 + 17 * ((number - 1) % 3)  # neighbours in time do not cover each other
    return [
        f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 8}" y2="{axis}"/>',
        f'<circle class="badge" cx="{x:.1f}" cy="{y}" r="8"/>',
        f'<text class="number" x="{x:.1f}" y="{y + 4}" text-anchor="middle">{number}</text>',
        _legend(number - 1, axis, f"{number}  {_clock(mark.at)[11:]}  {mark.text}"),
    ]


def _legend(place: int, axis: float, text: str) -> str:
    x, y = LEFT + (place % 2) * 400, axis + 48 + 18 * (place // 2)
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'
