"""Rules that translate control flow: calls are inlined, scans unrolled, and `while` becomes a loop of the program."""

from __future__ import annotations

import numpy as np

from sgdlimits.kernel.compiler.bounds import count_scan_arguments
from sgdlimits.kernel.compiler.program import LoopBody, TranslationError
from sgdlimits.kernel.compiler.walk import primitive_rule


@primitive_rule(
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
    inner = next((equation.params[name] for name in names if name in equation.params), None)
    if inner is None:
        raise TranslationError(equation.primitive.name)
    return walk.call(inner, args)


@primitive_rule("platform_index")
def _(walk, equation, args):
    names = equation.params["platforms"]  # the choice of an implementation by platform: that for a CPU, or the default
    return walk.add_constants(np.int32(next(i for i, one in enumerate(names) if one is None or "cpu" in one)))


@primitive_rule("cond")
def _(walk, equation, args):
    branches, known = equation.params["branches"], walk.known_integers(args[0])
    if known is not None:
        return walk.call(branches[min(max(int(known), 0), len(branches) - 1)], args[1:])
    # All branches are computed, and their results selected: lanes of a vector may take different ones.
    options = [walk.call(branch, args[1:]) for branch in branches]
    index = walk.program.convert(int(args[0]), "i32")
    return [walk.select_by_index(index, list(results)) for results in zip(*options, strict=True)]


@primitive_rule("scan")
def _(walk, equation, args):
    p = equation.params
    n, m = count_scan_arguments(p)
    fixed, carry, rows, made = args[:n], args[n : n + m], args[n + m :], {}
    # Steps of a replica have short scans only; a long one exceeds the limit of a program, and `xla` takes over.
    for i in reversed(range(p["length"])) if p["reverse"] else range(p["length"]):
        results = walk.call(p["jaxpr"], [*fixed, *carry, *(row[i] for row in rows)])
        carry, made[i] = results[:m], results[m:]
    count = len(equation.outvars) - m
    return [*carry, *(np.array([made[i][j] for i in range(p["length"])], int) for j in range(count))]


@primitive_rule("while")
def _(walk, equation, args):
    """Translate a `while` loop; loop variables that no iteration changes become constants.

    All variables are assumed constant at first. Those that a traced iteration changes become loop variables, until no more are
    found.
    """
    p, program = equation.params, walk.program
    n, m = p["cond_nconsts"], p["body_nconsts"]
    condition, body, first = args[:n], args[n : n + m], args[n + m :]
    continues = lambda state: int(walk.call(p["cond_jaxpr"], [*condition, *state])[0])
    begin = continues(first)
    if program.constant_value(begin) is not None and not program.constant_value(begin):
        return list(first)
    flat = np.concatenate([part.ravel() for part in first])
    cuts = np.cumsum([part.size for part in first])[:-1]
    carried = np.zeros(flat.size, bool)
    number = program.new_loop()
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
    loop = LoopBody(tuple(np.array(names)[carried].tolist()), tuple(after[carried].tolist()), continues(results))
    out = flat.copy()
    out[carried] = program.loop(begin, flat[carried].tolist(), loop)
    return parts(out)
