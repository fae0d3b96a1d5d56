"""What a unit does with its field."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sgdlimits.errors import BadInput


class Activation(eqx.Module):
    """A function applied to each entry of an array; `smooth` says that quadrature converges fast on it."""

    fn: Callable = eqx.field(static=True)
    smooth: bool = eqx.field(static=True, default=False)

    def __call__(self, fields: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.fn(fields)


def squared(field):
    """The square of a field."""
    return field * field


ACTIVATIONS = {"square": Activation(squared, smooth=True)}


def as_activation(activation: str | Callable | Activation) -> Activation:
    """An activation from its name, or from a user's own JAX function of one number.

    >>> import jax.numpy as jnp
    >>> float(as_activation(jnp.abs)(-2.0))
    2.0
    """
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            raise BadInput(f"unknown activation {activation!r}. Give one of {sorted(ACTIVATIONS)}, or a JAX function.")
        return ACTIVATIONS[activation]
    if not callable(activation):
        raise BadInput(f"activation must be a name or a function; got {activation!r}. Give, for instance, jnp.abs.")
    try:
        shape = jax.eval_shape(activation, jax.ShapeDtypeStruct((3, 2), float)).shape
    except Exception as reason:
        raise BadInput(f"activation {activation!r} fails on an array: {reason}. Write it with jax.numpy.") from reason
    if shape != (3, 2):
        raise BadInput(
            f"activation {activation!r} turns shape (3, 2) into {shape}. Give a function that acts on each entry alone."
        )
    return Activation(activation)


def is_square(activation: Activation) -> bool:
    return activation.fn in (squared, jnp.square)
