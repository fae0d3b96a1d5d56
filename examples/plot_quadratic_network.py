r"""
A quadratic network leaves its plateau
======================================

Two squared units learn two orthonormal teachers from an orthonormal start with overlaps of order 0.01. All overlaps wait on a
plateau and then grow together. Squares cannot tell a rotation of the teachers from the teachers themselves, so M tends not to
a permutation but to a rotation, chosen by the start. The chain's runs follow the ODE from the same start.
"""

import matplotlib.pyplot as plt

import sgdlimits as sl

problem = sl.presets.quadratic_network(width=2, teachers=2, lr=0.05)
start = sl.OrthogonalInit(spread=0.01).one(problem, seed=2)
limit = sl.simulate(problem, sl.ODE(), start, t_max=60)
chain = sl.simulate(problem, sl.Chain(d=20_000), start, t_max=60, runs=8)

plt.rcParams.update(sl.plot.PAPER)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
sl.plot.overlaps(chain, left, absolute=False, singles=32)
sl.plot.risk({r"exact chain, $d = 20\,000$": chain, "ODE": limit}, right)
for pair in limit.M.isel(run=0).stack(pair=("student", "teacher")).T:
    left.plot(limit.t, pair, "k:", linewidth=1)
plt.show()
