"""Forgetting and transfer between tasks, and the risk and best learning rate on a rotating teacher."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import scipy
import xarray as xr

from sgdlimits.checks import integer, number
from sgdlimits.domain import NotNegative, Positive, checked
from sgdlimits.errors import BadInput, check_count

TaskIndex = Annotated[int, integer(at_least=0)]
SwitchTime = Annotated[float, number(at_least=0)]
MIN_WEIGHT_FALL = 1e-9
"""Minimum fall of a task's probability that counts as the switch to another task; above rounding."""


@checked
def forgetting(dataset: xr.Dataset, task: TaskIndex = 0, switch: SwitchTime | None = None) -> xr.DataArray:
    r"""Return the growth of the risk on a task since the switch to another task [17]_.

    For the risk :math:`R_c` on the task c and the time :math:`t_s` of the switch the growth is :math:`R_c(t) - R_c(t_s)`, at
    the saved times from :math:`t_s` on; it is positive if the task is forgotten.

    Parameters
    ----------
    dataset : from `simulate`, of a problem whose datasets have `task_risk`, such as `presets.two_tasks`
    task : number of the task, 0 for the first
    switch : time of the switch, of which the last saved time up to it is used; by default the time at which the weight of the
        task first falls

    Returns
    -------
    xarray.DataArray
        with the dimensions `run` and `t`

    >>> import sgdlimits as sl
    >>> problem = sl.presets.two_tasks(similarity=0.5, weights=sl.Steps([5.0], [[1.0, 0.0], [0.0, 1.0]]))
    >>> start = sl.Overlaps({"a": [[0.5, 0.5], [0.5, 0.5]]}, [[0.3, 0.0], [0.0, 0.3]], [[1.0, 0.0], [0.0, 1.0]])
    >>> data = sl.simulate(problem, sl.ODE(), start, t_max=10, save=11, progress=False)
    >>> bool(forgetting(data)[0, -1] > 0), bool(transfer(data)[0, -1] > 0)
    (True, True)
    """
    risk = _select_task_risk(dataset, task)
    since = _find_switch_time(dataset, task) if switch is None else switch
    return _change_since(risk, since).rename("forgetting")


@checked
def transfer(dataset: xr.Dataset, task: TaskIndex = 1, switch: SwitchTime | None = None) -> xr.DataArray:
    r"""Return the fall of the risk on a new task since the switch to this task [17]_.

    For the risk :math:`R_c` on the new task c and the time :math:`t_s` of the switch it is :math:`R_c(t_s) - R_c(t)`.

    Parameters
    ----------
    dataset, switch : as for `forgetting`
    task : number of the new task, 1 for the second; without `switch`, the switch is where the task's weight first rises

    Returns
    -------
    xarray.DataArray
        with the dimensions `run` and `t`
    """
    risk = _select_task_risk(dataset, task)
    since = _find_switch_time(dataset, task, sign=-1) if switch is None else switch
    return (-_change_since(risk, since)).rename("transfer")


@checked
def tracking_risk(speed: NotNegative, lr: Positive, noise: NotNegative = 0.0) -> float:
    r"""Return the stationary risk of one linear unit that learns from a rotating teacher (`presets.drifting`).

    In the frame that rotates with the teacher w at the speed :math:`\omega` the weights u have a fixed point, at which

    .. math:: |u - w|^2 = \frac{1}{2 - \gamma}\left(\frac{2\omega^2}{\gamma^2 + \omega^2} + \gamma\Delta\right), \qquad
              R = \tfrac12\left(|u - w|^2 + \Delta\right),

    for the learning rate :math:`\gamma < 2` as :math:`d\to\infty`, where R is the risk. The first term of the squared distance
    is due to the lag behind the teacher, the second to label noise.

    Parameters
    ----------
    speed : angular speed :math:`\omega` of the teacher, in radians per unit of t
    lr : learning rate :math:`\gamma`, below 2
    noise : variance :math:`\Delta` of the label noise

    >>> round(tracking_risk(speed=0.0, lr=0.5, noise=0.3), 12)          # a teacher at rest: Delta / (2 - lr)
    0.2
    """
    if lr >= 2:
        raise BadInput(f"lr must be below 2, where SGD on one linear unit is stable; got {lr:g}. Give a smaller lr.")
    lag = 2 * speed**2 / (lr**2 + speed**2)
    return float(((lag + lr * noise) / (2 - lr) + noise) / 2)


@checked
def tracking_lr(speed: Positive, noise: NotNegative = 0.0) -> float:
    r"""Return the learning rate that minimises `tracking_risk`, the stationary risk on a rotating teacher.

    For slow teachers it is :math:`\gamma \approx (4\omega^2/\Delta)^{1/3}`: the slower the teacher and the larger the noise,
    the longer is the time over which samples are averaged.

    Parameters
    ----------
    speed : angular speed :math:`\omega` of the teacher, in radians per unit of t
    noise : variance :math:`\Delta` of the label noise

    >>> slow = 1e-5
    >>> round(tracking_lr(slow, noise=0.1) / (4 * slow**2 / 0.1) ** (1 / 3), 2)
    1.0
    """
    of_log = lambda x: tracking_risk(speed, float(np.exp(x)), noise)
    grid = np.linspace(np.log(1e-9), np.log(2) - 1e-6, 400)
    best = int(np.argmin([of_log(x) for x in grid]))
    bounds = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
    return float(np.exp(scipy.optimize.minimize_scalar(of_log, bounds=bounds, method="bounded", options={"xatol": 1e-10}).x))


def _select_task_risk(dataset: xr.Dataset, task: int) -> xr.DataArray:
    """Return the risk on one task, or raise `BadInput` if the dataset has no such task."""
    if "task_risk" not in dataset:
        raise BadInput("the dataset has no task_risk. Simulate a problem with a readout or a head for each class of the data.")
    tasks = dataset.sizes["task"]
    if check_count("task", task, at_least=0) >= tasks:
        raise BadInput(f"task must be below {tasks}, the number of tasks; got {task}. Give a number from 0 to {tasks - 1}.")
    return dataset.task_risk.isel(task=task)


def _find_switch_time(dataset: xr.Dataset, task: int, sign: int = 1) -> float:
    """Return the first saved time at which the probability of a task has fallen, or, for the sign -1, risen."""
    if "weights" not in dataset.coords:
        raise BadInput("the weights of the tasks do not change with time. Give the time of the switch, such as switch=10.0.")
    weight = sign * dataset.weights.values[:, task]
    fell = np.flatnonzero(weight[1:] < weight[0] - MIN_WEIGHT_FALL)
    if not fell.size:
        change = "fall" if sign > 0 else "rise"
        raise BadInput(f"the weight of task {task} does not {change} at saved times. Give its time, such as switch=10.0.")
    return float(dataset.t.values[fell[0] + 1])


def _change_since(risk: xr.DataArray, switch: float) -> xr.DataArray:
    """Return the risk minus its value at the last saved time up to the switch, from that time on."""
    t = risk.t.values
    before = np.flatnonzero(t <= switch * (1 + 1e-9))
    if not before.size or before[-1] == t.size - 1:
        raise BadInput(
            f"switch must lie between saved times, from {t[0]:g} to below {t[-1]:g}; got {switch:g}. Save more times."
        )
    later = risk.isel(t=slice(int(before[-1]), None))
    return later - later.isel(t=0, drop=True)
