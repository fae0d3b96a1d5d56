r"""
Your own problem
================

Units :math:`|\lambda|`, a Huber loss and labels :math:`y = x_1 x_2`: none of the three is in the package. Gradients come
from automatic differentiation and expectations from Sobol points, so all four levels work with these lines alone. They
agree: the curves are means over runs, and the table has the final risk with its standard error over runs.
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt

import sgdlimits as sl


def huber(prediction, label):
    error = jnp.abs(prediction - label)
    return jnp.where(error < 1, error**2 / 2, error - 0.5)


problem = sl.ProjectionProblem(
    target=sl.Target(lambda fixed: fixed[0] * fixed[1], teachers=2),
    network=sl.TwoLayer(2, jnp.abs),
    loss=huber,
    algorithm=sl.OnePassSGD(lr=1.0, lr_second=0.5),
    expectation=sl.Sobol(log2_points=13),
)
start = sl.Overlaps(a=[2, -2], M=[[0.3, 0.2], [0.1, -0.4]], Q=[[1, 0], [0, 1]])
levels = {"SGD": sl.SGD(d=300), "chain": sl.Chain(d=300), "SDE": sl.SDE(d=300, dt=0.2, samples=8)}
datasets = {name: sl.simulate(problem, level, start, t_max=20, runs=16, save=41) for name, level in levels.items()}
datasets["ODE"] = sl.simulate(problem, sl.ODE(), start, t_max=20, save=41)
for name, dataset in datasets.items():
    final = dataset.risk.values[:, -1]
    print(f"{name:<6}{final.mean():.4f} ± {final.std() / final.size**0.5:.4f}")

plt.rcParams.update(sl.plot.PAPER)
sl.plot.overview(datasets, singles=0, band=None)
plt.show()
