"""Figures of this package's own results."""
