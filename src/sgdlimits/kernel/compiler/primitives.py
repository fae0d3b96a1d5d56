"""Rules that translate primitives for data movement and arithmetic."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import numpy as np

from sgdlimits.kernel.compiler.program import TranslationError
from sgdlimits.kernel.compiler.walk import PRIMITIVE_RULES, JaxprFlattener, NodeIndices, kind_of, primitive_rule

_CUMULATIVE_OPERATIONS = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min"}


# --- data movement: places in another arrangement ----------------------------------------------------------------------------


@primitive_rule("broadcast_in_dim")
def _(walk, equation, args):
    shape, axes = equation.params["shape"], equation.params["broadcast_dimensions"]
    spread = [1] * len(shape)
    for axis, size in zip(axes, args[0].shape, strict=True):
        spread[axis] = size
    return np.broadcast_to(args[0].reshape(spread), shape)


@primitive_rule("reshape", "squeeze", "expand_dims", "copy", "copy_p", "stop_gradient", "reduce_precision")
def _(walk, equation, args):
    return args[0].reshape(equation.outvars[0].aval.shape)


@primitive_rule("optimization_barrier")
def _(walk, equation, args):
    return list(args)


PRIMITIVE_RULES["transpose"] = lambda walk, equation, args: np.transpose(args[0], equation.params["permutation"])
PRIMITIVE_RULES["rev"] = lambda walk, equation, args: np.flip(args[0], equation.params["dimensions"])
PRIMITIVE_RULES["concatenate"] = lambda walk, equation, args: np.concatenate(args, equation.params["dimension"])
PRIMITIVE_RULES["tile"] = lambda walk, equation, args: np.tile(args[0], equation.params["reps"])


@primitive_rule("stack")
def _(walk, equation, args):
    return np.stack(args, equation.params.get("axis", equation.params.get("dimension", 0)))


@primitive_rule("unstack")
def _(walk, equation, args):
    return list(np.moveaxis(args[0], equation.params["axis"], 0))


@primitive_rule("slice")
def _(walk, equation, args):
    p = equation.params
    ranges = zip(p["start_indices"], p["limit_indices"], p["strides"] or [1] * args[0].ndim, strict=True)
    return args[0][tuple(slice(*one) for one in ranges)]


@primitive_rule("split")
def _(walk, equation, args):
    return np.split(args[0], np.cumsum(equation.params["sizes"])[:-1], equation.params["axis"])


@primitive_rule("pad")
def _(walk, equation, args):
    out, source, at = np.full(equation.outvars[0].aval.shape, int(args[1]), int), [], []
    for (low, high, inner), size in zip(equation.params["padding_config"], args[0].shape, strict=True):
        if inner or low < 0 or high < 0:
            raise TranslationError("pad")
        source.append(slice(None))
        at.append(slice(low, low + size))
    out[tuple(at)] = args[0][tuple(source)]
    return out


@primitive_rule("iota")
def _(walk, equation, args):
    shape, axis = equation.params["shape"], equation.params["dimension"]
    along = [-1 if i == axis else 1 for i in range(len(shape))]
    numbers = walk.add_constants(np.arange(shape[axis]).astype(equation.params["dtype"]))
    return np.broadcast_to(numbers.reshape(along), shape)


# --- arithmetic --------------------------------------------------------------------------------------------------------------


@primitive_rule("convert_element_type")
def _(walk, equation, args):
    kind = kind_of(equation.params["new_dtype"])
    return walk.map_entries(lambda place: walk.program.convert(place, kind), args[0])


@primitive_rule("bitcast_convert_type")
def _(walk, equation, args):
    kind = kind_of(equation.params["new_dtype"])
    return walk.map_entries(lambda place: walk.program.bitcast(place, kind), args[0])


@primitive_rule("shift_right_logical")
def _(walk, equation, args):
    # `shr` keeps the sign of signed kinds, so the bits are shifted as those of the unsigned kind.
    kind = walk.program.kind(int(args[0].flat[0]))
    plain = [walk.map_entries(lambda place: walk.program.bitcast(place, "u" + kind[1:]), part) for part in args]
    return walk.map_entries(lambda place: walk.program.bitcast(place, kind), walk.op("shr", *plain))


@primitive_rule("square")
def _(walk, equation, args):
    return walk.op("mul", args[0], args[0])


@primitive_rule("one_minus_square")
def _(walk, equation, args):
    one = walk.map_entries(lambda place: walk.program.const(1, walk.program.kind(place)), args[0])
    return walk.op("sub", one, walk.op("mul", args[0], args[0]))


@primitive_rule("integer_pow")
def _(walk, equation, args):
    return _power(walk, args[0], equation.params["y"])


def _power(walk: JaxprFlattener, x: NodeIndices, n: int) -> NodeIndices:
    """Add the operations of x^n, for a fixed integer n, by repeated squaring."""
    one = walk.map_entries(lambda place: walk.program.const(1, walk.program.kind(place)), x)
    out, square, left = one, x, abs(n)
    while left:
        out = walk.op("mul", out, square) if left & 1 else out
        left >>= 1
        square = walk.op("mul", square, square) if left else square
    return out if n >= 0 else walk.op("div", one, out)


@primitive_rule("pow")
def _(walk, equation, args):
    known = [walk.program.constant_value(place) for place in args[1].ravel().tolist()]
    if any(value is None or value != known[0] for value in known):
        return walk.op("pow", *np.broadcast_arrays(*args))
    # Powers of integers and half-integers are products and one square root; others use exp and log.
    twice = float(2 * known[0])
    if twice != int(twice) or abs(twice) > 64:
        return walk.op("pow", *np.broadcast_arrays(*args))
    whole = _power(walk, args[0], abs(int(twice)) // 2)
    out = walk.op("mul", whole, walk.op("sqrt", args[0])) if int(twice) % 2 else whole
    one = walk.map_entries(lambda place: walk.program.const(1, walk.program.kind(place)), args[0])
    return out if twice >= 0 else walk.op("div", one, out)


@primitive_rule("round")
def _(walk, equation, args):
    if int(equation.params["rounding_method"]) != 1:
        raise TranslationError("round away from zero")
    return walk.op("round", args[0])


@primitive_rule("is_finite")
def _(walk, equation, args):
    bound = walk.add_constants(np.asarray(np.inf, equation.invars[0].aval.dtype))  # NaN compares false
    return walk.op("lt", walk.op("abs", args[0]), bound)


@primitive_rule("clamp")
def _(walk, equation, args):
    return walk.op("min", walk.op("max", args[1], args[0]), args[2])


@primitive_rule("select_n")
def _(walk, equation, args):
    if equation.invars[0].aval.dtype == bool:
        return walk.op("select", args[0], args[2], args[1])
    which = np.broadcast_to(args[0], args[1].shape)
    chosen = [walk.select_by_index(int(which[at]), [case[at] for case in args[1:]]) for at in np.ndindex(which.shape)]
    return np.array(chosen, int).reshape(which.shape)


@primitive_rule("argmax", "argmin")
def _(walk, equation, args):
    (axis,), kind = equation.params["axes"], kind_of(equation.params["index_dtype"])
    rows, better = np.moveaxis(args[0], axis, 0), "gt" if equation.primitive.name == "argmax" else "lt"
    best, index = rows[0], np.full(rows[0].shape, walk.program.const(0, kind), int)
    for number, row in enumerate(rows[1:], 1):
        more = walk.op(better, row, best)
        best = walk.op("select", more, row, best)
        index = walk.op("select", more, np.array(walk.program.const(number, kind)), index)
    return index


@primitive_rule(*_CUMULATIVE_OPERATIONS)
def _(walk, equation, args):
    rows, back = np.moveaxis(args[0], equation.params["axis"], 0), equation.params["reverse"]
    sums = list(
        itertools.accumulate(rows[::-1] if back else rows, partial(walk.op, _CUMULATIVE_OPERATIONS[equation.primitive.name]))
    )
    return np.moveaxis(np.array(sums[::-1] if back else sums), 0, equation.params["axis"])


@primitive_rule("dot_general")
def _(walk, equation, args):
    """Translate a contraction of two arrays (`dot_general`) to products, which are then added in a fixed order."""
    (summed, summed_y), (batch, batch_y) = equation.params["dimension_numbers"]

    def rows(x, summed, batch):
        free = [axis for axis in range(x.ndim) if axis not in summed and axis not in batch]
        size = lambda axes: int(np.prod([x.shape[axis] for axis in axes], dtype=int))
        return x.transpose([*batch, *free, *summed]).reshape(size(batch), size(free), size(summed))

    x, y = rows(args[0], summed, batch), rows(args[1], summed_y, batch_y)
    terms = walk.op("mul", x[:, :, None, :], y[:, None, :, :])
    like = jax.ShapeDtypeStruct(terms.shape[:-1], equation.outvars[0].aval.dtype)
    return walk.reduce_first_axis("add", np.moveaxis(terms, -1, 0), like).reshape(equation.outvars[0].aval.shape)
