"""`check` says in which way a dataset is not one."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl


@pytest.fixture(scope="module")
def dataset():
    return sl.simulate(sl.presets.committee(width=2, teachers=2), sl.ODE(), sl.FixedInit(0.1), t_max=0.1, save=2)


def put(name, value):
    def change(dataset):
        changed = dataset.copy(deep=True)
        changed[name][(0,) * changed[name].ndim] = value
        return changed

    return change


def without(dataset, attribute):
    changed = dataset.copy()
    del changed.attrs[attribute]
    return changed


ATTRS = lambda **what: lambda dataset: dataset.assign_attrs(what)
BAD = {
    "M is not finite": put("M", np.nan),
    "t_end is not finite": put("t_end", np.inf),
    "no weights have its statistics: Q - M P^-1 M^T has the eigenvalue": put("Q", -1.0),
    "it has no variable 'Q'": lambda dataset: dataset.drop_vars("Q"),
    "it has no variable 't_end'": lambda dataset: dataset.drop_vars("t_end"),
    "it has no dimension 'run'": lambda dataset: dataset.isel(run=[]),
    "it has no attribute 'seed'": lambda dataset: without(dataset, "seed"),
    "its version is not a number but 'new'": ATTRS(version="new"),
    "its statistics are of the unknown kind 'Chain'": ATTRS(statistics="Chain"),
    "its problem has no Gram matrix": ATTRS(problem="{}"),
    "its times do not increase": lambda dataset: dataset.isel(t=[1, 0]),
    "a run has the unknown status 'lost'": lambda dataset: dataset.assign_coords(status=("run", ["lost"])),
    "status has dimensions ('t',)": lambda dataset: dataset.assign_coords(status=("t", ["finished"] * 2)),
    "risk is not finite": lambda dataset: dataset.assign(risk=(("run", "t"), [["a", "b"]])),
    "M has dimensions": lambda dataset: dataset.assign(M=("student", [0.0, 0.0])),
}


@pytest.mark.parametrize("reason", BAD)
def test_check_names_what_is_wrong(reason, dataset):
    assert sl.check(dataset) is dataset
    with pytest.raises(sl.BadInput) as caught:
        sl.check(BAD[reason](dataset))
    assert reason in str(caught.value)
