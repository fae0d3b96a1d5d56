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
"""Largest denominator for which a float is printed as a fraction."""


class Row(NamedTuple):
    """One line of LaTeX in a set of equations: left-hand and right-hand side, or a remark if the right-hand side is empty."""

    left: str
    right: str = ""

    def __str__(self) -> str:
        return rf"{self.left} &= {self.right}" if self.right else f"& {self.left}"


class Equations(NamedTuple):
    """Lines of LaTeX with the ODE of a problem, the definitions of its symbols and the values of its parameters.

    Parameters
    ----------
    ode : the time derivatives of the statistics
    where : definitions of the symbols in the ODE, each in terms of symbols defined further down, and remarks
    numbers : keyword, symbol and value of each parameter
    noise : covariance of the increments of one sample, and the definitions of its symbols
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
                rf"\text{{{escape_latex(word)} }} {letter} = {decimal_latex(value)}" for word, letter, value in known
            )
            rows.append(rf"& \text{{with }} {each}")
        return "\n".join([r"\begin{aligned}", " \\\\\n".join(rows), r"\end{aligned}"])


def escape_latex(word: str) -> str:
    """Escape the underscores of a name for use as text in LaTeX, and remove its backslashes.

    >>> escape_latex("lr_second")
    'lr\\\\_second'
    """
    return word.replace("\\", "").replace("_", r"\_")


def number_latex(value: Any) -> str:
    r"""Format a scalar, an array or a fraction as LaTeX: exactly if the exact form is short, else rounded.

    >>> number_latex(3.0), number_latex(0.5), number_latex(0.05), number_latex(1e-7)
    ('3', '\\frac{1}{2}', '0.05', '10^{-7}')
    """
    if np.ndim(value):
        rows = np.atleast_2d(np.asarray(value, float))
        lines = " \\\\ ".join(" & ".join(map(number_latex, row)) for row in rows)
        return rf"\begin{{pmatrix}} {lines} \end{{pmatrix}}"
    if not isinstance(value, Fraction) and not math.isfinite(value):
        return decimal_latex(value)
    # rounding of the last digits is not printed
    exact, short = Fraction(value), Fraction(value).limit_denominator(MAX_DENOMINATOR)
    # 1/20 reads better as 0.05, 1/3 does not as 0.333333
    if abs(exact - short) > Fraction(1, 10**14) * abs(short) or (short.denominator > 8 and len(repr(float(exact))) < 6):
        return decimal_latex(exact)
    whole = short.denominator == 1
    return (
        str(short) if whole else ("-" if short < 0 else "") + fraction_latex(str(abs(short.numerator)), str(short.denominator))
    )


def decimal_latex(value: float | Fraction) -> str:
    """Format a scalar as LaTeX with six significant digits; fractions beyond the range of floats are allowed."""
    try:
        # a Fraction may exceed the range of floats
        plain: float | Decimal = float(value)
    except OverflowError:
        plain = Decimal(value.numerator) / value.denominator  # type: ignore[union-attr]
    mantissa, _, power = f"{plain:.6g}".replace("inf", r"\infty").partition("e")
    tens = rf"10^{{{int(power)}}}" if power else ""
    return tens if power and mantissa == "1" else rf"{mantissa} \times {tens}" if power else mantissa


def product_latex(*factors: Any) -> str:
    r"""Format a product of scalars and LaTeX expressions: the product of the scalars first, without factors of one.

    >>> product_latex(4, 0.5, r"\gamma", "M_{jr}"), product_latex(1, "")
    ('2 \\gamma M_{jr}', '1')
    """
    value, letters = Fraction(1), []
    for factor in factors:
        if isinstance(factor, str):
            letters += [factor] if factor else []
        else:
            value *= Fraction(float(factor)) if not isinstance(factor, Fraction) else factor
    if not letters:
        return number_latex(value)
    sign = "-" if value < 0 else ""
    return sign + " ".join([*([number_latex(abs(value))] if abs(value) != 1 else []), *letters])


def sum_latex(terms: Iterable[str]) -> str:
    """Format a sum of LaTeX terms, subtracting those that begin with a minus sign and leaving out empty ones.

    >>> sum_latex(["a", "", "-b", "c"])
    'a - b + c'
    """
    found = [term for term in terms if term]
    text = found[0] if found else "0"
    for term in found[1:]:
        text += f" - {term[1:].lstrip()}" if term.startswith("-") else f" + {term}"
    return text


def bracket_latex(text: str) -> str:
    """Enclose a LaTeX expression in parentheses of matching height."""
    return rf"\left({text}\right)"


def fraction_latex(top: str, bottom: str) -> str:
    """Format a fraction of two LaTeX expressions."""
    return rf"\frac{{{top}}}{{{bottom}}}"


def root_latex(inside: str) -> str:
    """Format the square root of a LaTeX expression."""
    return rf"\sqrt{{{inside}}}"


def power_latex(letter: str, n: int) -> str:
    """Format the n-th power of a symbol as LaTeX; an empty string for n = 0."""
    return "" if n == 0 else letter if n == 1 else rf"{letter}^{{{n}}}"


def over_pi_latex(value: float) -> str:
    """Format a scalar divided by pi as LaTeX.

    >>> print(over_pi_latex(2.0), over_pi_latex(0.5))
    \\frac{2}{\\pi} \\frac{1}{2 \\pi}
    """
    share = Fraction(value).limit_denominator(MAX_DENOMINATOR)
    if share != Fraction(value):
        return product_latex(value, fraction_latex("1", r"\pi"))
    return ("-" if value < 0 else "") + fraction_latex(
        str(abs(share.numerator)), r"\pi" if share.denominator == 1 else rf"{share.denominator} \pi"
    )


def arcsin_latex(inside: str) -> str:
    """Format the arcsine of a LaTeX expression."""
    return rf"\arcsin{bracket_latex(inside)}"


def reciprocal_latex(letter: str, value: int) -> str:
    """Format the reciprocal of a symbol as LaTeX; an empty string if the symbol's value is 1."""
    return "" if value == 1 else fraction_latex("1", letter)


def time_derivative_latex(left: str) -> str:
    """Format the time derivative of a symbol as LaTeX."""
    return fraction_latex(f"d{left}", "dt")
