r"""
Traps on the way to the teacher
===============================

A student :math:`-\cos\frac32 x` learns :math:`\mathrm{He}_2 + c\,\mathrm{He}_4` of the projection x on the teacher, and m
is its overlap with the teacher. At small learning rates the overlap grows from zero for every c. But from c = 2/9 on the
population risk (left) has its minimum at an overlap below 1, and SGD ends there: on the right the stable point departs from
m = 1.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from numpy.polynomial import hermite_e

import sgdlimits as sl
from sgdlimits.papers.mediocrity.escape import critical_points


def wave(x):
    return -jnp.cos(1.5 * x)


plt.rcParams.update(sl.plot.PAPER)
figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.4), layout="constrained")
m, s = np.linspace(0, 1, 101), sl.hermite_coefficients(wave, 4)
for c in (0.0, 2 / 9, 4 / 9, 8 / 9):
    left.plot(m, -s[2] * m**2 - s[4] * c * m**4, label=f"$c = {c:.2f}$")
left.set(xlabel="overlap $m$", ylabel="risk minus that of $m = 0$", title="population risk")
left.legend()
for c in np.linspace(-0.3, 1.2, 31):
    for point in critical_points(wave, sl.Polynomial(hermite_e.herme2poly([0, 0, 1, 0, c]))):
        right.plot(c, point.m, "C0o" if point.stable else "C1x", markersize=4)
right.set(xlabel="$c$", ylabel="$m$", title="critical points: stable (dots), unstable")
plt.show()
