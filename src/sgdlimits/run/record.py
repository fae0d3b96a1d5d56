"""Conversion of problems, levels, starts and conditions to JSON and back, so that a file records how it was made.

The JSON holds public names and the arguments of constructors, not the modules in which the code lies, which may move. Reading
it executes and imports nothing. A name is looked up among the package's own modules, among some functions of JAX, and among the
functions and classes that the user has registered or passed; constructors build everything else, and check their arguments.

Two tables hold functions and classes of the user. `register` adds one to the first table until Python ends. `to_json` adds
those that it names to the second table, which has weak references: a dataset can be made again while the user's functions
exist, and the table keeps none of them alive. Imported modules are never searched for a name: they have `os.system` too.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakValueDictionary

import equinox as eqx
import jax
import numpy as np

from sgdlimits.errors import BadInput
from sgdlimits.level.condition import Condition, Predicate
from sgdlimits.model.activation import sigmoid, tanh
from sgdlimits.part import constructor_arguments, is_default

PACKAGE = "sgdlimits"
PUBLIC_MODULES = (
    "statistics", "inputs", "model", "expectation", "expectation.gaussian", "algorithm", "problem", "level", "start",
    "model.activation", "schedule", "schedule_forms",
)  # fmt: skip
"""Modules whose exported classes files may refer to by name; the first module that has a name is used."""
RENAMED_CLASSES = {"ClosedForm": "Squares", "ByRule": "NodeSums"}
"""Present names of renamed classes, by the names that files of earlier versions have for them."""
# Files keep the two earlier kinds of names below, so that the hashes by which sweeps find their files stay the same.
NAMES_IN_FILES = {"Mixture": "Data"}
"""Names of the package's classes in files, by the present names of the classes, where the two differ."""
ARGUMENTS_IN_FILES = {("ProjectionProblem", "expectation"): "rule", ("MeanFieldProblem", "expectation"): "rule"}
"""Names of constructor arguments in files, by class and present argument name, where the two names differ."""
PACKAGE_FUNCTIONS = {"sigmoid": sigmoid, "tanh": tanh}
"""Functions of the package that files may refer to by name."""
JAX_FUNCTIONS = frozenset([
    "abs", "absolute", "arcsinh", "arctan", "celu", "cos", "cosh", "elu", "erf", "erfc", "exp", "expm1", "gelu", "hard_sigmoid",
    "hard_silu", "hard_swish", "hard_tanh", "identity", "leaky_relu", "log1p", "log_sigmoid", "logistic", "mish", "negative",
    "positive", "reciprocal", "relu", "relu6", "selu", "sigmoid", "sign", "silu", "sin", "sinc", "sinh", "soft_sign",
    "softplus", "square", "squareplus", "swish", "tanh",
])  # fmt: skip
"""Functions of JAX that files may refer to by name: functions of one number without side effects."""

_registered_objects: dict[str, Any] = {}
"""Dictionary of the functions and classes that the user has passed to `register`, by name."""
_named_objects: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Dictionary of the user's functions and classes that `to_json` has written by name, for as long as they exist."""


def to_json(thing: Any) -> str:
    """Return a problem, level, start or other object as JSON: its public name and arguments, with functions by name.

    As long as these functions and classes exist, `from_json` finds them by name in this process.

    >>> from sgdlimits.level import Chain
    >>> to_json(Chain(d=30))
    '{"class": "Chain", "fields": {"d": 30}}'
    """
    return json.dumps(_encode(thing))


def from_json(text: str) -> Any:
    """Rebuild the object that `to_json` described; functions and classes of users must be known (see `register`)."""
    with explain_decoding_errors():
        return _decode(json.loads(text))


@contextmanager
def explain_decoding_errors() -> Iterator[None]:
    """Turn any exception in the block, which decodes the content of an untrusted file, into a `BadInput`."""
    try:
        yield
    except BadInput:
        raise
    except Exception as reason:
        raise BadInput(f"the file does not record how it was made: {str(reason)[:200]}. Simulate again.") from reason


def register(thing: Any) -> Any:
    """Register a function or class of yours by name, so that `load`, `rerun` and the command line can use it.

    A function that you pass to `simulate` is known while it exists. Register it before you read a file of another process.

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
    name = public_name(thing) if callable(thing) else ""
    if not name or "<" in name:
        raise BadInput(
            f"only functions and classes with a name can be registered; got {thing!r}. Define it with def or class "
            f"at the top level of a module."
        )
    _named_objects.pop(name, None)  # which would count before
    _registered_objects[name] = thing
    return thing


def format_condition(condition: Condition | None) -> str:
    """Return the string that records a stop condition in a dataset: JSON, the name of a user's function, or "" for None."""
    if isinstance(condition, Predicate):
        return getattr(condition.fn, "__qualname__", repr(condition.fn))
    return "" if condition is None else to_json(condition)


def _encode(thing: Any) -> Any:
    """Return an object as nested JSON values: numbers, lists and dictionaries, with classes and functions by name."""
    if thing is None or isinstance(thing, (bool, int, float, str)):
        return thing
    if isinstance(thing, (jax.Array, np.ndarray, np.generic)):
        return {"array": np.asarray(thing).tolist()}
    if isinstance(thing, tuple):
        return {"tuple": [_encode(part) for part in thing]}
    if isinstance(thing, dict):
        return {"dict": {name: _encode(part) for name, part in thing.items()}}
    if isinstance(thing, eqx.Module):
        fields = {_argument_name_in_files(type(thing), name): _encode(value) for name, value in _recorded_arguments(thing)}
        return {"class": record_name(type(thing)), "fields": fields}
    if callable(thing):
        return {"function": record_name(thing)}
    raise BadInput(f"{type(thing).__name__} cannot be written to a file. Build problems from numbers, functions and modules.")


def _decode(value: Any) -> Any:
    """Rebuild an object from the nested JSON values that `_encode` returned."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.asarray(value["array"], float)
    if "tuple" in value:
        return tuple(_decode(part) for part in value["tuple"])
    if "dict" in value:
        return {name: _decode(part) for name, part in value["dict"].items()}
    if "function" in value:
        return find_named_object(value["function"])
    cls, fields = find_named_object(value["class"]), {name: _decode(field) for name, field in value["fields"].items()}
    recorded = getattr(cls, "recorded", {})  # files of earlier versions hold arguments by the names of their attributes
    spellings = {
        name: (_argument_name_in_files(cls, name), name, recorded.get(name)) for name in inspect.signature(cls).parameters
    }
    found = {name: next((key for key in keys if key in fields), None) for name, keys in spellings.items()}
    try:
        return cls(**{name: fields[key] for name, key in found.items() if key is not None})
    except TypeError as reason:
        raise BadInput(f"the file's {value['class']} cannot be rebuilt: {reason}. Pass the object to rerun.") from reason


def _recorded_arguments(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of an object that a file stores: all but those of `omitted_in_files` that have their default."""
    defaults = getattr(type(thing), "omitted_in_files", {})
    for name, value in constructor_arguments(thing):
        if not (name in defaults and is_default(value, defaults[name])):
            yield name, value


def _argument_name_in_files(cls: type, name: str) -> str:
    """Return the name that files have for an argument of a class's constructor."""
    return ARGUMENTS_IN_FILES.get((cls.__name__, name), name)


def record_name(thing: Any) -> str:
    """Return the name of a class or function in files, and remember the object, so that this process can read the file."""
    name = public_name(thing)
    if ":" in name and "<" not in name:
        with suppress(TypeError):  # few callables, such as ufuncs of NumPy, have no weak references: they need `register`
            _named_objects[name] = thing
    return name


def public_name(thing: Any) -> str:
    """Return the name of a class or function in files: its public name in the package, `module:name` for any other."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return NAMES_IN_FILES.get(name, name) if module.split(".")[0] == PACKAGE else f"{module}:{name}"


def find_named_object(name: str) -> Any:
    """Return the class or function to which a file refers by name, without importing or executing anything.

    In files of earlier versions, the module comes before the public name of a class of the package; the name alone counts.
    """
    module, _, path = str(name).rpartition(":")
    top = module.split(".")[0]
    if top in ("", PACKAGE):
        found = _public_class(RENAMED_CLASSES.get(path, path)) or PACKAGE_FUNCTIONS.get(path)
    else:
        found = _named_objects.get(name) or _registered_objects.get(name) or (_jax_function(path) if top == "jax" else None)
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


def _public_class(name: str) -> Any:
    """Return the class of the package with a public name, or None if there is none."""
    for module in PUBLIC_MODULES:
        found = vars(importlib.import_module(f"{PACKAGE}.{module}")).get(name)
        if isinstance(found, type) and issubclass(found, eqx.Module) and found.__module__.split(".")[0] == PACKAGE:
            return found
    return None


def _jax_function(name: str) -> Any:
    """Return the function of JAX with a name, or None if files may not refer to it."""
    modules = (jax.nn, jax.numpy, jax.scipy.special, jax.lax)
    return next((getattr(room, name) for room in modules if hasattr(room, name)), None) if name in JAX_FUNCTIONS else None
