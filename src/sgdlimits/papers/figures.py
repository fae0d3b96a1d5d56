"""Names and modules of all figures, one file each: data, picture, and a caption with the measured numbers.

A figure is a module in the folder `figures` of its paper, with a docstring, the sizes `FULL_SIZE` and `QUICK_SIZE`,
`PARAMETER_WORDS` for their numbers, and `make_figure(size, seed, save_dataset) -> DrawnFigure`; its name is below.

.. [1] Arnaboldi, Krzakala, Loureiro, Stephan, *Escaping mediocrity: how two-layer networks learn hard generalized
   linear models*.
.. [2] Ben Arous, Gheissari, Jagannath, *High-dimensional limit theorems for SGD: effective dynamics and critical scaling*.
.. [3] Bocchi, Regimbeau, Lucibello, Saglietti, Cammarota, *Escape dynamics and implicit bias of one-pass SGD in
   overparameterized quadratic networks*.
.. [5] Loureiro, *Dimension-free limits of SGD for two-layers neural networks*, slides.
.. [12] Berthier, Montanari, Zhou, *Learning time-scales in two-layers neural networks*.
.. [15] Ben Arous, Gheissari, Jagannath, *Online stochastic gradient descent on non-convex losses from high-dimensional
   inference*.
.. [17] Lee, Sarao Mannelli, Clopath, Goldt, Saxe, *Maslow's hammer for catastrophic forgetting*.
.. [18] Lee, Goldt, Saxe, *Continual learning in the teacher-student setup: impact of task similarity*.
.. [19] Mignacco, Mori, *A statistical physics framework for optimal learning*.
.. [21] Paquette, Paquette, Xiao, Pennington, *4+3 phases of compute-optimal neural scaling laws*.
.. [22] Ferbach, Everett, Gidel, Paquette, Paquette, *Dimension-adapted momentum outscales SGD*.
.. [24] Li, Wang, Chen, Zhao, Zheng, Wu, *Optimal learning-rate schedules under functional scaling laws: power decay and
   warmup-stable-decay*.
.. [25] Bordelon, Mori, *Theory of optimal learning rate schedules and scaling laws for a random feature model*.
.. [26] Hastie, Montanari, Rosset, Tibshirani, *Surprises in high-dimensional ridgeless least squares interpolation*.
"""

FIGURE_NAMES = {
    "mediocrity": """
        demo mediocrity-1-left mediocrity-1-right mediocrity-2 mediocrity-3 mediocrity-4 mediocrity-5 mediocrity-width
        noise-delay open-activations open-noise open-second-layer
    """,
    "effective": """
        effective-1 effective-2 effective-3 effective-ridge
    """,
    "quadratic": """
        quadratic-1 quadratic-2 quadratic-3 quadratic-4 quadratic-5 quadratic-6
    """,
    "slides": """
        committee-classical committee-high-d mean-field regimes
    """,
    "new_results": """
        double-descent full-batch optimal-curriculum optimal-dropout optimal-replay plateau-exits schedule-escape schedule-muon
        second-pass single-index staircase staircase-correlated which-optimiser which-optimiser-why your-data
    """,
    "scaling": """
        plateau-spectrum scaling-exponents scaling-features scaling-frontier scaling-momentum scaling-schedule
    """,
}
"""Names of the figures, by the folder of their paper."""
FIGURES = {
    name: f"sgdlimits.papers.{paper}.figures.{name.replace('-', '_')}"
    for name, paper in sorted((name, paper) for paper, names in FIGURE_NAMES.items() for name in names.split())
}
"""Module of each figure by its name on the command line; modules are imported when a figure is made."""
