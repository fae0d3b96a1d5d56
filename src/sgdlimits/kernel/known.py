"""A name for what a program is made from, which the next process has for it too: what was compiled is then not even traced.

Only what belongs to this package has such a name, with numbers, texts and functions of JAX and NumPy. A user's own class or
function may be another one tomorrow, and has none.
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

OURS = (__name__.partition(".")[0], "jax", "numpy")


class Unnamed(Exception):
    """Something has no name that the next process would have for it."""


def name_of(*things: Any) -> str | None:
    """The name of all things together, or None where one of them has none."""
    try:
        text = repr([_named(thing) for thing in things])
    except Unnamed:
        return None
    versions = [each.__version__ for each in (jax, np, eqx)]
    return hashlib.sha256("\0".join([text, *versions, _sources()]).encode()).hexdigest()


def pattern(values: np.ndarray) -> np.ndarray:
    """What a program depends on of the numbers that it takes as inputs: zeros and ones, which simplify it; 2 for all others."""
    return np.where(np.isin(values, (0.0, 1.0)), values, 2.0).astype(np.int8)


def _named(thing: Any) -> Any:
    if thing is None or isinstance(thing, (bool, int, float, str, bytes)):
        return thing
    if isinstance(thing, (tuple, list)):
        kind = type(thing).__name__ if type(thing) in (tuple, list) else _place(type(thing))
        return [kind, *(_named(each) for each in thing)]
    if isinstance(thing, dict):
        return {_named(key): _named(value) for key, value in sorted(thing.items())}
    if isinstance(thing, jax.ShapeDtypeStruct):
        return str(thing)
    if isinstance(thing, (np.ndarray, np.generic, jax.Array)):
        values = np.asarray(thing)
        values = pattern(values) if values.dtype == np.float64 else values
        return values.dtype.str, values.shape, values.tobytes()
    if isinstance(thing, eqx.Module):
        return _place(type(thing)), [_named(getattr(thing, field.name)) for field in dataclasses.fields(thing)]
    return _place(thing)


def _place(thing: Any) -> str:
    """Where a class or a function is found: there and nowhere else, so that nothing made from it has its name."""
    module, name = (str(getattr(thing, each, "")) for each in ("__module__", "__qualname__"))
    found: Any = sys.modules.get(module) if module.partition(".")[0] in OURS else None
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not thing:
        raise Unnamed
    return f"{module}:{name}"


@lru_cache(maxsize=1)
def _sources() -> str:
    """When each file of the package was changed last, as one hash."""
    found, folders = hashlib.sha256(), [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    while folders:
        for entry in sorted(os.scandir(folders.pop()), key=lambda entry: entry.name):
            if entry.is_dir():
                folders.append(entry.path)
            elif entry.name.endswith(".py"):
                status = entry.stat()
                found.update(f"{entry.path} {status.st_mtime_ns} {status.st_size}\n".encode())
    return found.hexdigest()
