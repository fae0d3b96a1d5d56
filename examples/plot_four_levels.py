r"""
One start, four descriptions
============================

One unit learns phase retrieval from one random start. SGD on the weights and the exact chain have the same law;
the SDE keeps the fluctuations of order :math:`1/\sqrt d` but not the corrections of order :math:`1/d`, and
the ODE is the limit :math:`d\to\infty`. At :math:`d = 300` the time of escape is random, which the ODE cannot
show. Thin lines are runs of SGD; bands contain 80 % of the runs of chain and SDE.
"""

import matplotlib.pyplot as plt

import sgdlimits as sl

d = 300
problem = sl.presets.phase_retrieval(lr=0.08, noise=0.1)
start = sl.RandomInit(d).one(problem, seed=3)

levels = {
    "SGD on the weights": (sl.SGD(d), 8),
    "exact chain": (sl.Chain(d), 64),
    "SDE": (sl.SDE(d), 64),
    r"ODE, $d\to\infty$": (sl.ODE(), 1),
}
datasets = {name: sl.simulate(problem, level, start, t_max=40, runs=runs, seed=1) for name, (level, runs) in levels.items()}

plt.rcParams.update(sl.plot.PAPER)
figure, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
sl.plot.overlaps(datasets, ax, singles={"SGD on the weights": 8})
ax.set(ylim=(0, 1), title=rf"Phase retrieval, $d = {d}$")
plt.show()
