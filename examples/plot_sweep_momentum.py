r"""
A sweep: rate and momentum
==========================

Phase retrieval by heavy-ball SGD over its learning rate :math:`\gamma` and its momentum :math:`\beta`. Algorithms are
parameters like any other. Momentum of order 1 changes the limit only through the learning rate, which becomes
:math:`\gamma/(1-\beta)`. Runs learn below the white line, where this rate is 1/6.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

plt.rcParams.update(sl.plot.PAPER)
over = sl.grid(lr=np.geomspace(0.01, 0.3, 12).round(4), beta=np.linspace(0, 0.9, 10).round(2))
with TemporaryDirectory() as folder:
    ends = sl.sweep(
        "phase_retrieval", sl.Chain(300), sl.RandomInit(300), over=over, fixed={"optimiser": "heavy_ball"}, folder=folder,
        runs=32, t_max=60, keep="relative_risk",
    )  # fmt: skip
ax = sl.plot.phase_diagram(ends, "lr", "beta", "relative_risk", theory=lambda lr, beta: lr / (1 - beta) - 1 / 6)
ax.collections[0].set_cmap("magma")
ax.figure.set_size_inches(5.2, 3.8)
plt.show()
