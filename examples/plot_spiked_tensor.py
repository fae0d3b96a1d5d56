r"""
Matrix PCA below and above its threshold
========================================

SGD infers a direction v from noisy matrices :math:`\lambda vv^\top + W`, one per step. From a random start the overlap is of
order :math:`d^{-1/2}` and obeys a linear diffusion. For :math:`\lambda < 1` it is stable, and the overlap stays of that
order; for :math:`\lambda > 1` it is unstable, and runs leave for :math:`\pm\sqrt{\lambda-1}`. Runs are those of the exact
chain; crosses are the stable fixed points.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

d, start = 1500, sl.RandomInit(d=1500)
plt.rcParams.update(sl.plot.PAPER)
figure, axes = plt.subplots(2, 2, figsize=(7.2, 5), layout="constrained")
for (left, right), snr in zip(axes, (0.8, 1.2), strict=True):
    runs = sl.simulate(sl.presets.spiked_tensor(order=2, snr=snr), sl.Chain(d), start, t_max=10, runs=20, save=200)
    m_star = np.nan_to_num(sl.theory.effective.overlaps(order=2, snr=snr).m_star)
    left.plot(runs.t, runs.m.T, linewidth=0.5)
    right.plot(runs.m.T, runs.r2.T, linewidth=0.3, alpha=0.6)
    for m in {m_star, -m_star}:
        left.axhline(m, color="black", linestyle="--", linewidth=0.9)
        right.plot(m, 1.0, "kx", markersize=8, zorder=3)
    left.set(xlabel="$t$", ylabel="$m$", title=rf"$\lambda = {snr}$", ylim=(-0.75, 0.75))
    right.set(xlabel="$m$", ylabel=r"$r_\perp^2$", xlim=(-0.75, 0.75))
plt.show()
