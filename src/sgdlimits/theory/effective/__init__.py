"""Thresholds and fixed points of the effective dynamics of spiked tensors and of Gaussian mixtures [2]_.

.. [2] Ben Arous, Gheissari, Jagannath, *High-dimensional limit theorems for SGD: effective dynamics and critical scaling*.
"""

from sgdlimits.theory.effective.mixtures import critical_ridge, ring_radius, success_probability
from sgdlimits.theory.effective.spiked import barrier, critical_snr, overlaps, scaled_snr

__all__ = [
    "barrier",
    "critical_ridge",
    "critical_snr",
    "overlaps",
    "ring_radius",
    "scaled_snr",
    "success_probability",
]
