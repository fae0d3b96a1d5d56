"""Functions of users by name, as a specification or a command line gives them: importing one runs its module."""

from __future__ import annotations

import hashlib
import importlib
import types
from collections.abc import Callable
from typing import Any

from sgdlimits.errors import BadInput


class Name(str):
    """The name of a function, with the function. As JSON, or pickled, it is the name alone."""

    fn: Callable

    def __reduce_ex__(self, protocol: Any) -> Any:
        return str, (str(self),)


def named(fn: Callable) -> Name:
    """Return the name `module:function` of a function, with the function itself; other processes have to import it.

    Of functions that no module has, those of a script or a notebook, the code counts as well, with the numbers and functions
    that it refers to: whoever changes one has another function.
    """
    module = getattr(fn, "__module__", None) or type(fn).__module__
    name = f"{module}:{getattr(fn, '__qualname__', type(fn).__qualname__)}"
    if not is_importable(name):
        name = f"{name}@{hashlib.sha256(repr(_content(fn, set())).encode()).hexdigest()[:12]}"
    found = Name(name)
    found.fn = fn
    return found


def importable(name: str) -> bool:
    """Whether another process can import a function."""
    return "<" not in name and not name.startswith("__main__:")


def _content(thing: Any, seen: set[int]) -> Any:
    """What a function does, as far as its code, its defaults and what it refers to say: texts and numbers."""
    thing = getattr(thing, "__wrapped__", thing)
    if isinstance(thing, types.CodeType):
        return (thing.co_code.hex(), thing.co_names, [_content(each, seen) for each in thing.co_consts])
    if isinstance(thing, types.FunctionType) and id(thing) not in seen:
        seen.add(id(thing))
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        there = [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]
        return [_content(each, seen) for each in (thing.__code__, *cells, *there, *(thing.__defaults__ or ()))]
    if isinstance(thing, (tuple, list)):
        return [_content(each, seen) for each in thing]
    if thing is None or isinstance(thing, (bool, int, float, complex, str, bytes)):
        return repr(thing)
    return getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None) or type(thing).__name__


def called(name: str) -> Any:
    """Return the function of a name `module:function`: the one that `named` gave the name, or else imported."""
    if isinstance(name, Name):
        return name.fn
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
