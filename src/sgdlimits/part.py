"""What problems, levels, starts and their parts have in common: they print as they are typed, and are compared by content."""

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

MOST_PRINTED = 12
"""Arrays of more numbers print as their shape."""


class Unpicklable(BadInput, pickle.PicklingError):
    """A function without a name that other processes could find it by."""


class Part(eqx.Module):
    """A module that prints as it would be typed and that is equal to others of the same content.

    Numbers are compared by value, functions by identity. Numbers that are traced are equal to themselves only, and what holds
    one has no hash.
    """

    is_schedule: ClassVar[bool] = False
    """Whether it is a `Schedule`, a number that changes with time."""

    def at(self, t: Any) -> Self:
        """The part as it is at time t, each schedule in it replaced by its value; itself where it has none."""
        leaves, tree = jax.tree.flatten(self, is_leaf=is_schedule)
        if not any(map(is_schedule, leaves)):
            return self
        return jax.tree.unflatten(tree, [leaf(t) if is_schedule(leaf) else leaf for leaf in leaves])

    def __repr__(self) -> str:
        return typed(self)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self is other or _content(self) == _content(other)

    def __hash__(self) -> int:
        if any(map(is_traced, jax.tree.leaves(self))):
            raise TypeError(f"{type(self).__name__} has traced numbers and no hash. Hash it outside of jax.jit and jax.vmap.")
        return hash((type(self), _content(self)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        for name, value in vars(self).items():
            if isinstance(value, types.FunctionType) and "<" in value.__qualname__ and not _takes_any_function():
                raise Unpicklable(
                    f"{name} of {type(self).__name__} is {value.__qualname__} of {value.__module__}, which pickle finds by no "
                    "name. Define it with def at the top of a module, or use cloudpickle."
                )
        return super().__reduce_ex__(protocol)

    def as_argument(self) -> str:
        """How it is typed as an argument of something else."""
        return repr(self)


def is_schedule(node: Any) -> bool:
    """Whether a node of a tree is a schedule."""
    return isinstance(node, Part) and node.is_schedule


def has_schedules(tree: Any) -> bool:
    """Whether a schedule stands somewhere in a tree."""
    return any(map(is_schedule, jax.tree.leaves(tree, is_leaf=is_schedule)))


def at_start(part: Any) -> Any:
    """A part with the values that its schedules have at the start; what is no part stays."""
    return Part.at(part, 0.0) if isinstance(part, Part) else part


def arguments(module: Any) -> Iterator[tuple[str, Any]]:
    """The arguments of a module's constructor, which it keeps as attributes of the same name, or of that in `recorded`."""
    other = getattr(type(module), "recorded", {})
    for name in inspect.signature(type(module)).parameters:
        attribute = other.get(name, name)
        if hasattr(module, attribute):
            yield name, getattr(module, attribute)


def typed(module: Any) -> str:
    """A module as it would be typed, without the arguments that have their default.

    >>> from sgdlimits.algorithm import OnePassSGD
    >>> OnePassSGD(lr=0.1, sphere=True)
    OnePassSGD(lr=0.1, sphere=True)
    """
    parameters = inspect.signature(type(module)).parameters
    usual = lambda name, value: is_default(value, parameters[name].default) or (isinstance(value, dict) and not value)
    given = [f"{name}={as_source(value)}" for name, value in arguments(module) if not usual(name, value)]
    return f"{type(module).__name__}({', '.join(given)})"


def as_source(value: Any) -> str:
    """A value as it would be typed: numbers short, long arrays as their shape, functions by name."""
    if isinstance(value, Part):
        return value.as_argument()
    if is_traced(value):
        return "traced"
    if isinstance(value, (jax.Array, np.ndarray, np.generic, float)):
        array = np.asarray(value)
        if array.size > MOST_PRINTED:
            return f"array of shape {array.shape}"
        return _numbers(array.tolist())
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {as_source(part)}' for name, part in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(argument, value))}{',' if len(value) == 1 else ''})"
    return getattr(value, "__qualname__", "") or repr(value)


def same(value: Any, default: Any) -> bool:
    """Whether a value is its default, as far as can be told."""
    if value is default:
        return True
    if isinstance(value, (jax.Array, np.ndarray, np.generic)) and isinstance(default, (bool, int, float)):
        return not is_traced(value) and np.ndim(value) == 0 and float(value) == default
    return type(value) is type(default) and isinstance(value, (bool, int, float, str, dict, tuple)) and value == default


def _numbers(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_numbers, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _content(module: Any) -> tuple:
    leaves, structure = jax.tree.flatten(module)
    return structure, tuple(map(_leaf, leaves))


def _leaf(leaf: Any) -> Any:
    """A leaf as something that can be compared and hashed: arrays by shape and values, whatever their type."""
    if is_traced(leaf):
        return "traced", id(leaf)
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float)):
        array = np.asarray(leaf, float) + 0.0
        return array.shape, array.tobytes()
    return leaf


def _takes_any_function() -> bool:
    """Whether who asks copies in this process, or sends functions by value: copy, cloudpickle, dill."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        room = frame.f_globals.get("__name__", "").split(".")
        if room[0] in ("copy", "dill") or "cloudpickle" in room:
            return True
        frame = frame.f_back
    return False
