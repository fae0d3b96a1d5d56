r"""Rigorous bounds on the change of a function in a neighbourhood, by interval arithmetic on its jaxpr.

Each value x of the function becomes a pair (x, r): the value stays within the radius r of x as long as no input changes by more
than the radius of that input. The radius of a sum is the sum of the radii, that of a product
:math:`|x|r_y + |y|r_x + r_xr_y`, and that of an increasing function the larger of its changes from x to x - r and x + r.
A comparison has, instead of a radius, whether its result may change. The bounds are not the tightest, since dependent values
are treated as independent, but they need no knowledge of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jaxtyping import Array, PyTree

from sgdlimits.kernel.compiler.program import TranslationError

COMPARISON_SLACK = 1e-12
"""Tolerance in comparisons of values, relative to their size; it is far above rounding."""
ValueAndRadius = tuple[Any, Any]

RADIUS_PRESERVING_PRIMITIVES = (
    "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "rev", "slice", "reduce_sum", "cumsum", "copy",
    "copy_p", "stop_gradient", "tile", "neg", "abs", "reduce_precision", "real",
)  # fmt: skip
"""Primitives that act on radii as on values, or leave radii unchanged."""
_MONOTONE_PRIMITIVES = (
    "exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erfc", "sqrt", "asin", "acos", "atan", "sinh", "cbrt",
)  # fmt: skip
_COMPARISON_PRIMITIVES = ("eq", "ne", "lt", "le", "gt", "ge")
_LIPSCHITZ_CONSTANTS = {"sin": 1.0, "cos": 1.0}
"""Lipschitz constants of functions that are not monotone."""
_MONOTONE_DOMAINS = {"asin": (-1.0, 1.0), "acos": (-1.0, 1.0), "sqrt": (0.0, np.inf)}
"""Domains of monotone primitives that are not defined everywhere."""
_MONOTONE_FUNCTIONS = {"arcsine": (-1.0, 1.0)}
"""Monotone functions with derivative rules of their own, by name, and their domains.

Bounding both of their branches would give a radius that does not vanish with that of the argument.
"""


def with_change_bound(function: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
    """Transform f(x, ...) to a function of (radii, x, ...) that returns f and a bound on its change if x changes by `radii`.

    `radii` has the largest change of each entry of the first argument; the others are fixed. Tracing the result raises
    `TranslationError` for a primitive without a rule.
    """

    def value_and_radius(radii: PyTree, first: PyTree, *rest: PyTree) -> tuple[Array, Array]:
        """Return the function's value and a bound on its change."""
        pairs = [*zip(jax.tree.leaves(first), jax.tree.leaves(radii), strict=True)]
        pairs += [(leaf, None) for leaf in jax.tree.leaves(rest)]
        ((value, radius),) = _evaluate_jaxpr(jax.make_jaxpr(function)(first, *rest), pairs)
        return value, _full_radius(value, radius)

    return value_and_radius


def _full_radius(value: Any, radius: Any) -> Any:
    """Return a radius as an array, with zeros (False for bools) in place of None; integers are exact and keep None."""
    kind = jnp.result_type(value)
    if radius is not None or jnp.issubdtype(kind, jnp.integer):
        return radius
    return jnp.zeros(jnp.shape(value), bool if kind == np.dtype(bool) else float)


def _evaluate_jaxpr(closed: ClosedJaxpr, arguments: Sequence[ValueAndRadius]) -> list[ValueAndRadius]:
    """Evaluate a jaxpr on pairs (value, radius), where the radius None stands for a fixed value."""
    known: dict[Any, ValueAndRadius] = {}
    jaxpr = closed.jaxpr
    read = lambda atom: (atom.val, None) if isinstance(atom, Literal) else known[atom]
    known |= {variable: (value, None) for variable, value in zip(jaxpr.constvars, closed.consts, strict=True)}
    known |= dict(zip(jaxpr.invars, arguments, strict=True))
    for equation in jaxpr.eqns:
        results = _evaluate_equation(equation, [read(atom) for atom in equation.invars])
        known |= dict(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _evaluate_equation(equation: Any, pairs: list[ValueAndRadius]) -> list[ValueAndRadius]:
    """Evaluate one equation of a jaxpr on pairs (value, radius)."""
    name, params = equation.primitive.name, equation.params
    inner: Any = next((params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params), None)
    bind = partial(equation.primitive.bind, **params)
    values, radii = [value for value, _ in pairs], [radius for _, radius in pairs]
    if all(radius is None for radius in radii):  # nothing here depends on the state: no bound is needed
        results = bind(*values)
        return [(value, None) for value in (results if equation.primitive.multiple_results else [results])]
    if name == "scan":
        return _evaluate_scan(params, pairs)
    if name == "custom_jvp_call" and (domain := _MONOTONE_FUNCTIONS.get(inner.jaxpr.debug_info.func_name)):
        function = lambda x: jaxpr_as_fun(inner)(x)[0]
        return [(function(values[0]), _monotone_radius(function, values[0], radii[0], domain))]
    if inner is not None:
        return _evaluate_jaxpr(inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, []), pairs)
    if name == "cond" and radii[0] is None:
        return _evaluate_cond(params["branches"], pairs)
    if equation.primitive.multiple_results:
        if name in ("split", "unstack"):
            return list(zip(bind(*values), bind(_full_radius(*pairs[0])), strict=True))
        raise TranslationError(f"a bound for {name}")
    return [(bind(*values), _primitive_radius(name, params, bind, [jnp.asarray(value) for value in values], radii))]


def _primitive_radius(name: str, params: dict, bind: Callable, x: list[Array], radii: list[Any]) -> Any:
    """Return a bound on the change of a primitive's result, from its arguments `x` and the bounds `radii` on their changes."""
    r = [_full_radius(value, radius) for value, radius in zip(x, radii, strict=True)]
    if name in RADIUS_PRESERVING_PRIMITIVES:
        return bind(r[0]) if name not in ("neg", "abs", "reduce_precision") else r[0]
    if name in ("concatenate", "stack"):
        return bind(*r)
    if name in ("gather", "dynamic_slice", "dynamic_update_slice", "scatter", "pad"):
        return bind(*(value if radius is None else radius for value, radius in zip(x, r, strict=True)))
    if name in ("add", "sub", "add_any"):
        return r[0] + r[1]
    if name in ("max", "min"):
        return jnp.maximum(r[0], r[1])
    if name in ("reduce_max", "reduce_min"):
        return r[0].max(params["axes"])
    if name == "mul":  # |xy - x'y'| <= |x| r_y + r_x (|y| + r_y)
        return abs(x[0]) * r[1] + r[0] * (abs(x[1]) + r[1])
    if name == "dot_general":
        return bind(abs(x[0]), r[1]) + bind(r[0], abs(x[1]) + r[1])
    if name == "div":
        inverse = _positive_radius(abs(x[1]) - r[1], lambda least: r[1] / (abs(x[1]) * least))
        return jnp.where(r[1] > 0, abs(x[0]) * inverse + r[0] * (1 / abs(x[1]) + inverse), r[0] / abs(x[1]))
    if name in ("integer_pow", "square", "one_minus_square"):
        n = params.get("y", 2)
        if n >= 0:
            return (abs(x[0]) + r[0]) ** n - abs(x[0]) ** n
        return _positive_radius(abs(x[0]) - r[0], lambda least: least**n - abs(x[0]) ** n)
    if name == "rsqrt":
        return _positive_radius(x[0] - r[0], lambda least: lax.rsqrt(least) - lax.rsqrt(x[0]))
    if name in _MONOTONE_PRIMITIVES:
        return _monotone_radius(bind, x[0], r[0], _MONOTONE_DOMAINS.get(name, (-np.inf, np.inf)))
    if name == "sign":  # jumps by 2 where the interval contains zero
        return jnp.where(abs(x[0]) <= r[0], 2.0, 0.0)
    if name in _LIPSCHITZ_CONSTANTS:
        return jnp.minimum(_LIPSCHITZ_CONSTANTS[name] * r[0], 2.0)
    if name == "clamp":
        return jnp.maximum(r[1], jnp.maximum(r[0], r[2]))
    if name == "select_n":
        return _select_radius(bind, x, radii, r)
    if name in _COMPARISON_PRIMITIVES:
        if r[0].dtype.kind != "f":
            return r[0] | r[1]
        return abs(x[0] - x[1]) <= r[0] + r[1] + COMPARISON_SLACK * (abs(x[0]) + abs(x[1]))
    if name in ("and", "or", "xor"):
        return r[0] | r[1]
    if name == "not":
        return r[0]
    if name in ("reduce_or", "reduce_and"):
        return r[0].any(params["axes"])
    if name == "convert_element_type" and not jnp.issubdtype(params["new_dtype"], jnp.integer):
        return r[0].astype(bool if params["new_dtype"] == np.dtype(bool) else float)
    if name == "is_finite":
        return ~jnp.isfinite(r[0])
    raise TranslationError(f"a bound for {name}")


def _monotone_radius(function: Callable[[Array], Array], x: Array, r: Array, domain: tuple[float, float]) -> Array:
    """Bound the change of a monotone function on [x - r, x + r] by its values at both ends; infinite outside its domain."""
    here = function(x)
    changes = [abs(function(jnp.clip(end, *domain)) - here) for end in (x - r, x + r)]
    return jnp.nan_to_num(jnp.maximum(*changes), nan=np.inf, posinf=np.inf)


def _positive_radius(least: Array, radius: Callable[[Array], Array]) -> Array:
    """Return `radius(least)` if the argument's least value is positive, else infinity, for a function with a pole at zero."""
    safe = least > 0
    # The argument is replaced where it is not safe, so that no NaN arises in the branch that is not taken.
    return jnp.where(safe, radius(jnp.where(safe, least, 1.0)), np.inf)


def _select_radius(bind: Callable, x: list[Array], radii: list[Any], r: list[Array]) -> Array:
    """Bound the change of `select_n`; where another case may be selected, include the distance to the value of that case."""
    which, *cases = x
    own = bind(which, *r[1:])
    if radii[0] is None:
        return own
    value = bind(which, *cases)
    if value.dtype == bool:
        return own | r[0]
    loose = jnp.broadcast_to(r[0], value.shape)
    far = [abs(case - value) + radius for case, radius in zip(cases, r[1:], strict=True)]
    return jnp.where(loose, jnp.maximum(*far) if len(far) == 2 else jnp.stack(far).max(0), own)


def count_scan_arguments(params: dict) -> tuple[int, int]:
    """Return the numbers of constant and of carried arguments of a `scan` equation with parameters `params`."""
    if "ft_in" in params:  # newer versions of JAX describe the arguments by a tree
        fixed, carried, _ = map(len, params["ft_in"].unpack())
        return fixed, carried
    return params["num_consts"], params["num_carry"]


def _evaluate_scan(params: dict, pairs: list[ValueAndRadius]) -> list[ValueAndRadius]:
    """Evaluate a `scan` on pairs (value, radius); all values get a radius, which carried ones need from the second step on."""
    (n, m), body = count_scan_arguments(params), params["jaxpr"]
    whole = [(jnp.asarray(value), _full_radius(value, radius)) for value, radius in pairs]

    def step(carry, row):
        """Evaluate one step of the scan."""
        results = [(value, _full_radius(value, radius)) for value, radius in _evaluate_jaxpr(body, [*whole[:n], *carry, *row])]
        return results[:m], results[m:]

    carry, rows = lax.scan(step, whole[n : n + m], whole[n + m :], params["length"], params["reverse"])
    return [*map(tuple, carry), *map(tuple, rows)]


def _evaluate_cond(branches: Sequence[ClosedJaxpr], pairs: list[ValueAndRadius]) -> list[ValueAndRadius]:
    """Evaluate a `cond`, whose index must be fixed, on pairs (value, radius)."""
    index, whole = pairs[0][0], [(value, _full_radius(value, radius)) for value, radius in pairs[1:]]
    run = lambda branch: (
        lambda pairs: [(jnp.asarray(v), _full_radius(v, radius)) for v, radius in _evaluate_jaxpr(branch, pairs)]
    )
    if len(branches) == 1 or isinstance(index, (int, np.integer)):
        return run(branches[int(index)])(whole)
    return list(map(tuple, lax.switch(index, [run(branch) for branch in branches], whole)))
