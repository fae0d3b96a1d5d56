"""Docstrings and class names of the package, as its readers meet them in `help()`: ruff looks at the rest of their form."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "sgdlimits"
DESCRIBED = re.compile(
    r"(Adds|Applies|Builds|Calls|Checks|Computes|Creates|Executes|Finds|Gives|Holds|Keeps|Makes|Raises|Reads|Returns|Runs the"
    r"|Says|Sends|Solves|Takes|Tells|Turns|Writes|Adding|Building|Checking|Computing|Finding|Giving|Holding|Keeping|Making"
    r"|Raising|Reading|Returning|Running|Saying|Sending|Solving|Taking|Telling|Turning|Writing)\b"
)
"""Third persons and participles of the verbs with which functions are described."""


def definitions() -> Iterator[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef]]:
    """The modules, classes and functions of the package, each with its place."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield f"{path.relative_to(PACKAGE)}:{getattr(node, 'name', '')}", node


def test_first_lines_tell_what_to_do_or_name_a_thing():
    """A docstring begins with an imperative verb or a noun phrase: "Return the risk." or "The risk."."""
    wrong = {}
    for place, node in definitions():
        first = (ast.get_docstring(node) or "").split("\n")[0]
        if DESCRIBED.match(first):
            wrong[place] = first
    assert not wrong


def test_no_two_classes_have_the_same_name():
    """One word stands for one idea, and a name in an error or a repr for one class."""
    places = defaultdict(list)
    for place, node in definitions():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(place)
    assert not {name: found for name, found in places.items() if len(found) > 1}
