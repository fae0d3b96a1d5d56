"""Problems, levels, starts and conditions as JSON, so that a file says how it was made and can be made again."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from typing import Any

import equinox as eqx
import jax
import numpy as np

from sgdlimits.errors import BadInput
from sgdlimits.level.condition import Condition, Predicate


def to_json(thing: Any) -> str:
    """A module of the package, or of a user, as JSON: its class, its numbers to the last digit, its functions by name.

    >>> from sgdlimits.level import Chain
    >>> to_json(Chain(d=30))
    '{"class": "sgdlimits.level.chain:Chain", "fields": {"d": 30}}'
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
    if isinstance(thing, eqx.Module):
        fields = {field.name: _encode(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
        return {"class": address(type(thing)), "fields": fields}
    if callable(thing):
        return {"function": address(thing)}
    raise BadInput(f"{type(thing).__name__} cannot be written to a file. Build problems from numbers, functions and modules.")


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return jax.numpy.asarray(value["array"], float)
    if "tuple" in value:
        return tuple(_decode(part) for part in value["tuple"])
    if "function" in value:
        return find(value["function"])
    cls = find(value["class"])
    module = object.__new__(cls)
    for name, field in value["fields"].items():
        object.__setattr__(module, name, _decode(field))
    return module


def address(thing: Any) -> str:
    """The module and the name of a class or a function."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return f"{module}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def find(address: str) -> Any:
    """The class or the function at an address."""
    module_name, _, path = address.partition(":")
    if module_name.split(".")[0] == "sgdlimits":
        importlib.import_module(module_name)
    found: Any = sys.modules.get(module_name)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise BadInput(
            f"the file refers to {address}, which is not at hand. Import its module first, or pass the problem to rerun."
        )
    return found
