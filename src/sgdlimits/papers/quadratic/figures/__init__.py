"""Figures of quadratic networks."""
