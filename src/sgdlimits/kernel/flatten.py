"""From a JAX function of one replica to a flat program: its jaxpr, unrolled into single numbers.

An array is an array of places in the program. What moves numbers about (slices, transposes, broadcasts) then costs nothing,
scans are unrolled, and calls are followed. A `while` becomes a loop. An index that is not known before the replica runs is
tried at each of its values, with a choice among the results. A primitive without a rule raises `Untranslated`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import PyTree

from sgdlimits.kernel import matrices
from sgdlimits.kernel.bounds import scan_counts
from sgdlimits.kernel.elementary import ELEMENTARY
from sgdlimits.kernel.program import KINDS, Loop, Program, Untranslated

Places = np.ndarray
Rule = Callable[["Flattening", Any, list[Places]], Any]
_KIND = {np.dtype(kind).name: name for name, kind in KINDS.items()} | {"int8": "i32", "uint8": "u32"}
_SAME = {
    **{name: name for name in ("add", "sub", "mul", "div", "max", "min", "neg", "abs", "sqrt", "rsqrt", "floor", "ceil")},
    **{name: name for name in ("sign", "rem", "and", "or", "xor", "not", "eq", "ne", "lt", "le", "gt", "ge", *ELEMENTARY)},
    "add_any": "add", "shift_left": "shl", "shift_right_arithmetic": "shr",
}  # fmt: skip
"""Primitives that are operations of a program on each entry."""
_REDUCE = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
}
_CUMULATIVE = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}
RULES: dict[str, Rule] = {}


def flatten(program: Program, function: Callable, *arguments: PyTree, shapes: Sequence[PyTree] | None = None) -> PyTree:
    """The results of a JAX function, as places in a program to which its operations are added.

    Arguments are trees of arrays of places; `shapes` are trees of the same form that say what JAX takes them for.
    """
    typed = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, KINDS[program.kind(leaf.flat[0])])
    like = [jax.tree.map(typed, argument) for argument in arguments] if shapes is None else shapes
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*like)
    results = Flattening(program).call(closed, jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shape), results)


def about(jaxpr: Any) -> int:
    """Roughly how many operations a jaxpr comes to, before equal ones are found and zeros are gone."""
    return sum(_count(equation) for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns)


def _count(equation: Any) -> int:
    name, p = equation.primitive.name, equation.params
    size = lambda variables: sum(int(np.prod(variable.aval.shape, dtype=int)) for variable in variables)
    made = size(equation.outvars)
    if name in _SAME or name in ("integer_pow", "pow", "square", "select_n"):
        return made
    if name in _REDUCE:
        return size(equation.invars) - made
    if name == "dot_general":
        shape, (summed, _) = equation.invars[0].aval.shape, p["dimension_numbers"][0]
        return 2 * made * int(np.prod([shape[axis] for axis in summed], dtype=int))
    if name == "cond":
        return max(about(branch) for branch in p["branches"])
    inner = next((p[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "body_jaxpr") if key in p), None)
    return 0 if inner is None else p.get("length", 1) * about(inner)


def kind_of(dtype: Any) -> str:
    """The kind of numbers of an array."""
    name = np.dtype(dtype).name
    if name not in _KIND:
        raise Untranslated(name)
    return _KIND[name]


def lowered(program: Program, results: Sequence[int]) -> tuple[Program, dict[int, int]]:
    """A program with the elementary functions written out, and where in it the nodes are that results need."""
    out, needed = Program(), program.everything(results)
    at: dict[int, int] = {}
    inverted = {program.nodes[place].args for place in needed if program.nodes[place].op == "rsqrt"}
    for place in needed:
        node = program.nodes[place]
        args = tuple(at[arg] for arg in node.args)
        if node.op in ELEMENTARY:
            wide = [np.array(out.convert(arg, "f64")) for arg in args]
            at[place] = out.convert(int(Flattening(out).call(_written(node.op, len(args)), wide)[0]), node.kind)
        elif node.op == "sqrt" and node.args in inverted:  # x/sqrt(x), of which the inverse root is there
            root = out.op("mul", args[0], out.op("rsqrt", *args))
            at[place] = out.op("select", out.op("eq", args[0], out.const(0, node.kind)), args[0], root)
        elif node.op == "loop":
            carry, after = (tuple(at[one] for one in part) for part in node.what[:2])
            at[place] = out.node(node.op, node.kind, args, Loop(carry, after, at[node.what.again]))
        elif node.op == "convert":
            at[place] = out.convert(args[0], node.kind)
        elif node.op in ("input", "carry", "const", "bitcast", "item"):
            at[place] = out.node(node.op, node.kind, args, node.what)
        else:
            at[place] = out.op(node.op, *args)
    return out, at


@lru_cache(maxsize=64)
def _written(name: str, arguments: int) -> ClosedJaxpr:
    return jax.make_jaxpr(ELEMENTARY[name])(*[jax.ShapeDtypeStruct((), np.float64)] * arguments)


class Flattening:
    """A walk over jaxprs that adds their operations to a program."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def call(self, closed: ClosedJaxpr | Jaxpr, arguments: Sequence[Places]) -> list[Places]:
        if isinstance(closed, ClosedJaxpr):
            return self._run(closed.jaxpr, [self.constants(value) for value in closed.consts], arguments)
        return self._run(closed, [], arguments)

    def constants(self, value: Any) -> Places:
        value = np.asarray(value)
        kind = kind_of(value.dtype)
        return np.array([self.program.const(number, kind) for number in value.ravel()], int).reshape(value.shape)

    def each(self, operation: Callable[..., int], *arrays: Places) -> Places:
        """An operation on single numbers, entry by entry."""
        whole = np.broadcast_arrays(*arrays)
        entries = zip(*(array.ravel().tolist() for array in whole), strict=True)
        return np.array([operation(*entry) for entry in entries], int).reshape(whole[0].shape)

    def op(self, name: str, *arrays: Places) -> Places:
        return self.each(partial(self.program.op, name), *arrays)

    def values(self, places: Places) -> np.ndarray | None:
        """Whole numbers, where all of them are known."""
        found = [self.program.value(place) for place in places.ravel().tolist()]
        return None if any(value is None for value in found) else np.array(found, int).reshape(places.shape)

    def _run(self, jaxpr: Any, constants: Sequence[Places], arguments: Sequence[Places]) -> list[Places]:
        known: dict[Any, Places] = {}
        read = lambda atom: self.constants(atom.val) if isinstance(atom, Literal) else known[atom]
        for variable, value in zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True):
            known[variable] = np.asarray(value, int).reshape(variable.aval.shape)
        for equation in jaxpr.eqns:
            results = self._equation(equation, [read(atom) for atom in equation.invars])
            for variable, value in zip(equation.outvars, results, strict=True):
                known[variable] = np.asarray(value, int).reshape(variable.aval.shape)
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, arguments: list[Places]) -> Sequence[Places]:
        name = equation.primitive.name
        if name in _SAME:
            return [self.op(_SAME[name], *arguments)]
        if name in _REDUCE:
            axes = equation.params["axes"]
            rows = np.moveaxis(arguments[0], axes, range(len(axes))).reshape(-1, *equation.outvars[0].aval.shape)
            return [reduce(partial(self.op, _REDUCE[name]), rows)]
        if name not in RULES:
            raise Untranslated(name)
        results = RULES[name](self, equation, arguments)
        return results if isinstance(results, list) else [results]

    def choose(self, index: int, options: Sequence[Places]) -> Places:
        """The option with a number that is known only when the replica runs; beyond either end, that end."""
        chosen, kind = options[-1], self.program.kind(index)
        for number in range(len(options) - 2, -1, -1):
            here = np.array(self.program.op("le", index, self.program.const(number, kind)))
            chosen = self.op("select", here, options[number], chosen)
        return chosen


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register how primitives are written."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


# --- numbers that stay the same in another place -----------------------------------------------------------------------------


@rule("broadcast_in_dim")
def _(walk, equation, args):
    shape, axes = equation.params["shape"], equation.params["broadcast_dimensions"]
    spread = [1] * len(shape)
    for axis, size in zip(axes, args[0].shape, strict=True):
        spread[axis] = size
    return np.broadcast_to(args[0].reshape(spread), shape)


@rule("reshape", "squeeze", "expand_dims", "copy", "copy_p", "stop_gradient", "reduce_precision")
def _(walk, equation, args):
    return args[0].reshape(equation.outvars[0].aval.shape)


@rule("optimization_barrier")
def _(walk, equation, args):
    return list(args)


RULES["transpose"] = lambda walk, equation, args: np.transpose(args[0], equation.params["permutation"])
RULES["rev"] = lambda walk, equation, args: np.flip(args[0], equation.params["dimensions"])
RULES["concatenate"] = lambda walk, equation, args: np.concatenate(args, equation.params["dimension"])
RULES["tile"] = lambda walk, equation, args: np.tile(args[0], equation.params["reps"])


@rule("stack")
def _(walk, equation, args):
    return np.stack(args, equation.params.get("axis", equation.params.get("dimension", 0)))


@rule("unstack")
def _(walk, equation, args):
    return list(np.moveaxis(args[0], equation.params["axis"], 0))


@rule("slice")
def _(walk, equation, args):
    p = equation.params
    ranges = zip(p["start_indices"], p["limit_indices"], p["strides"] or [1] * args[0].ndim, strict=True)
    return args[0][tuple(slice(*one) for one in ranges)]


@rule("split")
def _(walk, equation, args):
    return np.split(args[0], np.cumsum(equation.params["sizes"])[:-1], equation.params["axis"])


@rule("pad")
def _(walk, equation, args):
    out, source, at = np.full(equation.outvars[0].aval.shape, int(args[1]), int), [], []
    for (low, high, inner), size in zip(equation.params["padding_config"], args[0].shape, strict=True):
        if inner or low < 0 or high < 0:
            raise Untranslated("pad")
        source.append(slice(None))
        at.append(slice(low, low + size))
    out[tuple(at)] = args[0][tuple(source)]
    return out


@rule("iota")
def _(walk, equation, args):
    shape, axis = equation.params["shape"], equation.params["dimension"]
    along = [-1 if i == axis else 1 for i in range(len(shape))]
    numbers = walk.constants(np.arange(shape[axis]).astype(equation.params["dtype"]))
    return np.broadcast_to(numbers.reshape(along), shape)


# --- arithmetic --------------------------------------------------------------------------------------------------------------


@rule("convert_element_type")
def _(walk, equation, args):
    kind = kind_of(equation.params["new_dtype"])
    return walk.each(lambda place: walk.program.convert(place, kind), args[0])


@rule("bitcast_convert_type")
def _(walk, equation, args):
    kind = kind_of(equation.params["new_dtype"])
    return walk.each(lambda place: walk.program.bitcast(place, kind), args[0])


@rule("shift_right_logical")
def _(walk, equation, args):
    kind = walk.program.kind(int(args[0].flat[0]))
    plain = [walk.each(lambda place: walk.program.bitcast(place, "u" + kind[1:]), part) for part in args]
    return walk.each(lambda place: walk.program.bitcast(place, kind), walk.op("shr", *plain))


@rule("square")
def _(walk, equation, args):
    return walk.op("mul", args[0], args[0])


@rule("one_minus_square")
def _(walk, equation, args):
    one = walk.each(lambda place: walk.program.const(1, walk.program.kind(place)), args[0])
    return walk.op("sub", one, walk.op("mul", args[0], args[0]))


@rule("integer_pow")
def _(walk, equation, args):
    return _power(walk, args[0], equation.params["y"])


def _power(walk: Flattening, x: Places, n: int) -> Places:
    """By squaring: as few products as bits."""
    one = walk.each(lambda place: walk.program.const(1, walk.program.kind(place)), x)
    out, square, left = one, x, abs(n)
    while left:
        out = walk.op("mul", out, square) if left & 1 else out
        left >>= 1
        square = walk.op("mul", square, square) if left else square
    return out if n >= 0 else walk.op("div", one, out)


@rule("pow")
def _(walk, equation, args):
    known = [walk.program.value(place) for place in args[1].ravel().tolist()]
    if any(value is None or value != known[0] for value in known):
        return walk.op("pow", *np.broadcast_arrays(*args))
    twice = float(2 * known[0])
    if twice != int(twice) or abs(twice) > 64:
        return walk.op("pow", *np.broadcast_arrays(*args))
    whole = _power(walk, args[0], abs(int(twice)) // 2)
    out = walk.op("mul", whole, walk.op("sqrt", args[0])) if int(twice) % 2 else whole
    one = walk.each(lambda place: walk.program.const(1, walk.program.kind(place)), args[0])
    return out if twice >= 0 else walk.op("div", one, out)


@rule("round")
def _(walk, equation, args):
    if int(equation.params["rounding_method"]) != 1:
        raise Untranslated("round away from zero")
    return walk.op("round", args[0])


@rule("is_finite")
def _(walk, equation, args):
    bound = walk.constants(np.asarray(np.inf, equation.invars[0].aval.dtype))
    return walk.op("lt", walk.op("abs", args[0]), bound)


@rule("clamp")
def _(walk, equation, args):
    return walk.op("min", walk.op("max", args[1], args[0]), args[2])


@rule("select_n")
def _(walk, equation, args):
    if equation.invars[0].aval.dtype == bool:
        return walk.op("select", args[0], args[2], args[1])
    which = np.broadcast_to(args[0], args[1].shape)
    chosen = [walk.choose(int(which[at]), [case[at] for case in args[1:]]) for at in np.ndindex(which.shape)]
    return np.array(chosen, int).reshape(which.shape)


@rule("argmax", "argmin")
def _(walk, equation, args):
    (axis,), kind = equation.params["axes"], kind_of(equation.params["index_dtype"])
    rows, better = np.moveaxis(args[0], axis, 0), "gt" if equation.primitive.name == "argmax" else "lt"
    best, index = rows[0], np.full(rows[0].shape, walk.program.const(0, kind), int)
    for number, row in enumerate(rows[1:], 1):
        more = walk.op(better, row, best)
        best = walk.op("select", more, row, best)
        index = walk.op("select", more, np.array(walk.program.const(number, kind)), index)
    return index


@rule(*_CUMULATIVE)
def _(walk, equation, args):
    rows, back = np.moveaxis(args[0], equation.params["axis"], 0), equation.params["reverse"]
    sums = list(itertools.accumulate(rows[::-1] if back else rows, partial(walk.op, _CUMULATIVE[equation.primitive.name])))
    return np.moveaxis(np.array(sums[::-1] if back else sums), 0, equation.params["axis"])


@rule("dot_general")
def _(walk, equation, args):
    """Products first, then their sum from left to right."""
    (summed, summed_y), (batch, batch_y) = equation.params["dimension_numbers"]

    def rows(x, summed, batch):
        free = [axis for axis in range(x.ndim) if axis not in summed and axis not in batch]
        size = lambda axes: int(np.prod([x.shape[axis] for axis in axes], dtype=int))
        return x.transpose([*batch, *free, *summed]).reshape(size(batch), size(free), size(summed))

    x, y = rows(args[0], summed, batch), rows(args[1], summed_y, batch_y)
    terms = walk.op("mul", x[:, :, None, :], y[:, None, :, :])
    return reduce(partial(walk.op, "add"), np.moveaxis(terms, -1, 0)).reshape(equation.outvars[0].aval.shape)


# --- small matrices ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _of_matrices(function: Callable, *shapes: tuple[int, ...]) -> ClosedJaxpr:
    return jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct(shape, np.float64) for shape in shapes])


def _each_matrix(walk: Flattening, function: Callable, *stacks: Places) -> list[Places]:
    """A function of matrices, for each of those in the last two axes of arrays."""
    whole, closed = stacks[0].shape[:-2], _of_matrices(function, *(stack.shape[-2:] for stack in stacks))
    if any(walk.program.kind(int(place)) != "f64" for stack in stacks for place in stack.flat[:1]):
        raise Untranslated("matrices in single precision")
    results = [walk.call(closed, [stack[at] for stack in stacks]) for at in np.ndindex(whole)]
    return [np.array(parts).reshape(*whole, *parts[0].shape) for parts in zip(*results, strict=True)]


@rule("cholesky")
def _(walk, equation, args):
    return _each_matrix(walk, matrices.cholesky, args[0])


@rule("triangular_solve")
def _(walk, equation, args):
    """XA = B is A'X' = B', and what is upper triangular is lower in the opposite order."""
    p, (A, B) = equation.params, args
    A, B = (A, B) if p["left_side"] else (A.swapaxes(-1, -2), B.swapaxes(-1, -2))
    A = A.swapaxes(-1, -2) if p["transpose_a"] else A
    back = p["lower"] == (p["transpose_a"] == p["left_side"])
    A, B = (A[..., ::-1, ::-1], B[..., ::-1, :]) if back else (A, B)
    (X,) = _each_matrix(walk, _SOLVE[p["unit_diagonal"]], A, B)
    X = X[..., ::-1, :] if back else X
    return X if p["left_side"] else X.swapaxes(-1, -2)


_SOLVE = {unit: partial(matrices.solve_lower, unit=unit) for unit in (False, True)}


@rule("eigh")
def _(walk, equation, args):
    p, A = equation.params, args[0]
    if A.shape[-1] > matrices.MOST_ROWS or p["subset_by_index"] not in (None, (0, A.shape[-1])):
        raise Untranslated("eigh")
    return _each_matrix(walk, matrices.eigh, A if p["lower"] else A.swapaxes(-1, -2))


# --- indices -----------------------------------------------------------------------------------------------------------------


@rule("dynamic_slice")
def _(walk, equation, args):
    sizes = equation.params["slice_sizes"]

    def cut(x, axis):
        if axis == x.ndim:
            return x
        starts = [x.take(range(start, start + sizes[axis]), axis) for start in range(x.shape[axis] - sizes[axis] + 1)]
        return walk.choose(int(args[1 + axis]), [cut(part, axis + 1) for part in starts])

    return cut(args[0], 0)


@rule("dynamic_update_slice")
def _(walk, equation, args):
    x, new = args[:2]

    def put(at):
        axis = len(at)
        if axis == x.ndim:
            out = x.copy()
            out[tuple(slice(start, start + size) for start, size in zip(at, new.shape, strict=True))] = new
            return out
        return walk.choose(int(args[2 + axis]), [put((*at, start)) for start in range(x.shape[axis] - new.shape[axis] + 1)])

    return put(())


@rule("gather")
def _(walk, equation, args):
    p, (x, where) = equation.params, args
    n = p["dimension_numbers"]
    out = np.empty(equation.outvars[0].aval.shape, int)
    rest = [axis for axis in range(x.ndim) if axis not in n.collapsed_slice_dims and axis not in n.operand_batching_dims]
    for at in np.ndindex(out.shape):
        batch = [at[axis] for axis in range(out.ndim) if axis not in n.offset_dims]
        offset = dict(zip(rest, (at[axis] for axis in n.offset_dims), strict=True))
        fixed = {axis: batch[i] for axis, i in zip(n.operand_batching_dims, n.start_indices_batching_dims, strict=True)}
        index = dict(zip(n.start_index_map, where[tuple(batch)].ravel().tolist(), strict=True))
        out[at] = _entry(walk, x, index, {**{axis: 0 for axis in range(x.ndim)}, **offset, **fixed}, p["slice_sizes"])
    return out


def _entry(walk: Flattening, x: Places, index: dict[int, int], offset: dict[int, int], sizes: Sequence[int]) -> int:
    """One entry of an array, at places known or not."""
    for axis in range(x.ndim):  # an axis that is done is gone
        options = [x[offset[axis]]]
        if axis in index:
            options = [x[start + offset[axis]] for start in range(x.shape[0] - sizes[axis] + 1)]
            value = walk.program.value(index[axis])
            x = options[min(max(int(value), 0), len(options) - 1)] if value is not None else walk.choose(index[axis], options)
        else:
            x = options[0]
    return int(x)


@rule("scatter", "scatter-add", "scatter_add")
def _(walk, equation, args):
    x, where, new = args
    n = equation.params["dimension_numbers"]
    if n.operand_batching_dims:
        raise Untranslated("scatter over batches")
    out, name = x.copy(), equation.primitive.name
    rest = [axis for axis in range(x.ndim) if axis not in n.inserted_window_dims]

    def targets(axis, place):
        """Where a number can go: to one place, where that is known."""
        start = walk.program.value(place)
        return [at for at in range(x.shape[axis]) if start is None or at == start + offset.get(axis, 0)]

    for at in np.ndindex(new.shape):
        batch = tuple(at[axis] for axis in range(new.ndim) if axis not in n.update_window_dims)
        offset = dict(zip(rest, (at[axis] for axis in n.update_window_dims), strict=True))
        index = dict(zip(n.scatter_dims_to_operand_dims, where[batch].ravel().tolist(), strict=True))
        ranges = [[offset.get(axis, 0)] if axis not in index else targets(axis, index[axis]) for axis in range(x.ndim)]
        for target in itertools.product(*ranges):
            hit = walk.program.const(True, "b1")
            for axis, place in index.items():
                here = walk.program.const(target[axis] - offset.get(axis, 0), walk.program.kind(place))
                hit = walk.program.op("and", hit, walk.program.op("eq", place, here))
            value = int(new[at]) if name == "scatter" else walk.program.op("add", int(out[target]), int(new[at]))
            out[target] = walk.program.op("select", hit, value, int(out[target]))
    return out


# --- calls and loops ---------------------------------------------------------------------------------------------------------


@rule(
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
    "remat",
    "checkpoint",
)
def _(walk, equation, args):
    names = ("jaxpr", "call_jaxpr", "fun_jaxpr")
    return walk.call(next(equation.params[name] for name in names if name in equation.params), args)


@rule("platform_index")
def _(walk, equation, args):
    names = equation.params["platforms"]
    return walk.constants(np.int32(next(i for i, one in enumerate(names) if one is None or "cpu" in one)))


@rule("cond")
def _(walk, equation, args):
    branches, known = equation.params["branches"], walk.values(args[0])
    if known is not None:
        return walk.call(branches[min(max(int(known), 0), len(branches) - 1)], args[1:])
    options = [walk.call(branch, args[1:]) for branch in branches]
    index = walk.program.convert(int(args[0]), "i32")
    return [walk.choose(index, list(results)) for results in zip(*options, strict=True)]


@rule("scan")
def _(walk, equation, args):
    p = equation.params
    n, m = scan_counts(p)
    fixed, carry, rows, made = args[:n], args[n : n + m], args[n + m :], {}
    for i in reversed(range(p["length"])) if p["reverse"] else range(p["length"]):
        results = walk.call(p["jaxpr"], [*fixed, *carry, *(row[i] for row in rows)])
        carry, made[i] = results[:m], results[m:]
    count = len(equation.outvars) - m
    return [*carry, *(np.array([made[i][j] for i in range(p["length"])], int) for j in range(count))]


@rule("while")
def _(walk, equation, args):
    """What no round changes is not carried: assumed of all at first, until it holds of the rest."""
    p, program = equation.params, walk.program
    n, m = p["cond_nconsts"], p["body_nconsts"]
    if_, body, first = args[:n], args[n : n + m], args[n + m :]
    asks = lambda state: int(walk.call(p["cond_jaxpr"], [*if_, *state])[0])
    begin = asks(first)
    if program.value(begin) is not None and not program.value(begin):
        return list(first)
    flat = np.concatenate([part.ravel() for part in first])
    cuts, carried, number = np.cumsum([part.size for part in first])[:-1], np.zeros(flat.size, bool), program.new_loop()
    parts = lambda places: [x.reshape(part.shape) for x, part in zip(np.split(places, cuts), first, strict=True)]
    while True:
        names = [program.node("carry", program.kind(place), (), (number, i)) for i, place in enumerate(flat.tolist())]
        state = parts(np.where(carried, names, flat))
        results = walk.call(p["body_jaxpr"], [*body, *state])
        after = np.concatenate([part.ravel() for part in results])
        changed = after != np.where(carried, names, flat)
        if not (changed & ~carried).any():
            break
        carried |= changed
    loop = Loop(tuple(np.array(names)[carried].tolist()), tuple(after[carried].tolist()), asks(results))
    out = flat.copy()
    out[carried] = program.loop(begin, flat[carried].tolist(), loop)
    return parts(out)
