r"""
Effective dynamics from a loss alone
====================================

Logistic regression of two classes with heavy-tailed inputs (Student's t), which are not in the package. The drift of
:math:`m = w\cdot\mu` and :math:`q = |w - m\mu|^2` is tabulated from the loss and a sampler in dimension 200, and followed as
an ODE (black), beside SGD (colours). Without the corrector, the effect of noise on the mean (dotted), the ODE has a wrong q.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sgdlimits as sl

loss = lambda w, s: jnp.logaddexp(0.0, -s["y"] * (s["x"] @ w)) + 0.05 * (w @ w)
overlaps = lambda w: {"m": w[0], "q": (w[1:] ** 2).sum()}


def sample(key, d):
    sign, scale, noise = jax.random.split(key, 3)
    y, x = jax.random.rademacher(sign, ()), jax.random.normal(noise, (d,)) * jnp.sqrt(2.5 / jax.random.gamma(scale, 2.5))
    return {"x": x.at[0].add(y), "y": y}


d, lr, draw = 200, 0.7, lambda key, d: jax.random.normal(key, (d,)) / np.sqrt(d)
dynamics = sl.effective_dynamics(loss=loss, sample=sample, statistics=overlaps, at=draw, lr=lr, d=d, samples=16_384)
problem = dynamics.tabulate({"m": np.linspace(-0.5, 1.6, 8), "q": np.geomspace(0.03, 2.2, 8)}).problem
step = lambda w, key: (w - lr / d * jax.grad(loss)(w, sample(key, d)), overlaps(w))
runs = jax.vmap(lambda key: jax.lax.scan(step, draw(key, d), jax.random.split(key, 8 * d))[1])
sgd = runs(jax.random.split(jax.random.key(1), 8))
for name, color in (("m", "#0072B2"), ("q", "#D55E00")):
    plt.plot(np.arange(8 * d) / d, sgd[name].T, color=color, alpha=0.4)
    for corrector, style in ((True, "-"), (False, ":")):
        ode = sl.simulate(problem, sl.ODE(corrector), dynamics.starts(), t_max=8, save=33)
        plt.plot(ode.t, ode[name][0], style, color="black")
plt.gca().set(xlabel="t", title="m (blue) and q (red)")
plt.show()
