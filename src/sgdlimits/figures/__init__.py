"""Figures, one file each: they compose the package's verbs, and say in a caption with numbers what came out.

A figure is a module with a docstring, the sizes `FULL` and `QUICK`, and `make(size, seed, keep) -> Drawn`; its name is below.
"""

NAMES = """
    committee-classical committee-high-d demo effective-1 effective-2 effective-3 mean-field mediocrity-1-left
    mediocrity-1-right mediocrity-2 mediocrity-3 mediocrity-4 mediocrity-5 mediocrity-width open-activations open-noise
    open-second-layer quadratic-1 quadratic-2 quadratic-3 quadratic-4 quadratic-5 quadratic-6 regimes single-index
"""
FIGURES = {name: f"sgdlimits.figures.{name.replace('-', '_')}" for name in NAMES.split()}
"""The module of each figure, by its name on the command line. Modules are imported when a figure is made."""
