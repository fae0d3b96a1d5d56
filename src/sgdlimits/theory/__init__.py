"""Closed results, one folder or file a paper. They use the package's convention: times are in samples per dimension."""

from sgdlimits.theory import effective, escape, mediocrity, quadratic, recovery, regimes, single_index

__all__ = ["effective", "escape", "mediocrity", "quadratic", "recovery", "regimes", "single_index"]
