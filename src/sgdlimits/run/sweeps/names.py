"""Names `module:function` of users' functions, for files of sweeps and other processes. Importing one runs its module."""

from __future__ import annotations

import hashlib
import importlib
import types
from collections.abc import Callable
from typing import Any

from sgdlimits.errors import BadInput


class FunctionName(str):
    """String `module:function` that also carries the function itself, as `fn`; JSON and pickles store only the string."""

    fn: Callable

    def __reduce_ex__(self, protocol: Any) -> Any:
        return str, (str(self),)  # the function itself need not be picklable


def function_name(fn: Callable) -> FunctionName:
    """Return the name `module:function` of a function, from which other processes can import it.

    Functions of a script or a notebook cannot be imported. A hash of their code, and of the values and functions that it refers
    to, is appended to their name, so that results computed before an edit are not taken for those after it.
    """
    module = getattr(fn, "__module__", None) or type(fn).__module__
    name = f"{module}:{getattr(fn, '__qualname__', type(fn).__qualname__)}"
    if not is_importable(name):
        name = f"{name}@{hashlib.sha256(repr(_describe_code(fn, set())).encode()).hexdigest()[:12]}"
    named = FunctionName(name)
    named.fn = fn
    return named


def is_importable(name: str) -> bool:
    """Return whether another process can import the function with a name `module:function`."""
    return "<" not in name and not name.startswith("__main__:")


def _describe_code(thing: Any, seen: set[int]) -> Any:
    """Return nested strings that identify what a function computes: code, defaults, closure and the globals it uses.

    `seen` has the ids of functions described already, since functions may refer to each other.
    """
    thing = getattr(thing, "__wrapped__", thing)
    if isinstance(thing, types.CodeType):
        return (thing.co_code.hex(), thing.co_names, [_describe_code(each, seen) for each in thing.co_consts])
    # Hashes of bytecode, not of source: a comment changes nothing, and a notebook may have no source.
    if isinstance(thing, types.FunctionType) and id(thing) not in seen:
        seen.add(id(thing))
        cells = [cell.cell_contents for cell in thing.__closure__ or ()]
        used = [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]
        return [_describe_code(each, seen) for each in (thing.__code__, *cells, *used, *(thing.__defaults__ or ()))]
    if isinstance(thing, (tuple, list)):
        return [_describe_code(each, seen) for each in thing]
    if thing is None or isinstance(thing, (bool, int, float, complex, str, bytes)):
        return repr(thing)
    return getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None) or type(thing).__name__


def import_function(name: str) -> Any:
    """Return the function with a name `module:function`; its module is imported unless the name carries the function."""
    if isinstance(name, FunctionName):
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
