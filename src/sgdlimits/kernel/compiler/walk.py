"""Walk over a jaxpr that unrolls its arrays into scalars, and the table of rules for its primitives.

An array of the jaxpr becomes a NumPy array of node indices of the program ("places"). Operations that only move entries
(slices, transposes, broadcasts) then cost nothing, scans are unrolled, and calls are inlined. A primitive without a rule raises
`TranslationError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from sgdlimits.kernel.compiler.elementary import ELEMENTARY
from sgdlimits.kernel.compiler.program import SCALAR_KINDS, Program, TranslationError

NodeIndices = np.ndarray
PrimitiveRule = Callable[["Flattening", Any, list[NodeIndices]], Any]
_KIND_OF_DTYPE = {np.dtype(kind).name: name for name, kind in SCALAR_KINDS.items()} | {"int8": "i32", "uint8": "u32"}
ELEMENTWISE = {
    **{name: name for name in ("add", "sub", "mul", "div", "max", "min", "neg", "abs", "sqrt", "rsqrt", "floor", "ceil")},
    **{name: name for name in ("sign", "rem", "and", "or", "xor", "not", "eq", "ne", "lt", "le", "gt", "ge", *ELEMENTARY)},
    "add_any": "add", "shift_left": "shl", "shift_right_arithmetic": "shr",
}  # fmt: skip
"""Primitives of JAX that apply one operation of a program to each entry, and the names of these operations."""
REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
}
EMPTY_REDUCTIONS = {"add": 0, "mul": 1, "and": 1, "or": 0}
"""Results of reductions over an empty axis, by the operation that reduces."""
PRIMITIVE_RULES: dict[str, PrimitiveRule] = {}


def kind_of(dtype: Any) -> str:
    """Return the scalar type of a program for a dtype; raise `TranslationError` if there is none."""
    name = str(dtype) if jax.dtypes.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype).name
    if name not in _KIND_OF_DTYPE:
        raise TranslationError(name)
    return _KIND_OF_DTYPE[name]


class JaxprFlattener:
    """Walk over jaxprs that adds their operations to a flat program; arrays become arrays of node indices."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def call(self, closed: ClosedJaxpr | Jaxpr, arguments: Sequence[NodeIndices]) -> list[NodeIndices]:
        """Add the operations of a jaxpr to the program, and return the node indices of its results."""
        if isinstance(closed, ClosedJaxpr):
            return self._add_jaxpr(closed.jaxpr, [self.add_constants(value) for value in closed.consts], arguments)
        return self._add_jaxpr(closed, [], arguments)

    def add_constants(self, value: Any) -> NodeIndices:
        """Add the entries of an array to the program as constants, and return their node indices."""
        kind = kind_of(jax.dtypes.result_type(value))
        value = np.asarray(value)
        return np.array([self.program.const(number, kind) for number in value.ravel()], int).reshape(value.shape)

    def map_entries(self, operation: Callable[..., int], *arrays: NodeIndices) -> NodeIndices:
        """Apply a function of node indices to each entry of arrays, which are broadcast against each other."""
        whole = np.broadcast_arrays(*arrays)
        entries = zip(*(array.ravel().tolist() for array in whole), strict=True)
        return np.array([operation(*entry) for entry in entries], int).reshape(whole[0].shape)

    def op(self, name: str, *arrays: NodeIndices) -> NodeIndices:
        """Add an operation of the program for each entry of arrays, and return the node indices of the results."""
        return self.map_entries(partial(self.program.op, name), *arrays)

    def known_integers(self, places: NodeIndices) -> np.ndarray | None:
        """Return the values of nodes as integers if all of them are constants, else None."""
        found = [self.program.constant_value(place) for place in places.ravel().tolist()]
        return None if any(value is None for value in found) else np.array(found, int).reshape(places.shape)

    def _add_jaxpr(self, jaxpr: Any, constants: Sequence[NodeIndices], arguments: Sequence[NodeIndices]) -> list[NodeIndices]:
        """Add the operations of all equations of a jaxpr to the program, and return the node indices of its results."""
        known: dict[Any, NodeIndices] = {}
        read = lambda atom: self.add_constants(atom.val) if isinstance(atom, Literal) else known[atom]
        for variable, value in zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True):
            known[variable] = np.asarray(value, int).reshape(variable.aval.shape)
        for equation in jaxpr.eqns:
            results = self._add_equation(equation, [read(atom) for atom in equation.invars])
            for variable, value in zip(equation.outvars, results, strict=True):
                known[variable] = np.asarray(value, int).reshape(variable.aval.shape)
        return [read(atom) for atom in jaxpr.outvars]

    def _add_equation(self, equation: Any, arguments: list[NodeIndices]) -> Sequence[NodeIndices]:
        """Add the operations of one equation of a jaxpr to the program, and return the node indices of its results."""
        name = equation.primitive.name
        # Arrays without entries have no operations, whatever the primitive.
        if equation.outvars and not any(variable.aval.size for variable in equation.outvars):
            return [np.zeros(variable.aval.shape, int) for variable in equation.outvars]
        if name in ELEMENTWISE:
            return [self.op(ELEMENTWISE[name], *arguments)]
        if name in REDUCTIONS:
            axes = equation.params["axes"]
            rows = np.moveaxis(arguments[0], axes, range(len(axes))).reshape(-1, *equation.outvars[0].aval.shape)
            return [self.reduce_first_axis(REDUCTIONS[name], rows, equation.outvars[0].aval)]
        if name not in PRIMITIVE_RULES:
            raise TranslationError(name)
        results = PRIMITIVE_RULES[name](self, equation, arguments)
        return results if isinstance(results, list) else [results]

    def reduce_first_axis(self, name: str, rows: NodeIndices, like: Any) -> NodeIndices:
        """Reduce the first axis of an array by an operation, in order; `like` has the shape and type of the result."""
        if len(rows):  # in order, so that sums are rounded alike in every program
            return reduce(partial(self.op, name), rows)
        if name not in EMPTY_REDUCTIONS:
            raise TranslationError(f"{name} of an empty array")
        return np.broadcast_to(self.add_constants(np.asarray(EMPTY_REDUCTIONS[name], like.dtype)), like.shape)

    def select_by_index(self, index: int, options: Sequence[NodeIndices]) -> NodeIndices:
        """Select one of several arrays by an index that is known only at run time and is clipped to the valid range."""
        # A chain of selections from the last option to the first.
        chosen, kind = options[-1], self.program.kind(index)
        for number in range(len(options) - 2, -1, -1):
            here = np.array(self.program.op("le", index, self.program.const(number, kind)))
            chosen = self.op("select", here, options[number], chosen)
        return chosen


def primitive_rule(*names: str) -> Callable[[PrimitiveRule], PrimitiveRule]:
    """Register a function of (walk, equation, arguments) as the translation of the primitives with these names."""

    def register(function: PrimitiveRule) -> PrimitiveRule:
        PRIMITIVE_RULES.update(dict.fromkeys(names, function))
        return function

    return register
