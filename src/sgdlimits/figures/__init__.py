"""Figures, one file each: they compose the package's verbs, and say in a caption with numbers what came out.

A figure is a module with a docstring, the sizes `FULL` and `QUICK`, and `make(size, seed, keep) -> Drawn`; its name is below.
"""

FIGURES = {
    "committee-classical": "sgdlimits.figures.committee_classical",
    "committee-high-d": "sgdlimits.figures.committee_high_d",
    "demo": "sgdlimits.figures.demo",
    "effective-1": "sgdlimits.figures.effective_1",
    "effective-2": "sgdlimits.figures.effective_2",
    "effective-3": "sgdlimits.figures.effective_3",
    "mean-field": "sgdlimits.figures.mean_field",
    "mediocrity-1-left": "sgdlimits.figures.mediocrity_1_left",
    "mediocrity-1-right": "sgdlimits.figures.mediocrity_1_right",
    "mediocrity-2": "sgdlimits.figures.mediocrity_2",
    "mediocrity-3": "sgdlimits.figures.mediocrity_3",
    "mediocrity-4": "sgdlimits.figures.mediocrity_4",
    "mediocrity-5": "sgdlimits.figures.mediocrity_5",
    "mediocrity-width": "sgdlimits.figures.mediocrity_width",
    "quadratic-1": "sgdlimits.figures.quadratic_1",
    "quadratic-2": "sgdlimits.figures.quadratic_2",
    "quadratic-5": "sgdlimits.figures.quadratic_5",
    "quadratic-6": "sgdlimits.figures.quadratic_6",
    "open-activations": "sgdlimits.figures.open_activations",
    "open-noise": "sgdlimits.figures.open_noise",
    "open-second-layer": "sgdlimits.figures.open_second_layer",
    "quadratic-3": "sgdlimits.figures.quadratic_3",
    "quadratic-4": "sgdlimits.figures.quadratic_4",
    "single-index": "sgdlimits.figures.single_index",
    "regimes": "sgdlimits.figures.regimes",
}
"""The module of each figure, by its name on the command line. Modules are imported when a figure is made."""
