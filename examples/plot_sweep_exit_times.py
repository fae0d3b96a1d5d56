r"""
A sweep: exit time against width and dimension
==============================================

One call simulates phase retrieval at every width p and dimension of a grid, keeps only the exit times, and returns one
dataset with both as dimensions. The white lines are the annealed formula, :math:`p/(2\gamma\omega_M)` times a logarithm of
the dimension, where :math:`\gamma` is the learning rate and :math:`\omega_M` the growth rate of the overlaps. The formula
starts from the mean square overlap, and its times are therefore too early.
"""

from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

T, lr = 0.1, 1 / 12


def theory(p, d):
    prefactor = p / (2 * lr * sl.theory.mediocrity.linear_rates(p, lr).M)
    return prefactor * np.log((p + 1) * (T * d + 1 - T) / (2 * p))


plt.rcParams.update(sl.plot.PAPER)
over = sl.grid(width=[1, 2, 3, 4, 6, 8], d=[50, 100, 200, 400, 800])
with TemporaryDirectory() as folder:
    times = sl.sweep(
        "phase_retrieval", "chain", "random", over=over, fixed={"lr": lr}, folder=folder, runs=64, t_max=400,
        keep={"exit_time": {"threshold": T}},
    )  # fmt: skip
ax = sl.plot.phase_diagram(times, "width", "d", "exit_time", theory=theory, levels=[10, 20, 30, 40], label="mean exit time $t$")
ax.figure.set_size_inches(5.2, 3.8)
plt.show()
