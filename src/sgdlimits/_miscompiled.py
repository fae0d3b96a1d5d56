"""Protection from jaxlib 0.10.2, which miscompiles sums over quadrature nodes for a batch of one run.

On a CPU its fusion pass "ynn" evaluates a sum over one axis, followed by products with the broadcast sum, from the wrong
elements where the leading axis has length one. Drifts and covariances by quadrature have this form, so that the ODE and the
SDE of a single run would follow another vector field. `pyproject.toml` refuses that release; an environment that has it all the
same is given the option that turns the pass off, before XLA reads its options for the only time.
"""

import os

import jax
import jaxlib

MISCOMPILING = "0.10.2"
FLAG = "--xla_cpu_experimental_ynn_fusion_type="


def outer_of_centred(x: jax.Array) -> jax.Array:
    """Return y yᵀ at each node for y = x ∑ⱼ xⱼ, where x has shape (1, p, nodes): the smallest program found that goes wrong."""
    y = x * x.sum(1)[:, None]
    return y[:, :, None] * y[:, None]


def is_miscompiled() -> bool:
    """Whether XLA, with its options and double precision, gives other numbers for the program above than one operation at a time does."""
    x = jax.numpy.linspace(-1.0, 1.0, 2 * 32768).reshape(1, 2, 32768)  # 1024 nodes came out right
    with jax.disable_jit():
        expected = outer_of_centred(x)
    return bool(abs(jax.jit(outer_of_centred)(x) - expected).max() > 1e-3)


def turn_off_fusion() -> None:
    """Turn the pass off in a jaxlib that has the fault, or refuse to go on where XLA has read its options already."""
    if jaxlib.__version__ != MISCOMPILING:
        return
    flags = os.environ.get("XLA_FLAGS", "")
    if FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {FLAG}".strip()
    from jax._src.xla_bridge import backends_are_initialized  # private, but of this one release

    # XLA parses its options when the first backend starts; later changes of the environment are not seen.
    if backends_are_initialized() and is_miscompiled():
        raise ImportError(
            f"jaxlib {MISCOMPILING} computes wrong drifts on a CPU, and JAX was used before sgdlimits could turn the faulty pass off. "
            f"Install another jaxlib, import sgdlimits before the first computation, or set XLA_FLAGS={FLAG}"
        )
