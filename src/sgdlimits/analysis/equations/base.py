"""Equations as LaTeX: what moves, what its letters stand for, and the numbers behind them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from sgdlimits.errors import is_traced

LARGEST_DENOMINATOR = 64


class Row(NamedTuple):
    """An equation, or a line of words and letters where there is no right-hand side."""

    left: str
    right: str = ""

    def __str__(self) -> str:
        return rf"{self.left} &= {self.right}" if self.right else f"& {self.left}"


class Equations(NamedTuple):
    """An ODE as text.

    Parameters
    ----------
    ode : what moves
    where : the abbreviations in it, each made of those that follow; and words
    numbers : keyword, letter and value of each parameter
    noise : the covariance of the increments, and what it is made of
    """

    ode: tuple[Row, ...]
    where: tuple[Row, ...] = ()
    numbers: tuple[tuple[str, str, Any], ...] = ()
    noise: tuple[Row, ...] = ()

    def latex(self) -> str:
        """All of it as one `aligned` environment of LaTeX."""
        rows = [str(row) for row in self.ode]
        if self.where:
            rows += [r"& \text{where}", *map(str, self.where)]
        rows += map(str, self.noise)
        known = [(word, letter, value) for word, letter, value in self.numbers if value is not None and not is_traced(value)]
        if known:
            each = r",\quad ".join(rf"\text{{{spelt(word)} }} {letter} = {decimal(value)}" for word, letter, value in known)
            rows.append(rf"& \text{{with }} {each}")
        return "\n".join([r"\begin{aligned}", " \\\\\n".join(rows), r"\end{aligned}"])


def spelt(word: str) -> str:
    """A name as text of LaTeX.

    >>> spelt("lr_second")
    'lr\\\\_second'
    """
    return word.replace("\\", "").replace("_", r"\_")


def number(value: Any) -> str:
    r"""A number, an array of numbers or a fraction as LaTeX.

    >>> number(3.0), number(0.5), number(0.05), number(1e-7)
    ('3', '\\frac{1}{2}', '0.05', '10^{-7}')
    """
    if np.ndim(value):
        rows = np.atleast_2d(np.asarray(value, float))
        lines = " \\\\ ".join(" & ".join(map(number, row)) for row in rows)
        return rf"\begin{{pmatrix}} {lines} \end{{pmatrix}}"
    if not isinstance(value, Fraction) and not math.isfinite(value):
        return decimal(value)
    exact, short = Fraction(value), Fraction(value).limit_denominator(LARGEST_DENOMINATOR)
    if abs(exact - short) > Fraction(1, 10**14) * abs(short) or (short.denominator > 8 and len(repr(float(exact))) < 6):
        return decimal(exact)
    whole = short.denominator == 1
    return str(short) if whole else ("-" if short < 0 else "") + frac(str(abs(short.numerator)), str(short.denominator))


def decimal(value: float | Fraction) -> str:
    """Six digits, of fractions beyond the range of floating-point numbers too."""
    try:
        plain: float | Decimal = float(value)
    except OverflowError:
        plain = Decimal(value.numerator) / value.denominator  # type: ignore[union-attr]
    mantissa, _, power = f"{plain:.6g}".replace("inf", r"\infty").partition("e")
    tens = rf"10^{{{int(power)}}}" if power else ""
    return tens if power and mantissa == "1" else rf"{mantissa} \times {tens}" if power else mantissa


def times(*factors: Any) -> str:
    r"""A product of numbers and letters, without ones: the numbers as one, first.

    >>> times(4, 0.5, r"\gamma", "M_{jr}"), times(1, "")
    ('2 \\gamma M_{jr}', '1')
    """
    value, letters = Fraction(1), []
    for factor in factors:
        if isinstance(factor, str):
            letters += [factor] if factor else []
        else:
            value *= Fraction(float(factor)) if not isinstance(factor, Fraction) else factor
    if not letters:
        return number(value)
    sign = "-" if value < 0 else ""
    return sign + " ".join([*([number(abs(value))] if abs(value) != 1 else []), *letters])


def total(terms: Iterable[str]) -> str:
    """Terms added up: those that begin with a minus are taken away, and empty ones left out.

    >>> total(["a", "", "-b", "c"])
    'a - b + c'
    """
    found = [term for term in terms if term]
    text = found[0] if found else "0"
    for term in found[1:]:
        text += f" - {term[1:].lstrip()}" if term.startswith("-") else f" + {term}"
    return text


def bracket(text: str) -> str:
    """In brackets that grow with what is in them."""
    return rf"\left({text}\right)"


def frac(top: str, bottom: str) -> str:
    """A fraction."""
    return rf"\frac{{{top}}}{{{bottom}}}"


def root(inside: str) -> str:
    """A square root."""
    return rf"\sqrt{{{inside}}}"


def power(letter: str, n: int) -> str:
    """A power of a letter; nothing for the power 0."""
    return "" if n == 0 else letter if n == 1 else rf"{letter}^{{{n}}}"


def per_pi(value: float) -> str:
    """A number over pi.

    >>> print(per_pi(2.0), per_pi(0.5))
    \\frac{2}{\\pi} \\frac{1}{2 \\pi}
    """
    share = Fraction(value).limit_denominator(LARGEST_DENOMINATOR)
    if share != Fraction(value):
        return times(value, frac("1", r"\pi"))
    return ("-" if value < 0 else "") + frac(
        str(abs(share.numerator)), r"\pi" if share.denominator == 1 else rf"{share.denominator} \pi"
    )


def arcsin(inside: str) -> str:
    """The arcsine."""
    return rf"\arcsin{bracket(inside)}"


def over(letter: str, value: int) -> str:
    """One over a number of things, by its letter; nothing where there is one."""
    return "" if value == 1 else frac("1", letter)


def rate(left: str) -> str:
    """The time derivative of a letter."""
    return frac(f"d{left}", "dt")
