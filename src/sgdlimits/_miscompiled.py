"""Workarounds for faults of particular releases of jaxlib.

jaxlib 0.10.2 miscompiles sums over quadrature nodes for a batch of one run.
On a CPU its fusion pass "ynn" evaluates a sum over one axis, followed by products with the broadcast sum, from the wrong
elements where the leading axis has length one. Drifts and covariances by quadrature have this form, so that the ODE and the
SDE of a single run would follow another vector field. `pyproject.toml` refuses that release; an environment that has it all the
same is given the option that turns the pass off, before XLA reads its options for the only time.

Releases before it report two tuning hints of some processors, "prefer-no-gather" and "prefer-no-scatter", as errors whenever
they load cached code, several lines of a thousand characters at a time (seen with 0.9.2, 0.10.0 and 0.10.1). Nothing is wrong
then. XLA reads its log level when it is loaded: `settings.setup_jax`, which lets JAX keep code, silences the lines
if it is called before JAX is imported.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax

RELEASES_WITH_XLA_HINTS = ("0.9.2", "0.10.0", "0.10.1")
"""Releases of jaxlib that print harmless tuning hints as errors."""
MISCOMPILING_RELEASE = "0.10.2"
FUSION_OFF_FLAG = "--xla_cpu_experimental_ynn_fusion_type="


def evaluate_fault_example(x: jax.Array) -> jax.Array:
    """Return an outer product at each quadrature node: a minimal program that one release of jaxlib miscompiles.

    It is y yᵀ for y = x ∑ⱼ xⱼ, where x has shape (1, p, nodes).
    """
    y = x * x.sum(1)[:, None]
    return y[:, :, None] * y[:, None]


def silence_xla_hints(environment: MutableMapping[str, str]) -> None:
    """Set the environment so that XLA reports fatal errors only, if jaxlib prints tuning hints as errors.

    A log level that is set already is kept.
    """
    if version("jaxlib") in RELEASES_WITH_XLA_HINTS:
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def is_miscompiled() -> bool:
    """Return whether the installed XLA miscompiles `evaluate_fault_example`, the test program for a known fault."""
    import jax

    x = jax.numpy.linspace(-1.0, 1.0, 2 * 32768).reshape(1, 2, 32768)  # 1024 nodes came out right
    with jax.disable_jit():
        expected = evaluate_fault_example(x)
    return bool(abs(jax.jit(evaluate_fault_example)(x) - expected).max() > 1e-3)


def turn_off_fusion() -> None:
    """Turn off XLA's faulty fusion pass if the installed jaxlib has it; raise `ImportError` if that comes too late.

    It comes too late once XLA has read its options.
    """
    if version("jaxlib") != MISCOMPILING_RELEASE:
        return
    flags = os.environ.get("XLA_FLAGS", "")
    if FUSION_OFF_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {FUSION_OFF_FLAG}".strip()
    from jax._src.xla_bridge import backends_are_initialized  # private, but of this one release

    # XLA parses its options when the first backend starts; later changes of the environment are not seen.
    if backends_are_initialized() and is_miscompiled():
        raise ImportError(
            f"jaxlib {MISCOMPILING_RELEASE} gives wrong drifts on a CPU, and JAX was used before sgdlimits could turn its "
            "fault off. Install another jaxlib, import sgdlimits before the first computation, or set "
            f"XLA_FLAGS={FUSION_OFF_FLAG}"
        )
