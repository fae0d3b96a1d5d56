"""Descriptions of functions and classes for help pages: docstrings as plain text, and arguments of constructors."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
import unicodedata
from functools import cache
from typing import Any, NamedTuple

_SYMBOLS = {
    "cdot": "·", "times": "×", "otimes": "⊗", "perp": "⊥", "sum": "Σ", "prod": "Π", "sim": "~", "le": "≤",
    "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "approx": "≈", "infty": "∞", "to": "→", "leftarrow": "←",
    "rightarrow": "→", "top": "T", "in": "∈", "pm": "±", "langle": "<", "rangle": ">", "ldots": "...",
    "dots": "...", "quad": " ", "qquad": " ",
}  # fmt: skip


class Description(NamedTuple):
    """Content of a docstring as plain text: its first paragraph, and the descriptions of its parameters by name."""

    summary: str
    parameters: dict[str, str]


@cache
def describe(thing: Any) -> Description:
    """Return the first paragraph and the parameters' descriptions in the docstring of a function or class.

    >>> def f(lr):
    ...     r\"\"\"Learn [1]_.
    ...
    ...     Parameters
    ...     ----------
    ...     lr : :math:`\\gamma`, the learning rate
    ...     \"\"\"
    >>> describe(f)
    Description(summary='Learn.', parameters={'lr': 'γ, the learning rate'})
    """
    text = inspect.getdoc(thing) or ""
    return Description(strip_markup(text.split("\n\n")[0]), _parse_parameters(text))


def strip_markup(text: str) -> str:
    r"""Return a docstring, or a part of one, on one line, without markup and with formulas in Unicode.

    >>> strip_markup(r"labels :math:`y = \frac1{p^*}\sum_l (w^*_l\cdot x)^2 + \sqrt\Delta z`, see `RandomInit` [1]_.")
    'labels y = 1/p* Σ_l (w*_l·x)^2 + √Δ z, see RandomInit.'
    """
    text = re.sub(r"\s*\[\w+\]_", "", text)
    text = re.sub(r":math:`([^`]*)`", lambda found: _formula_to_unicode(found[1]), text)
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text)
    return " ".join(text.replace("`", "").split())


def _formula_to_unicode(text: str) -> str:
    """Convert a LaTeX formula to Unicode."""
    text = re.sub(r"\\(?:text|mathrm|mathbb|mathcal|bm|mathbf)\s*\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\[td]?frac\s*(?:\{([^{}]*)\}|(\w))\s*(?:\{([^{}]*)\}|(\w))", _fraction_to_text, text)
    text = re.sub(r"\\sqrt\s*\{([^{}]*)\}", lambda found: _root_to_text(found[1]), text)
    text = re.sub(r"\\sqrt\s*", "√", text)
    text = re.sub(r"\\dot(?![a-z])\s*\{?(\w)\}?", r"d\1/dt", text)
    text = re.sub(r"\\([A-Za-z]+)\s*", _command_to_symbol, text)
    text = re.sub(r"\\[,;:! ]", " ", text)
    # Stars of fixed points and teachers are written without their braces.
    text = text.replace("^*", "*").replace("_*", "*").replace("{", "").replace("}", "").replace("~", " ")
    return " ".join(text.replace("\\", "").split())


def _fraction_to_text(found: re.Match[str]) -> str:
    """Convert a LaTeX fraction, matched by a regular expression, to a string such as "a/b"."""
    top, bottom = found[1] or found[2], found[3] or found[4]
    return f"{_add_brackets(top)}/{_add_brackets(bottom)} "


def _add_brackets(text: str) -> str:
    """Put a formula in brackets if it contains an operator."""
    return f"({text})" if re.search(r"[-+ /]", text.strip()) else text


def _root_to_text(text: str) -> str:
    """Return the square root of a formula as a Unicode string, such as "√(a + b)"."""
    return f"√({text})" if len(text) > 1 and not re.fullmatch(r"\\\w+", text) else f"√{text}"


def _command_to_symbol(found: re.Match[str]) -> str:
    """Return the Unicode symbol or Greek letter of a matched LaTeX command, or its name if it has none."""
    name = found[1]
    if name in _SYMBOLS:
        return _SYMBOLS[name]
    if name in ("left", "right", "big", "bigl", "bigr", "hat", "bar", "mathrel", "partial"):
        return "∂" if name == "partial" else ""
    # Unicode spells the letter "LAMDA".
    case = "CAPITAL" if name[0].isupper() else "SMALL"
    try:
        letter = unicodedata.lookup(f"GREEK {case} LETTER {name.upper().replace('LAMBDA', 'LAMDA')}")
    except KeyError:
        return f"{name} "
    return f"{letter} " if found[0][-1].isspace() else letter


def _parse_parameters(text: str) -> dict[str, str]:
    """Return the parameters' descriptions, by name, in the section "Parameters" of a NumPy-style docstring."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n-{3,}\n|\Z)", text, re.MULTILINE | re.DOTALL)
    if not section:
        return {}
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", section[1].split("\n\n")[0]):
        names, colon, words = entry.partition(" : ")
        for name in names.split(",") if colon else ():
            found[name.strip(" *`")] = strip_markup(words)
    return found


def constructor_fields(cls: Any) -> list[dataclasses.Field]:
    """Return the fields of a data class (or of an instance of one) that are arguments of its constructor."""
    return [field for field in dataclasses.fields(cls) if field.init]


def typed_parameters(fn: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function by name; annotations are evaluated to types, without the checks they carry."""
    types = typing.get_type_hints(fn)
    parameters = inspect.signature(fn).parameters
    return {name: each.replace(annotation=types.get(name, Any)) for name, each in parameters.items()}
