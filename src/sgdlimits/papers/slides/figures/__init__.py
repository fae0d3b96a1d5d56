"""Figures of the slides on dimension-free limits."""
