"""Translation of a JAX function of one replica to a flat program, and expansion of its elementary functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr
from jaxtyping import PyTree

from sgdlimits.kernel.compiler import control, indices, matrices, primitives  # noqa: F401  (their rules)
from sgdlimits.kernel.compiler.elementary import ELEMENTARY
from sgdlimits.kernel.compiler.program import SCALAR_KINDS, LoopBody, Program
from sgdlimits.kernel.compiler.walk import ELEMENTWISE, REDUCTIONS, JaxprFlattener


def flatten(program: Program, function: Callable, *arguments: PyTree, shapes: Sequence[PyTree] | None = None) -> PyTree:
    """Add the operations of a JAX function to a flat program, and return the node indices of its results.

    Arguments are pytrees of arrays of node indices; `shapes` are pytrees of the same form with the shapes and types for JAX.
    """
    typed = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, SCALAR_KINDS[program.kind(leaf.flat[0])])
    like = [jax.tree.map(typed, argument) for argument in arguments] if shapes is None else shapes
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*like)
    results = JaxprFlattener(program).call(closed, jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shape), results)


def estimate_operations(jaxpr: Any) -> int:
    """Estimate the number of scalar operations in a jaxpr, before equal ones are merged and zeros dropped."""
    return sum(_count_operations(equation) for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns)


def _count_operations(equation: Any) -> int:
    """Estimate the number of scalar operations in one equation of a jaxpr; equations that only move entries count zero."""
    name, p = equation.primitive.name, equation.params
    size = lambda variables: sum(int(np.prod(variable.aval.shape, dtype=int)) for variable in variables)
    made = size(equation.outvars)
    if name in ELEMENTWISE or name in ("integer_pow", "pow", "square", "select_n"):
        return made
    if name in REDUCTIONS:
        return size(equation.invars) - made
    if name == "dot_general":
        shape, (summed, _) = equation.invars[0].aval.shape, p["dimension_numbers"][0]
        return 2 * made * int(np.prod([shape[axis] for axis in summed], dtype=int))
    if name == "cond":  # an estimate from below is enough: if the index is known, only one branch is written
        return max(estimate_operations(branch) for branch in p["branches"])
    inner = next((p[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "body_jaxpr") if key in p), None)
    return 0 if inner is None else p.get("length", 1) * estimate_operations(inner)


def lower_elementary(program: Program, results: Sequence[int]) -> tuple[Program, dict[int, int]]:
    """Copy the nodes that `results` need into a new program in which functions such as exp are expanded to arithmetic.

    Return the new program, and a dictionary from the indices of copied nodes to their indices in the new program.
    """
    out = Program()
    needed = program.order_with_loops(results)
    at: dict[int, int] = {}
    inverted = {program.nodes[place].args for place in needed if program.nodes[place].op == "rsqrt"}
    for place in needed:
        node = program.nodes[place]
        args = tuple(at[arg] for arg in node.args)
        if node.op in ELEMENTARY:
            wide = [np.array(out.convert(arg, "f64")) for arg in args]
            at[place] = out.convert(int(JaxprFlattener(out).call(_elementary_jaxpr(node.op, len(args)), wide)[0]), node.kind)
        elif node.op == "sqrt" and node.args in inverted:  # sqrt(x) = x rsqrt(x), where rsqrt(x) is computed anyway
            root = out.op("mul", args[0], out.op("rsqrt", *args))
            at[place] = out.op("select", out.op("eq", args[0], out.const(0, node.kind)), args[0], root)
        elif node.op == "loop":
            carry, after = (tuple(at[one] for one in part) for part in node.data[:2])
            at[place] = out.node(node.op, node.kind, args, LoopBody(carry, after, at[node.data.continue_index]))
        elif node.op == "convert":
            at[place] = out.convert(args[0], node.kind)
        elif node.op in ("input", "carry", "const", "bitcast", "item"):
            at[place] = out.node(node.op, node.kind, args, node.data)
        else:
            at[place] = out.op(node.op, *args)
    return out, at


@lru_cache(maxsize=64)
def _elementary_jaxpr(name: str, argument_count: int) -> ClosedJaxpr:
    """Return the jaxpr of an elementary function, such as exp, of scalar arguments."""
    return jax.make_jaxpr(ELEMENTARY[name])(*[jax.ShapeDtypeStruct((), np.float64)] * argument_count)
