"""Base class of problems, levels, starts and their components, which print as typed and compare by content."""

from __future__ import annotations

import inspect
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import numpy as np

from sgdlimits.errors import BadInput, is_traced

MAX_PRINTED_ENTRIES = 12
"""Maximum number of entries of an array that is printed in full; larger arrays are printed as their shape."""


class Unpicklable(BadInput, pickle.PicklingError):
    """Error for a function in a pickled object that other processes could not import by name."""


class Part(eqx.Module):
    """Base class of immutable objects with named arguments, which print as they are typed and compare by content.

    Arrays are compared by value, functions by identity. Traced arrays equal themselves only, and an object with one has no
    hash.
    """

    is_schedule: ClassVar[bool] = False
    """Whether the class is a `Schedule`, whose value changes with time."""

    def at(self, t: Any) -> Self:
        """Return the object with its schedules replaced by their values at time t; the object itself if it has no schedule."""
        leaves, tree = jax.tree.flatten(self, is_leaf=is_schedule)  # schedules are pytrees of their own parameters
        if not any(map(is_schedule, leaves)):
            return self
        return jax.tree.unflatten(tree, [leaf(t) if is_schedule(leaf) else leaf for leaf in leaves])

    def __repr__(self) -> str:
        return format_constructor(self)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self is other or _hashable_content(self) == _hashable_content(other)

    def __hash__(self) -> int:
        if any(map(is_traced, jax.tree.leaves(self))):
            raise TypeError(
                f"{type(self).__name__} has traced numbers and thus no hash. Hash it outside of jax.jit and jax.vmap."
            )
        return hash((type(self), _hashable_content(self)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        for name, value in vars(self).items():
            if isinstance(value, types.FunctionType) and "<" in value.__qualname__ and not _caller_copies_functions():
                raise Unpicklable(
                    f"{name} of {type(self).__name__} is {value.__qualname__} of {value.__module__}, which pickle cannot "
                    "find by name. Define it with def at the top of a module, or use cloudpickle."
                )
        return super().__reduce_ex__(protocol)

    def as_argument(self) -> str:
        """Return the source text of the object as it is printed among the arguments of another object."""
        return repr(self)


def is_schedule(node: Any) -> bool:
    """Return whether a value in a pytree is a schedule, that is, changes with time."""
    return isinstance(node, Part) and node.is_schedule


def has_schedules(tree: Any) -> bool:
    """Return whether a pytree contains a schedule."""
    return any(map(is_schedule, jax.tree.leaves(tree, is_leaf=is_schedule)))


def at_start(part: Any) -> Any:
    """Return an object with its schedules replaced by their values at t = 0; objects without schedules are unchanged."""
    return Part.at(part, 0.0) if isinstance(part, Part) else part


def constructor_arguments(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the constructor arguments with which an object was made.

    The value of an argument is the attribute of its name, or of the name that the dictionary `recorded` of the class gives.
    """
    other = getattr(type(module), "recorded", {})
    for name in inspect.signature(type(module)).parameters:
        attribute = other.get(name, name)
        if hasattr(module, attribute):
            yield name, getattr(module, attribute)


def format_constructor(module: Any) -> str:
    """Return the constructor call that makes an object, as a string, without arguments that have their default.

    >>> from sgdlimits.algorithm import OnePassSGD
    >>> OnePassSGD(lr=0.1, sphere=True)
    OnePassSGD(lr=0.1, sphere=True)
    """
    parameters = inspect.signature(type(module)).parameters
    usual = lambda name, value: is_default(value, parameters[name].default) or (isinstance(value, dict) and not value)
    given = [f"{name}={as_source(value)}" for name, value in constructor_arguments(module) if not usual(name, value)]
    return f"{type(module).__name__}({', '.join(given)})"


def as_source(value: Any) -> str:
    """Return a value as source text: numbers with six digits, long arrays as their shape, functions by name."""
    if isinstance(value, Part):
        return value.as_argument()
    if is_traced(value):
        return "traced"
    if isinstance(value, (jax.Array, np.ndarray, np.generic, float)):
        array = np.asarray(value)
        if array.size > MAX_PRINTED_ENTRIES:
            return f"array of shape {array.shape}"
        return _format_numbers(array.tolist())
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {as_source(part)}' for name, part in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(as_source, value))}{',' if len(value) == 1 else ''})"
    return getattr(value, "__qualname__", "") or repr(value)


def is_default(value: Any, default: Any) -> bool:
    """Return whether a value is known to equal its default; False for traced values."""
    if value is default:
        return True
    if isinstance(value, (jax.Array, np.ndarray, np.generic)) and isinstance(default, (bool, int, float)):
        return not is_traced(value) and np.ndim(value) == 0 and float(value) == default
    return type(value) is type(default) and isinstance(value, (bool, int, float, str, dict, tuple)) and value == default


def _format_numbers(value: Any) -> str:
    """Return a number, or nested lists of numbers, as a string with six digits for each."""
    if isinstance(value, list):
        return f"[{', '.join(map(_format_numbers, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _hashable_content(module: Any) -> tuple:
    """Return the content of an object as a hashable value, used to compare objects."""
    leaves, structure = jax.tree.flatten(module)
    return structure, tuple(map(_hashable_leaf, leaves))


def _hashable_leaf(leaf: Any) -> Any:
    """Return a value in a pytree as a hashable value: numbers and arrays by shape and values, regardless of dtype."""
    if is_traced(leaf):  # it has no value, and comparing it would give another traced array
        return "traced", id(leaf)
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float)):
        array = np.asarray(leaf, float) + 0.0  # turns -0.0, which equals 0.0, into 0.0, whose bytes differ
        return array.shape, array.tobytes()
    return leaf


def _caller_copies_functions() -> bool:
    """Return whether the caller, found on the stack, is a module that copies functions by value, such as copy or dill."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        room = frame.f_globals.get("__name__", "").split(".")
        if room[0] in ("copy", "dill") or "cloudpickle" in room:
            return True
        frame = frame.f_back
    return False
