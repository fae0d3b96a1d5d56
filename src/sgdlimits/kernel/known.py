"""Process-independent names of the objects that define a flat program, so that later processes load its code untraced.

Objects of this package have names, as do floats, strings, arrays, and functions of JAX and NumPy. A user's own class or
function has none, since its code may change from one process to the next without any sign.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import numpy as np

PACKAGES_WITH_STABLE_NAMES = (__name__.partition(".")[0], "jax", "numpy")
"""Packages whose classes and functions are identified by their qualified names, together with the versions of the packages."""


class NoPersistentName(Exception):
    """Error for an object without a process-independent name."""


def make_persistent_name(*things: Any) -> str | None:
    """Return one process-independent name (a hash) for several objects, or None if any of them has none."""
    try:
        text = repr([_describe_object(thing) for thing in things])
    except NoPersistentName:
        return None
    versions = [each.__version__ for each in (jax, np, eqx)]
    return hashlib.sha256("\0".join([text, *versions, _source_hash()]).encode()).hexdigest()


def pattern_of_equal_values(values: np.ndarray) -> np.ndarray:
    """Replace all values other than 0 and 1 by 2: a program depends only on which of its parameters are 0 or 1."""
    return np.where(np.isin(values, (0.0, 1.0)), values, 2.0).astype(np.int8)


def _describe_object(thing: Any) -> Any:
    """Describe an object by plain Python values that identify it; raise `NoPersistentName` if that is not possible."""
    if thing is None or isinstance(thing, (bool, int, float, str, bytes)):
        return thing
    if isinstance(thing, (tuple, list)):
        kind = type(thing).__name__ if type(thing) in (tuple, list) else _qualified_name(type(thing))
        return [kind, *(_describe_object(each) for each in thing)]
    if isinstance(thing, dict):  # equal dictionaries may differ in order
        return {_describe_object(key): _describe_object(value) for key, value in sorted(thing.items())}
    if isinstance(thing, jax.ShapeDtypeStruct):
        return str(thing)
    if isinstance(thing, (np.ndarray, np.generic, jax.Array)):
        values = np.asarray(thing)
        # Doubles are inputs of programs, so that only their pattern counts; integers are part of the code.
        values = pattern_of_equal_values(values) if values.dtype == np.float64 else values
        return values.dtype.str, values.shape, values.tobytes()
    if isinstance(thing, eqx.Module):
        return _qualified_name(type(thing)), [
            _describe_object(getattr(thing, field.name)) for field in dataclasses.fields(thing)
        ]
    return _qualified_name(thing)


def _qualified_name(thing: Any) -> str:
    """Return `module:name` of a class or function; raise `NoPersistentName` if its import gives another object.

    A decorated or local function has the name of another object, or of none.
    """
    module, name = (str(getattr(thing, each, "")) for each in ("__module__", "__qualname__"))
    found: Any = sys.modules.get(module) if module.partition(".")[0] in PACKAGES_WITH_STABLE_NAMES else None
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not thing:
        raise NoPersistentName
    return f"{module}:{name}"


@lru_cache(maxsize=1)
def _source_hash() -> str:
    """Return a hash of the paths, modification times and sizes of all source files of the package.

    Names of cache entries depend on this hash, so that an edited package compiles anew.
    """
    found, folders = hashlib.sha256(), [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    while folders:
        for entry in sorted(os.scandir(folders.pop()), key=lambda entry: entry.name):
            if entry.is_dir():
                folders.append(entry.path)
            elif entry.name.endswith(".py"):
                status = entry.stat()
                found.update(f"{entry.path} {status.st_mtime_ns} {status.st_size}\n".encode())
    return found.hexdigest()
