"""Parser of schedules that are given as strings, on the command line and in sweep files."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from sgdlimits.errors import BadInput, shorten
from sgdlimits.part import is_schedule
from sgdlimits.schedule import OPERATIONS, Schedule, Time
from sgdlimits.schedule_forms import Cosine, Linear, Power, Steps, Warmup

FORMS: dict[str, Callable[..., Schedule]] = {
    "steps": Steps, "linear": Linear, "cosine": Cosine, "power": Power, "warmup": Warmup,
}  # fmt: skip
"""Classes of schedules, by the names that strings use for them."""
OPERATORS: dict[type, str] = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.Pow: "pow"}
"""Names of arithmetic operations of schedules, by their classes in Python's syntax tree."""
EXAMPLE_HINT = "Write, for instance, 0.1, 1/12, cosine(0.1, 0, 50), steps([10], [0.1, 0.01]) or 0.1/(1 + t/20)"


def read_schedule(text: str) -> Schedule | float:
    """Parse a number or a schedule from a string of the command line or a sweep file, without executing the string.

    The string may contain numbers, t, + - * / **, brackets, `steps`, `linear`, `cosine`, `power`, `warmup`, and `.shift(t)`.

    >>> read_schedule("1/12 + 0.1")
    0.18333333333333335
    >>> read_schedule("warmup(cosine(0.1, 0, 50), 5)")
    Warmup(schedule=Cosine(first=0.1, last=0, span=50), span=5)
    >>> read_schedule("cosine(0.1, 0)")
    Traceback (most recent call last):
        ...
    sgdlimits.errors.BadInput: 'cosine(0.1, 0)' is no schedule: cosine takes (first, last, span). Write, for instance, ...
    """
    try:
        result = _evaluate_node(ast.parse(text.strip(), mode="eval").body)
        if isinstance(result, list):
            raise BadInput("it is a row of numbers")
    # The parser raises RecursionError and MemoryError for deeply nested text.
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, TypeError, MemoryError) as reason:
        ours = isinstance(reason, BadInput)
        because = str(reason).split(". ")[0].rstrip(".") if ours else "it is not one expression"
        if isinstance(reason, ArithmeticError):
            because = "it divides by zero or is too large"
        raise BadInput(f"{shorten(text)} is no schedule: {because}. {EXAMPLE_HINT}.") from None
    return result


def _evaluate_node(node: ast.expr) -> Any:
    """Return the number or schedule that a syntax tree denotes; raise `BadInput` for a kind of node that is not allowed."""
    match node:
        case ast.Constant(value=bool()):  # True is an int in Python
            pass
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id="t"):
            return Time()
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_evaluate_node(part) for part in parts]
        case ast.UnaryOp(op=ast.USub(), operand=inside):
            return operator.neg(_evaluate_node(inside))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return OPERATIONS[OPERATORS[type(sign)]](_evaluate_node(left), _evaluate_node(right))
        case ast.Call(func=ast.Attribute(value=base, attr="shift"), args=[by], keywords=[]):
            schedule = _evaluate_node(base)
            if not is_schedule(schedule):
                raise BadInput("only schedules can be shifted")
            return schedule.shift(_evaluate_node(by))
        case ast.Call(func=ast.Name(id=name), args=given, keywords=named) if name.lower() in FORMS:
            form = FORMS[name.lower()]
            takes = [each for each in form.__annotations__ if each != "return"]
            more = {str(each.arg): _evaluate_node(each.value) for each in named}
            if len(given) + len(more) != len(takes) or not set(more) <= set(takes[len(given) :]):
                raise BadInput(f"{name} takes ({', '.join(takes)})")
            return form(*map(_evaluate_node, given), **more)
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)):
            raise BadInput(f"{name} is not known")
    raise BadInput(f"{shorten(ast.unparse(node))} is not allowed in a schedule")
