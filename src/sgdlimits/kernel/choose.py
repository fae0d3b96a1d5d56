"""Which kernel makes the steps of a process."""

from __future__ import annotations

import logging
import os

import jax

from sgdlimits.errors import BadInput
from sgdlimits.kernel.base import Carry, Ending, Kernel, Steps
from sgdlimits.kernel.program import Untranslated
from sgdlimits.kernel.xla import XLA

KERNELS = ("xla", "lanes")


LOG = logging.getLogger("sgdlimits.kernel")


def kernel_for(process: Steps, until: Ending | None, carry: Carry, asked: str | None = None) -> Kernel:
    """The kernel that was asked for, or the fastest that takes a process.

    The environment variable SGDLIMITS_KERNEL asks as well, for whatever it can. Where the kernel is `xla` because `lanes` does
    not know something, its name and a line of the log say what.
    """
    wished = asked or os.environ.get("SGDLIMITS_KERNEL") or None
    if wished not in (None, *KERNELS):
        raise BadInput(f"kernel must be one of {', '.join(KERNELS)}; got {wished!r}. Leave it out to have it chosen.")
    if wished == "xla" or (asked is None and not _suits(process)):
        return XLA(process, until)
    from sgdlimits.kernel.lanes import Lanes

    try:
        return Lanes(process, until, carry)
    except Untranslated as reason:
        if asked is not None:
            raise BadInput(f"kernel='lanes' does not know {reason}. Leave it out, or give 'xla'.") from reason
        other = XLA(process, until)
        other.name = f"xla, since lanes does not know {reason}"
        LOG.info("the steps of %s are made by %s", type(process).__name__, other.name)
        return other


def _suits(process: Steps) -> bool:
    """Weights in R^d are arrays, not a few numbers; and other devices than processors have kernels of their own."""
    return process.runs_axis == -1 and jax.default_backend() == "cpu"
