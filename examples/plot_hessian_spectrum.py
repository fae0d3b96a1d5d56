r"""
The Hessian along a trajectory
==============================

Three squared units learn two others. The ODE gives the statistics, and `hessian_spectrum` all 3000 eigenvalues of the Hessian
of the population risk in :math:`d = 1000` dimensions, from one block of size 15 and one of size 3. On the plateau six
directions lead down, one for each pair of a unit and a teacher, and thousands are flat. At the end none leads down, and the
directions of the superfluous unit have become flat.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

problem, d = sl.presets.quadratic_network(width=3, teachers=2, lr=0.02), 1000
start = sl.OrthogonalInit(1e-5)
run = sl.simulate(problem, sl.ODE(corrector=False), start, t_max=1200, save=61, seed=1).isel(run=0)
points = [sl.Overlaps(run.a[i].values, run.M[i].values, run.Q[i].values) for i in range(run.sizes["t"])]
spectra = [sl.hessian_spectrum(problem, point, d, tolerance=0.01) for point in points]
for name, i in (("plateau", 10), ("end", -1)):
    print(f"{name}, risk {float(run.risk[i]):.3f}: {spectra[i]!r}")

# %%
# Each dot is an eigenvalue; its area grows with the logarithm of its multiplicity.

plt.rcParams.update(sl.plot.PAPER)
figure, (above, below) = plt.subplots(2, 1, figsize=(6.4, 5.2), sharex=True, height_ratios=(1, 2), layout="constrained")
time = problem.rate * run.t.values
above.plot(time, run.risk, color="black")
above.set(ylabel="risk", ylim=(0, None))
values, counts = (np.concatenate(part) for part in zip(*spectra, strict=True))
when = np.repeat(time, [spectrum.eigenvalues.size for spectrum in spectra])
colours = np.array(["0.5", "#0072B2", "#D55E00"])[np.sign(values).astype(int)]
below.scatter(when, values, s=2 + 9 * np.log10(counts), c=colours, linewidths=0)
below.set(xlabel=r"$\eta\, t$", ylabel="eigenvalues", title="down (orange), flat (grey), up (blue)")
plt.show()
