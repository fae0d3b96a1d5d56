"""Problems, levels, starts and conditions as JSON, so that a file says how it was made and can be made again.

What a file holds are public names and the arguments of constructors, not where the code lies: it may move. Nothing in a file
runs: a name is looked up among the package's own modules, JAX's elementary functions and what the user has registered, and all
that a file describes is made by constructors, which check their arguments.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import numpy as np

from sgdlimits.errors import BadInput
from sgdlimits.level.condition import Condition, Predicate
from sgdlimits.model.activation import sigmoid, tanh
from sgdlimits.part import arguments, is_default

PACKAGE = "sgdlimits"
ROOMS = (
    "statistics", "inputs", "model", "expectation", "expectation.gaussian", "algorithm", "problem", "level", "start",
    "model.activation", "schedule", "schedule_forms",
)  # fmt: skip
"""Where public names are looked up: what these modules export, the first that has a name counts."""
RENAMED = {"ClosedForm": "Squares", "ByRule": "NodeSums"}
"""Names in files written before, and what they are called now."""
WRITTEN = {"Mixture": "Data"}
"""Classes that files name as they did before, so that older files go on and sweeps find what they have."""
WRITTEN_ARGUMENTS = {("ProjectionProblem", "expectation"): "rule", ("MeanFieldProblem", "expectation"): "rule"}
"""Arguments of classes that files name as they did before, for the same reason."""
OWN = {"sigmoid": sigmoid, "tanh": tanh}
"""Functions of the package that files may name."""
ELEMENTARY = frozenset([
    "abs", "absolute", "arcsinh", "arctan", "celu", "cos", "cosh", "elu", "erf", "erfc", "exp", "expm1", "gelu", "hard_sigmoid",
    "hard_silu", "hard_swish", "hard_tanh", "identity", "leaky_relu", "log1p", "log_sigmoid", "logistic", "mish", "negative",
    "positive", "reciprocal", "relu", "relu6", "selu", "sigmoid", "sign", "silu", "sin", "sinc", "sinh", "soft_sign",
    "softplus", "square", "squareplus", "swish", "tanh",
])  # fmt: skip
"""JAX's functions that files may name: of one number, and free of side effects."""
KNOWN: dict[str, Any] = {}
"""Functions and classes of the user that files may name."""


def to_json(thing: Any) -> str:
    """A module of the package, or of a user, as JSON: its public name, what it was made of, its functions by name.

    >>> from sgdlimits.level import Chain
    >>> to_json(Chain(d=30))
    '{"class": "Chain", "fields": {"d": 30}}'
    """
    return json.dumps(_encode(thing))


def from_json(text: str) -> Any:
    """What `to_json` wrote. Functions and classes from outside the package must be known (see `register`)."""
    with reading():
        return _decode(json.loads(text))


@contextmanager
def reading() -> Iterator[None]:
    """A file may hold anything: what goes wrong while it is read is one sentence."""
    try:
        yield
    except BadInput:
        raise
    except Exception as reason:
        raise BadInput(f"the file does not say how it was made: {str(reason)[:200]}. Simulate it anew.") from reason


def register(thing: Any) -> Any:
    """Let files name a function or a class of yours, so that `load`, `rerun` and the command line can make it again.

    What you pass to `simulate` is known until Python ends; a file of another process needs this, once, before it is read.

    Parameters
    ----------
    thing : a function or a class at the top of a module

    Returns
    -------
    Callable
        the same thing, so that `@sgdlimits.register` may stand above it

    >>> def cube(x):
    ...     return x**3
    >>> register(cube) is cube
    True
    """
    name = name_of(thing) if callable(thing) else ""
    if not name or "<" in name:
        raise BadInput(
            f"only functions and classes with a name can be registered; got {thing!r}. Define it at the top of a module."
        )
    KNOWN[name] = thing
    return thing


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
        return {
            "class": noted(type(thing)),
            "fields": {_written(type(thing), name): _encode(value) for name, value in _recorded(thing)},
        }
    if callable(thing):
        return {"function": noted(thing)}
    raise BadInput(f"{type(thing).__name__} cannot be written to a file. Build problems from numbers, functions and modules.")


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
    before = getattr(cls, "recorded", {})  # files written before held attributes, under their names
    spellings = {name: (_written(cls, name), name, before.get(name)) for name in inspect.signature(cls).parameters}
    found = {name: next((key for key in keys if key in fields), None) for name, keys in spellings.items()}
    try:
        return cls(**{name: fields[key] for name, key in found.items() if key is not None})
    except TypeError as reason:
        raise BadInput(f"the file's {value['class']} cannot be made again: {reason}. Pass it to rerun yourself.") from reason


def _recorded(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments that a file holds: all but those that its class leaves out at their default, as older files do."""
    left_out = getattr(type(thing), "unwritten", {})
    yield from ((name, value) for name, value in arguments(thing) if not (name in left_out and is_default(value, left_out[name])))


def _written(cls: type, name: str) -> str:
    """Return the name by which files hold an argument of a class."""
    return WRITTEN_ARGUMENTS.get((cls.__name__, name), name)


def noted(thing: Any) -> str:
    """The name of a class or function that the user has passed: files may name it from now on."""
    name = name_of(thing)
    if ":" in name and "<" not in name:
        KNOWN[name] = thing
    return name


def name_of(thing: Any) -> str:
    """The public name of a class or function of the package; of others the module and the name in it."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return WRITTEN.get(name, name) if module.split(".")[0] == PACKAGE else f"{module}:{name}"


def find(name: str) -> Any:
    """The class or the function of a name. Addresses in files written before end in the public name."""
    module, _, path = str(name).rpartition(":")
    top = module.split(".")[0]
    if top in ("", PACKAGE):
        found = _public(RENAMED.get(path, path)) or OWN.get(path)
    else:
        found = KNOWN.get(name) or (_elementary(path) if top == "jax" else None)
    if found is None and "<" in path:
        raise BadInput(
            f"the file refers to {name}, a function without a name. Define it with def at the top of a module, give it to "
            "sgdlimits.register, and simulate anew; or pass problem= to rerun."
        )
    if found is None:
        raise BadInput(
            f"the file refers to {name}, which is not known here. Give it to sgdlimits.register if it is yours, pass problem= "
            "to rerun, or use the version of sgdlimits that wrote the file."
        )
    return found


def _public(name: str) -> Any:
    """A module of the package by its public name, or None."""
    for room in ROOMS:
        found = vars(importlib.import_module(f"{PACKAGE}.{room}")).get(name)
        if isinstance(found, type) and issubclass(found, eqx.Module) and found.__module__.split(".")[0] == PACKAGE:
            return found
    return None


def _elementary(name: str) -> Any:
    """One of JAX's elementary functions, or None."""
    rooms = (jax.nn, jax.numpy, jax.scipy.special, jax.lax)
    return next((getattr(room, name) for room in rooms if hasattr(room, name)), None) if name in ELEMENTARY else None
