"""LaTeX building blocks: rows of equations, numbers, sums and products."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from sgdlimits.errors import is_traced

MAX_DENOMINATOR = 64
"""Largest denominator of a number that is printed as a fraction."""


class Row(NamedTuple):
    """One line of LaTeX: an equation, or a remark if the right-hand side is empty."""

    left: str
    right: str = ""

    def __str__(self) -> str:
        return rf"{self.left} &= {self.right}" if self.right else f"& {self.left}"


class Equations(NamedTuple):
    """An ODE as rows of LaTeX.

    Parameters
    ----------
    ode : the time derivatives of the statistics
    where : definitions of the letters in the ODE, each in terms of later ones, and remarks
    numbers : keyword, letter and value of each parameter
    noise : the covariance of the increments, and what it is made of
    """

    ode: tuple[Row, ...]
    where: tuple[Row, ...] = ()
    numbers: tuple[tuple[str, str, Any], ...] = ()
    noise: tuple[Row, ...] = ()

    def latex(self) -> str:
        """Return the equations, definitions and parameters as one `aligned` environment of LaTeX."""
        rows = [str(row) for row in self.ode]
        if self.where:
            rows += [r"& \text{where}", *map(str, self.where)]
        rows += map(str, self.noise)
        # values that are traced have no number to print
        known = [(word, letter, value) for word, letter, value in self.numbers if value is not None and not is_traced(value)]
        if known:
            each = r",\quad ".join(
                rf"\text{{{escape_latex(word)} }} {letter} = {decimal(value)}" for word, letter, value in known
            )
            rows.append(rf"& \text{{with }} {each}")
        return "\n".join([r"\begin{aligned}", " \\\\\n".join(rows), r"\end{aligned}"])


def escape_latex(word: str) -> str:
    """Escape a name for use as text in LaTeX.

    >>> escape_latex("lr_second")
    'lr\\\\_second'
    """
    return word.replace("\\", "").replace("_", r"\_")


def number(value: Any) -> str:
    r"""Write a number, an array or a fraction as LaTeX, exactly where that is short.

    >>> number(3.0), number(0.5), number(0.05), number(1e-7)
    ('3', '\\frac{1}{2}', '0.05', '10^{-7}')
    """
    if np.ndim(value):
        rows = np.atleast_2d(np.asarray(value, float))
        lines = " \\\\ ".join(" & ".join(map(number, row)) for row in rows)
        return rf"\begin{{pmatrix}} {lines} \end{{pmatrix}}"
    if not isinstance(value, Fraction) and not math.isfinite(value):
        return decimal(value)
    # rounding of the last digits is not printed
    exact, short = Fraction(value), Fraction(value).limit_denominator(MAX_DENOMINATOR)
    # 1/20 reads better as 0.05, 1/3 does not as 0.333333
    if abs(exact - short) > Fraction(1, 10**14) * abs(short) or (short.denominator > 8 and len(repr(float(exact))) < 6):
        return decimal(exact)
    whole = short.denominator == 1
    return str(short) if whole else ("-" if short < 0 else "") + frac(str(abs(short.numerator)), str(short.denominator))


def decimal(value: float | Fraction) -> str:
    """Write a number with six digits as LaTeX, also fractions beyond the range of floats."""
    try:
        # a Fraction may exceed the range of floats
        plain: float | Decimal = float(value)
    except OverflowError:
        plain = Decimal(value.numerator) / value.denominator  # type: ignore[union-attr]
    mantissa, _, power = f"{plain:.6g}".replace("inf", r"\infty").partition("e")
    tens = rf"10^{{{int(power)}}}" if power else ""
    return tens if power and mantissa == "1" else rf"{mantissa} \times {tens}" if power else mantissa


def times(*factors: Any) -> str:
    r"""Write a product of numbers and LaTeX texts: the product of the numbers first, without factors of one.

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
    """Write a sum of LaTeX terms, subtracting those that begin with a minus and leaving out empty ones.

    >>> total(["a", "", "-b", "c"])
    'a - b + c'
    """
    found = [term for term in terms if term]
    text = found[0] if found else "0"
    for term in found[1:]:
        text += f" - {term[1:].lstrip()}" if term.startswith("-") else f" + {term}"
    return text


def bracket(text: str) -> str:
    """Put LaTeX in parentheses of matching height."""
    return rf"\left({text}\right)"


def frac(top: str, bottom: str) -> str:
    """Write a fraction as LaTeX."""
    return rf"\frac{{{top}}}{{{bottom}}}"


def root(inside: str) -> str:
    """Write a square root as LaTeX."""
    return rf"\sqrt{{{inside}}}"


def power(letter: str, n: int) -> str:
    """Write a power of a letter as LaTeX; an empty text for the power 0."""
    return "" if n == 0 else letter if n == 1 else rf"{letter}^{{{n}}}"


def over_pi(value: float) -> str:
    """Write a number divided by pi as LaTeX.

    >>> print(over_pi(2.0), over_pi(0.5))
    \\frac{2}{\\pi} \\frac{1}{2 \\pi}
    """
    share = Fraction(value).limit_denominator(MAX_DENOMINATOR)
    if share != Fraction(value):
        return times(value, frac("1", r"\pi"))
    return ("-" if value < 0 else "") + frac(
        str(abs(share.numerator)), r"\pi" if share.denominator == 1 else rf"{share.denominator} \pi"
    )


def arcsin(inside: str) -> str:
    """Write an arcsine as LaTeX."""
    return rf"\arcsin{bracket(inside)}"


def one_over(letter: str, value: int) -> str:
    """Write 1/letter as LaTeX; an empty text if the letter's value is 1."""
    return "" if value == 1 else frac("1", letter)


def time_derivative(left: str) -> str:
    """Write the time derivative of a letter as LaTeX."""
    return frac(f"d{left}", "dt")
