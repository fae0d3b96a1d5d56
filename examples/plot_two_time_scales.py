r"""
A fast second layer learns one Hermite component after the other
================================================================

A wide network learns :math:`g = h_1 + (h_2 + h_3)/2`, a sum of normalised Hermite polynomials of one direction, from
orthogonal units. With a second layer :math:`1/\epsilon` times faster than the first, it learns component n at a time of
about :math:`\epsilon^{1/2n}` as :math:`\epsilon\to0` (Berthier, Montanari, Zhou); with a slow one, all together.
"""

from math import factorial

import matplotlib.pyplot as plt
import numpy as np
from numpy.polynomial import hermite_e

import sgdlimits as sl

target, student, p = [0, 1, 0.5, 0.5], [1, 1, 1, 1], 10


def series(coefficients):
    """A sum of normalised Hermite polynomials."""
    scale = [factorial(n) ** 0.5 for n in range(4)]
    return sl.Polynomial(hermite_e.herme2poly(np.divide(coefficients, scale)))


start = sl.Particles(a=np.linspace(-1, 1, p), M=np.zeros((p, 1)), q=np.ones(p))
times = np.geomspace(1e-4, 30, 45)
plt.rcParams.update(sl.plot.PAPER)
figure, axes = plt.subplots(1, 3, figsize=(8.6, 3.2), layout="constrained", sharey=True)
for ax, (name, ratio) in zip(axes, {"0.1": 0.1, "$10^3$": 1e3, "$10^7$": 1e7}.items(), strict=True):
    problem = sl.presets.single_index(series(student), series(target), lr=p, width=p, train_second=ratio)
    run = sl.simulate(problem, sl.MeanField(rtol=1e-6), start, t_max=30, save=times).isel(run=0, teacher=0)
    for n in (1, 2, 3):
        ax.semilogx(times, (run.a * run.M**n).mean("student") * student[n] / target[n], label=f"$n = {n}$")
    ax.set(title=f"second layer at {name} lr", xlabel=r"$\gamma t/p$")
axes[0].set_ylabel("component over the target's")
axes[0].legend()
plt.show()
