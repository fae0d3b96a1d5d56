"""Problems, levels, starts and conditions as JSON, so that a file says how it was made and can be made again.

What a file holds are public names and the arguments of constructors, not where the code lies: it may move.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from sgdlimits.errors import BadInput
from sgdlimits.level.condition import Condition, Predicate

PACKAGE = "sgdlimits"
ROOMS = ("statistics", "model", "expectation", "gaussian", "algorithm", "problem", "level", "start", "model.activation")
"""Where public names are looked up: what these modules export, the first that has a name counts."""
RENAMED = {"ClosedForm": "Squares", "ByRule": "NodeSums"}
"""Names in files written before, and what they are called now."""


def to_json(thing: Any) -> str:
    """A module of the package, or of a user, as JSON: its public name, what it was made of, its functions by name.

    >>> from sgdlimits.level import Chain
    >>> to_json(Chain(d=30))
    '{"class": "Chain", "fields": {"d": 30}}'
    """
    return json.dumps(_encode(thing))


def from_json(text: str) -> Any:
    """What `to_json` wrote. Functions and classes from outside the package are found only in modules already imported."""
    return _decode(json.loads(text))


def condition_text(condition: Condition | None) -> str:
    """A condition as a dataset holds it: JSON, or the name of a user's function, or nothing."""
    if isinstance(condition, Predicate):
        return getattr(condition.fn, "__qualname__", repr(condition.fn))
    return "" if condition is None else to_json(condition)


def _encode(thing: Any) -> Any:
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    if isinstance(thing, (jax.Array, np.ndarray, np.generic)):
        return {"array": np.asarray(thing).tolist()}
    if isinstance(thing, tuple):
        return {"tuple": [_encode(part) for part in thing]}
    if isinstance(thing, dict):
        return {"dict": {name: _encode(part) for name, part in thing.items()}}
    if isinstance(thing, eqx.Module):
        return {"class": name_of(type(thing)), "fields": {name: _encode(value) for name, value in _arguments(thing)}}
    if callable(thing):
        return {"function": name_of(thing)}
    raise BadInput(f"{type(thing).__name__} cannot be written to a file. Build problems from numbers, functions and modules.")


def _arguments(module: eqx.Module) -> Iterator[tuple[str, Any]]:
    """The arguments of a module's constructor, which it keeps as attributes of the same name, or of that in `recorded`."""
    other = getattr(type(module), "recorded", {})
    for name in inspect.signature(type(module)).parameters:
        attribute = other.get(name, name)
        if hasattr(module, attribute):
            yield name, getattr(module, attribute)


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.asarray(value["array"], float)
    if "tuple" in value:
        return tuple(_decode(part) for part in value["tuple"])
    if "dict" in value:
        return {name: _decode(part) for name, part in value["dict"].items()}
    if "function" in value:
        return find(value["function"])
    cls, fields = find(value["class"]), {name: _decode(field) for name, field in value["fields"].items()}
    known = {new: fields[old] for new, old in _spelt(cls, fields).items()}
    try:
        return cls(**known)
    except TypeError as reason:
        raise BadInput(f"the file's {value['class']} cannot be made again: {reason}. Pass it to rerun yourself.") from reason


def _spelt(cls: type, fields: dict) -> dict[str, str]:
    """The constructor's arguments, and under which name a file has each: files written before held attributes."""
    other = getattr(cls, "recorded", {})
    found = {
        name: next((n for n in (name, other.get(name)) if n in fields), None) for name in inspect.signature(cls).parameters
    }
    return {name: spelling for name, spelling in found.items() if spelling is not None}


def name_of(thing: Any) -> str:
    """The public name of a class or function of the package; of others the module and the name in it."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return name if module.split(".")[0] == PACKAGE else f"{module}:{name}"


def find(name: str) -> Any:
    """The class or the function of a name. Addresses in files written before end in the public name."""
    module_name, _, path = name.rpartition(":")
    if not module_name or module_name.split(".")[0] == PACKAGE:
        found = _public(RENAMED.get(path, path))
    else:
        found = sys.modules.get(module_name)
        for part in path.split("."):
            found = getattr(found, part, None)
    if found is None:
        raise BadInput(
            f"the file refers to {name}, which is not at hand here. Import its module first, pass the problem to rerun, or use "
            "the version of sgdlimits that wrote the file."
        )
    return found


def _public(name: str) -> Any:
    """A name of the package's own, or None."""
    for room in ROOMS:
        found = getattr(importlib.import_module(f"{PACKAGE}.{room}"), name, None)
        if str(getattr(found, "__module__", "")).startswith(PACKAGE):
            return found
    return None
