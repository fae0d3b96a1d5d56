"""Thresholds and fixed points of the effective dynamics of spiked tensors and of Gaussian mixtures [2]_.

.. [2] Ben Arous, Gheissari, Jagannath, *High-dimensional limit theorems for SGD: effective dynamics and critical scaling*.
"""

from sgdlimits.theory.effective.mixtures import (
    critical_ridge as critical_ridge,
    ring_radius as ring_radius,
    success_probability as success_probability,
)
from sgdlimits.theory.effective.spiked import (
    barrier as barrier,
    critical_snr as critical_snr,
    overlaps as overlaps,
    scaled_snr as scaled_snr,
)
