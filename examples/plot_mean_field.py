r"""
Wide networks: the mean-field limit
===================================

Committees of increasing width p learn two teachers, and are compared at equal time :math:`\gamma t/p`, where :math:`\gamma`
is the learning rate. The ODE follows the p units of each committee; `MeanField` follows the same units as if each stood for
infinitely many. The gap between the two falls as 1/p (printed), and a chain at finite d (dotted) agrees with the ODE of its
width.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

widths, end = [2, 4, 8], 6.0
overlap = np.random.default_rng(0).uniform(-0.5, 0.5, size=(max(widths), 2))


def run(level, p):
    """A level at width p, from the first p units."""
    problem = sl.presets.committee(p, 2, lr=1.0, noise=0.01)
    return sl.simulate(problem, level, sl.FixedInit(overlap[:p]), t_max=end * p, save=60)


finite = {p: run(sl.ODE(), p) for p in widths}
limit = {p: run(sl.MeanField(), p) for p in widths}
gaps = [float(abs(finite[p].risk - limit[p].risk).max()) for p in widths]
exponent = np.polyfit(np.log(widths), np.log(gaps), 1)[0]
print("largest gap in the risk:", dict(zip(widths, np.round(gaps, 5).tolist(), strict=True)), f"~ p^{exponent:.2f}")

plt.rcParams.update(sl.plot.PAPER)
figure, ax = plt.subplots(figsize=(5.6, 3.8), layout="constrained")
curves = {f"ODE, $p = {p}$": finite[p] for p in widths}
curves |= {"chain, $p = 8$, $d = 300$": run(sl.Chain(300), 8), "mean field of 8 units": limit[8]}
sl.plot.risk(curves, ax, clock="paper", log=True, excess=0.005)
ax.set(title="Two teachers, erf units, fixed learning rate")
plt.show()
