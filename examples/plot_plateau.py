r"""
A committee waits on its plateau
================================

Two erf units learn two others, as in Saad and Solla: sums of units, learning rate :math:`\eta`. From small random
weights the students first become identical and wait, for small rates at the published error (dotted). Small
differences grow there at the published rate, until each student finds its own teacher. In the package, which uses
means, the learning rate is `lr` = :math:`\eta K^2`, and their error is :math:`K^2` times the risk.
"""

import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

K, eta, d = 2, 0.1, 100
problem = sl.presets.committee(width=K, teachers=K, lr=eta * K**2)
start = sl.RandomInit(d, scale=0.1).one(problem, seed=1)
t = np.linspace(0, 240, 61) / eta
limit = sl.simulate(problem, sl.ODE(rtol=1e-7), start, t_max=t[-1], save=t)
chain = sl.simulate(problem, sl.Chain(d), start, t_max=t[-1], save=t, runs=4)

error = K / np.pi * (np.pi / 6 - K * np.arcsin(1 / (2 * K)))
rate = 2 / np.pi * K * (2 * K - 1) ** -0.5 * (2 * K + 1) ** -1.5
alike = sl.Overlaps(np.ones(K), np.full((K, K), (K * (2 * K - 1)) ** -0.5), np.full((K, K), 1 / (2 * K - 1)))
ours = sl.linearise(problem, alike, corrector=False).rates[0].real / eta
print(f"the plateau is left at the rate {ours:.5f}; published {rate:.5f}")

plt.rcParams.update(sl.plot.PAPER)
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.5), layout="constrained")
left.plot(eta * t, K**2 * chain.risk.T, color="#0072B2", linewidth=0.8)
left.plot(eta * t, K**2 * limit.risk[0], color="black")
left.axhline(error, color="grey", linestyle=":")
left.set(xlabel=r"$\eta t$", ylabel="error", ylim=(0, 3 * error), title="chain (blue), ODE (black), plateau (dotted)")
right.plot(eta * t, chain.M[0].values.reshape(t.size, -1), color="#0072B2", linewidth=0.8)
right.plot(eta * t, limit.M[0].values.reshape(t.size, -1), color="black", linewidth=0.8)
right.set(xlabel=r"$\eta t$", ylabel=r"overlaps $M_{jr}$", title="one run of the chain and the ODE")
plt.show()
