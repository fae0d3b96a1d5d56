r"""
How fast the ODE is approached
==============================

From the same start the exact chain differs from the ODE by a path of order :math:`1/\sqrt d`. The figure fits
the exponent of :math:`\sup_t E\,\|X_d(t) - X_\infty(t)\|`, where X contains all overlaps, for phase retrieval by
two units. The dots lie on a line of slope close to -1/2.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

problem = sl.presets.phase_retrieval(width=2, lr=0.2, noise=0.1)
start = sl.Overlaps(a=[1, 1], M=[[0.3], [-0.2]], Q=[[1, 0.2], [0.2, 1]])
times = np.linspace(0.5, 2, 4)
limit = sl.simulate(problem, sl.ODE(), start, t_max=2, save=times).isel(run=0)


def gap(d):
    """The maximum over time of the mean distance over runs."""
    chain = sl.simulate(problem, sl.Chain(d), start, t_max=2, runs=128, save=times)
    squares = [((chain[name] - limit[name]) ** 2).sum(limit[name].dims[1:]) for name in ("M", "Q")]
    return float((sum(squares) ** 0.5).mean("run").max())


sizes = np.array([1200, 5000, 20_000])
gaps = [gap(int(d)) for d in sizes]
exponent, offset = np.polyfit(np.log(sizes), np.log(gaps), 1)

plt.rcParams.update(sl.plot.PAPER)
figure, ax = plt.subplots(figsize=(4.6, 3.4), layout="constrained")
ax.loglog(sizes, gaps, "o", color="#0072B2", label="exact chain")
ax.loglog(sizes, np.exp(offset) * sizes**exponent, "k--", label=rf"fit, $d^{{{exponent:.3f}}}$")
ax.set(xlabel="$d$", ylabel="mean distance to the ODE", xticks=sizes, xticklabels=sizes)
ax.set_xticks([], minor=True)
ax.legend()
plt.show()
