"""Rules that translate indexing; an index known only at run time selects among the results for all of its values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from sgdlimits.kernel.compiler.program import TranslationError
from sgdlimits.kernel.compiler.walk import JaxprFlattener, NodeIndices, primitive_rule


@primitive_rule("dynamic_slice")
def _(walk, equation, args):
    sizes = equation.params["slice_sizes"]

    def cut(x, axis):
        if axis == x.ndim:
            return x
        starts = [x.take(range(start, start + sizes[axis]), axis) for start in range(x.shape[axis] - sizes[axis] + 1)]
        return walk.select_by_index(int(args[1 + axis]), [cut(part, axis + 1) for part in starts])

    return cut(args[0], 0)


@primitive_rule("dynamic_update_slice")
def _(walk, equation, args):
    x, new = args[:2]

    def put(at):
        axis = len(at)
        if axis == x.ndim:
            out = x.copy()
            out[tuple(slice(start, start + size) for start, size in zip(at, new.shape, strict=True))] = new
            return out
        starts = range(x.shape[axis] - new.shape[axis] + 1)
        return walk.select_by_index(int(args[2 + axis]), [put((*at, start)) for start in starts])

    return put(())


@primitive_rule("gather")
def _(walk, equation, args):
    p, (x, where) = equation.params, args
    n = p["dimension_numbers"]
    out = np.empty(equation.outvars[0].aval.shape, int)
    rest = [axis for axis in range(x.ndim) if axis not in n.collapsed_slice_dims and axis not in n.operand_batching_dims]
    for at in np.ndindex(out.shape):  # entry by entry: known indices then cost nothing
        batch = [at[axis] for axis in range(out.ndim) if axis not in n.offset_dims]
        offset = dict(zip(rest, (at[axis] for axis in n.offset_dims), strict=True))
        fixed = {axis: batch[i] for axis, i in zip(n.operand_batching_dims, n.start_indices_batching_dims, strict=True)}
        index = dict(zip(n.start_index_map, where[tuple(batch)].ravel().tolist(), strict=True))
        out[at] = _gather_entry(walk, x, index, {**{axis: 0 for axis in range(x.ndim)}, **offset, **fixed}, p["slice_sizes"])
    return out


def _gather_entry(
    walk: JaxprFlattener, x: NodeIndices, index: dict[int, int], offset: dict[int, int], sizes: Sequence[int]
) -> int:
    """Return the node index of one entry in the result of a `gather`.

    `index` has, for each axis that is indexed, the node index of the slice's start; `offset` has the position after that start,
    or the position itself on other axes; `sizes` has the sizes of slices, by which starts are clipped.
    """
    for axis in range(x.ndim):  # each round removes the first axis
        options = [x[offset[axis]]]
        if axis in index:
            options = [x[start + offset[axis]] for start in range(x.shape[0] - sizes[axis] + 1)]
            value = walk.program.constant_value(index[axis])
            if value is None:
                x = walk.select_by_index(index[axis], options)
            else:
                x = options[min(max(int(value), 0), len(options) - 1)]
        else:
            x = options[0]
    return int(x)


@primitive_rule("scatter", "scatter-add", "scatter_add")
def _(walk, equation, args):
    x, where, new = args
    n = equation.params["dimension_numbers"]
    if n.operand_batching_dims:
        raise TranslationError("scatter over batch dimensions")
    out, name = x.copy(), equation.primitive.name
    rest = [axis for axis in range(x.ndim) if axis not in n.inserted_window_dims]

    def targets(axis, place):
        """Return the positions along an axis to which an update can go: one if its index is known, else all."""
        start = walk.program.constant_value(place)
        return [at for at in range(x.shape[axis]) if start is None or at == start + offset.get(axis, 0)]

    for at in np.ndindex(new.shape):  # in order, since later updates of an entry see earlier ones
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
