"""Functions of users by name, as a specification or a command line gives them: importing one runs its module."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from typing import Any

from sgdlimits.errors import BadInput

HERE: dict[str, Callable] = {}
"""Functions that were passed as they are, by name: this process knows them, others have to import them."""


def named(fn: Callable) -> str:
    """The name `module:function` of a function, which this process knows from now on.

    Functions without a name of their own, which only this process can have, are told apart by their code and what it refers to.
    """
    module = getattr(fn, "__module__", None) or type(fn).__module__
    name = f"{module}:{getattr(fn, '__qualname__', type(fn).__qualname__)}"
    if "<" in name:
        name = f"{name}@{_fingerprint(fn)}"
    HERE[name] = fn
    return name


def importable(name: str) -> bool:
    """Whether another process can import a function."""
    return "<" not in name and not name.startswith("__main__:")


def _fingerprint(fn: Any) -> str:
    code = getattr(fn, "__code__", None)
    held = [repr(cell.cell_contents) for cell in getattr(fn, "__closure__", None) or ()]
    parts = (repr(fn),) if code is None else (code.co_code.hex(), repr(code.co_consts), repr(code.co_names))
    return hashlib.sha256("\n".join([*parts, *held, repr(getattr(fn, "__defaults__", None))]).encode()).hexdigest()[:12]


def called(name: str) -> Any:
    """The function of a name `module:function`, imported unless it was passed in this process."""
    if name in HERE:
        return HERE[name]
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as reason:
        raise BadInput(
            f"{name} cannot be imported: {reason}. Give module:function, in a module that Python finds from this folder."
        ) from reason
    if not callable(found):
        raise BadInput(f"{name} is not a function. Give module:function.")
    return found
