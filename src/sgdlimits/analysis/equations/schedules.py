"""LaTeX of schedules in the equations of a problem."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from sgdlimits.analysis.equations.base import (
    Equations,
    Row,
    bracket_latex,
    decimal_latex,
    escape_latex,
    fraction_latex,
    number_latex,
)
from sgdlimits.part import is_schedule
from sgdlimits.schedule import Combined, FunctionOfTime, Schedule, Shifted, Time
from sgdlimits.schedule_forms import Cosine, Linear, Power, Steps, Warmup

MAX_CASES = 6
"""Number of cases above which a piecewise schedule prints only its first and last values."""


@singledispatch
def schedule_latex(schedule: Any, t: str = "t") -> str:
    r"""Format a schedule, or a constant, as LaTeX; `t` is the symbol for the time.

    >>> schedule_latex(Power(0.2, 1.0, 10.0))
    '0.2 \\left(1 + t / 10\\right)^{-1}'
    """
    return _value_latex(schedule)


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
    loose = lambda side, text: bracket_latex(text) if isinstance(side, (Combined, Linear, Cosine)) else text
    match schedule.operation:
        case "add":
            return f"{left} + {right}"
        case "sub":
            return f"{left} - {loose(schedule.right, right)}"
        case "mul":
            return rf"{loose(schedule.left, left)} \cdot {loose(schedule.right, right)}"
        case "truediv":
            return fraction_latex(left, right)
    return f"{bracket_latex(left)}^{{{right}}}"


@schedule_latex.register
def _(schedule: Shifted, t: str = "t") -> str:
    return schedule_latex(schedule.base, rf"\max(0, {t} - {_value_latex(schedule.by)})")


@schedule_latex.register
def _(schedule: Steps, t: str = "t") -> str:
    values, times = np.asarray(schedule.values), np.asarray(schedule.times)
    if not times.size:
        return _value_latex(values[0])
    # a table of many steps would not fit on a line
    if len(values) > MAX_CASES:
        ends = rf"{_value_latex(values[0])} \dots {_value_latex(values[-1])}"
        return rf"{ends} \text{{ in {len(values)} steps, }} 0 \le {t} \le {_value_latex(times[-1])}"
    rows = [rf"{_value_latex(value)} & {t} < {_value_latex(time)}" for value, time in zip(values, times, strict=False)]
    return _format_cases([*rows, rf"{_value_latex(values[-1])} & {t} \ge {_value_latex(times[-1])}"])


@schedule_latex.register
def _(schedule: Linear, t: str = "t") -> str:
    values, times = np.asarray(schedule.values), np.asarray(schedule.times)
    points = [rf"({_value_latex(time)}, {_value_latex(value)})" for time, value in zip(times, values, strict=True)]
    points = points if len(points) <= MAX_CASES else [points[0], r"\dots", points[-1]]
    return rf"\text{{linear in }} {t} \text{{ through }} {', '.join(points)}"


@schedule_latex.register
def _(schedule: Cosine, t: str = "t") -> str:
    first, last, span = (np.asarray(each) for each in (schedule.first, schedule.last, schedule.span))
    angle = rf"\pi \min(1, {t} / {_value_latex(span)})"
    if last.ndim or first.ndim or last:
        fall = rf"\left({_value_latex(first)} - {_value_latex(last)}\right)"
        return rf"{_value_latex(last)} + \tfrac12 {fall} \left(1 + \cos({angle})\right)"
    return rf"\tfrac12 \cdot {_value_latex(first)} \left(1 + \cos({angle})\right)"


@schedule_latex.register
def _(schedule: Power, t: str = "t") -> str:
    base = bracket_latex(rf"1 + {t} / {_value_latex(schedule.span)}")
    return rf"{_value_latex(schedule.value)} {base}^{{{_value_latex(-np.asarray(schedule.power))}}}"


@schedule_latex.register
def _(schedule: Warmup, t: str = "t") -> str:
    inside = schedule_latex(schedule.schedule, t)
    inside = bracket_latex(inside) if is_schedule(schedule.schedule) else inside
    return rf"\min(1, {t} / {_value_latex(schedule.span)}) \cdot {inside}"


def write_out_schedules(equations: Equations) -> Equations:
    """Return equations with a separate line for each scheduled parameter that defines its schedule."""
    rows = [
        Row(rf"\text{{{escape_latex(word)} }} {letter}", schedule_latex(value))
        for word, letter, value in equations.numbers
        if is_schedule(value)
    ]
    return equations._replace(where=(*equations.where, *rows))


def _value_latex(value: Any) -> str:
    """Format a scalar, a scalar array or an array of scalars as LaTeX."""
    array = np.asarray(value, float)
    return number_latex(array) if array.ndim else decimal_latex(array.item())


def _format_cases(rows: list[str]) -> str:
    """Format lines of LaTeX as a `cases` environment."""
    lines = " \\\\ ".join(rows)
    return rf"\begin{{cases}} {lines} \end{{cases}}"
