r"""
Which solution a quadratic network ends at
==========================================

A sum of squares is invariant under rotations of the teachers, so the solutions of zero risk form a manifold. From
orthonormal students the ODE ends at the solution closest to its start, because the orthogonal part S of the overlaps M
is conserved. From orthogonal students of different norms S moves, and the end is not the closest solution (right: the
orange line levels off). At finite d noise moves S by :math:`d^{-1/2}` in both cases.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

problem = sl.presets.quadratic_network(width=2, teachers=2, lr=0.1)
M = np.array([[0.33, -0.2], [0.25, 0.09]])
starts = {f"squared norms {q}": sl.Overlaps(np.ones(2), M, np.diag(q)) for q in ((1.0, 1.0), (1.8, 0.4))}

plt.rcParams.update(sl.plot.PAPER)
figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
for (label, start), colour in zip(starts.items(), ("C0", "C1"), strict=True):
    closest = sl.conserved.end_point(problem, start)
    for level, style in ((sl.ODE(), "-"), (sl.Chain(d=1000), ":")):
        runs = sl.simulate(problem, level, start, t_max=45)
        part, apart = sl.conserved.polar(runs), sl.conserved.distance(runs, closest)
        name = f"{level.name}, {label}"
        print(f"{name}: an entry of S moves by {part.drift.values.max():.1e}, M ends at distance {float(apart.M[0, -1]):.1e}")
        axes[0].plot(runs.t, part.S[0].values.reshape(-1, 4), color=colour, linestyle=style)
        axes[1].semilogy(runs.t, apart.M[0], color=colour, linestyle=style, label=name)
axes[0].set(xlabel="$t$, samples per dimension", ylabel="entries of $S$")
axes[1].set(xlabel="$t$, samples per dimension", ylabel="distance of $M$ from the closest solution")
axes[1].legend(fontsize=7)
plt.show()
