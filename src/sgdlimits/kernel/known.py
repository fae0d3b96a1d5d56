"""A name for what a program is made from, which the next process has for it too: what was compiled is then not even traced.

Only what belongs to this package has such a name, with numbers, texts and functions of JAX and NumPy. A user's own class or
function may be another one tomorrow, and has none.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import numpy as np

PACKAGE = __name__.partition(".")[0]
OURS = (PACKAGE, "jax", "numpy")


class Unnamed(Exception):
    """Something has no name that the next process would have for it."""


def name_of(*things: Any) -> str | None:
    """The name of all things together, or None where one of them has none."""
    try:
        text = repr([_named(thing) for thing in things])
    except Unnamed:
        return None
    return hashlib.sha256("\0".join([text, jax.__version__, np.__version__, _sources()]).encode()).hexdigest()


def _named(thing: Any) -> Any:
    if thing is None or isinstance(thing, (bool, int, float, str, bytes)):
        return thing
    if isinstance(thing, (tuple, list)):
        return [type(thing).__name__, *(_named(each) for each in thing)]
    if isinstance(thing, dict):
        return {_named(key): _named(value) for key, value in sorted(thing.items())}
    if isinstance(thing, jax.ShapeDtypeStruct):
        return str(thing)
    if isinstance(thing, (np.ndarray, np.generic, jax.Array)):
        values = np.asarray(thing)
        if values.dtype == np.float64:  # an input, but for zeros and ones
            values = np.where(np.isin(values, (0.0, 1.0)), values, 2.0).astype(np.int8)
        return values.dtype.str, values.shape, values.tobytes()
    if isinstance(thing, eqx.Module):
        return _place(type(thing)), [_named(getattr(thing, field.name)) for field in dataclasses.fields(thing)]
    return _place(thing)


def _place(thing: Any) -> str:
    """Where a class or a function is found, where that is all there is to it."""
    module, name = (str(getattr(thing, each, "<")) for each in ("__module__", "__qualname__"))
    if module.partition(".")[0] not in OURS or "<" in name or getattr(thing, "__closure__", None):
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
