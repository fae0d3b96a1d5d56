"""Schedules as LaTeX."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from sgdlimits.analysis.equations.base import Equations, Row, bracket, decimal, escape_latex, frac, number
from sgdlimits.part import is_schedule
from sgdlimits.schedule import Combined, FunctionOfTime, Schedule, Shifted, Time
from sgdlimits.schedule_forms import Cosine, Linear, Power, Steps, Warmup

MAX_CASES = 6
"""Steps and lines with more pieces print their first and last values only."""


@singledispatch
def schedule_latex(schedule: Any, t: str = "t") -> str:
    r"""Write a schedule, or a number, as LaTeX, with `t` for the time.

    >>> schedule_latex(Power(0.2, 1.0, 10.0))
    '0.2 \\left(1 + t / 10\\right)^{-1}'
    """
    return _number(schedule)


@schedule_latex.register
def _(schedule: Schedule, t: str = "t") -> str:
    return rf"\text{{{type(schedule).__name__}}}({t})"


@schedule_latex.register
def _(schedule: Time, t: str = "t") -> str:
    return t


@schedule_latex.register
def _(schedule: FunctionOfTime, t: str = "t") -> str:
    name = getattr(schedule.fn, "__name__", "")
    return rf"\operatorname{{{escape_latex(name if name.isidentifier() else 's')}}}({t})"


@schedule_latex.register
def _(schedule: Combined, t: str = "t") -> str:
    left, right = schedule_latex(schedule.left, t), schedule_latex(schedule.right, t)
    # sums and linear pieces need brackets in products
    loose = lambda side, text: bracket(text) if isinstance(side, (Combined, Linear, Cosine)) else text
    match schedule.operation:
        case "add":
            return f"{left} + {right}"
        case "sub":
            return f"{left} - {loose(schedule.right, right)}"
        case "mul":
            return rf"{loose(schedule.left, left)} \cdot {loose(schedule.right, right)}"
        case "truediv":
            return frac(left, right)
    return f"{bracket(left)}^{{{right}}}"


@schedule_latex.register
def _(schedule: Shifted, t: str = "t") -> str:
    return schedule_latex(schedule.base, rf"\max(0, {t} - {_number(schedule.by)})")


@schedule_latex.register
def _(schedule: Steps, t: str = "t") -> str:
    values, times = np.asarray(schedule.values), np.asarray(schedule.times)
    if not times.size:
        return _number(values[0])
    # a table of many steps would not fit on a line
    if len(values) > MAX_CASES:
        ends = rf"{_number(values[0])} \dots {_number(values[-1])}"
        return rf"{ends} \text{{ in {len(values)} steps, }} 0 \le {t} \le {_number(times[-1])}"
    rows = [rf"{_number(value)} & {t} < {_number(time)}" for value, time in zip(values, times, strict=False)]
    return _cases([*rows, rf"{_number(values[-1])} & {t} \ge {_number(times[-1])}"])


@schedule_latex.register
def _(schedule: Linear, t: str = "t") -> str:
    values, times = np.asarray(schedule.values), np.asarray(schedule.times)
    points = [rf"({_number(time)}, {_number(value)})" for time, value in zip(times, values, strict=True)]
    points = points if len(points) <= MAX_CASES else [points[0], r"\dots", points[-1]]
    return rf"\text{{linear in }} {t} \text{{ through }} {', '.join(points)}"


@schedule_latex.register
def _(schedule: Cosine, t: str = "t") -> str:
    first, last, span = (np.asarray(each) for each in (schedule.first, schedule.last, schedule.span))
    angle = rf"\pi \min(1, {t} / {_number(span)})"
    if last.ndim or first.ndim or last:
        return rf"{_number(last)} + \tfrac12 \left({_number(first)} - {_number(last)}\right) \left(1 + \cos({angle})\right)"
    return rf"\tfrac12 \cdot {_number(first)} \left(1 + \cos({angle})\right)"


@schedule_latex.register
def _(schedule: Power, t: str = "t") -> str:
    base = bracket(rf"1 + {t} / {_number(schedule.span)}")
    return rf"{_number(schedule.value)} {base}^{{{_number(-np.asarray(schedule.power))}}}"


@schedule_latex.register
def _(schedule: Warmup, t: str = "t") -> str:
    inside = schedule_latex(schedule.schedule, t)
    inside = bracket(inside) if is_schedule(schedule.schedule) else inside
    return rf"\min(1, {t} / {_number(schedule.span)}) \cdot {inside}"


def write_out_schedules(equations: Equations) -> Equations:
    """Return the equations with each scheduled parameter written out as a row."""
    rows = [
        Row(rf"\text{{{escape_latex(word)} }} {letter}", schedule_latex(value))
        for word, letter, value in equations.numbers
        if is_schedule(value)
    ]
    return equations._replace(where=(*equations.where, *rows))


def _number(value: Any) -> str:
    """Write a number, which may be a scalar array, or an array of numbers."""
    array = np.asarray(value, float)
    return number(array) if array.ndim else decimal(array.item())


def _cases(rows: list[str]) -> str:
    """Write a `cases` environment."""
    lines = " \\\\ ".join(rows)
    return rf"\begin{{cases}} {lines} \end{{cases}}"
