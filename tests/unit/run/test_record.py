"""Files outlive the code that wrote them: public names, constructors, and one sentence where something is not known."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.run.record import find_named_object, from_json, record_name, to_json

OLD = sorted((Path(__file__).parent / "written_by_0.1").glob("*.nc"))


@pytest.mark.filterwarnings("ignore:the small overlaps of this problem")  # 64 Sobol points, as asked for
@pytest.mark.parametrize("path", OLD, ids=lambda path: path.stem)
def test_a_file_of_version_0_1_loads_and_runs_again(path):
    """To rounding: starts are drawn on the host now. Where the rule changed, to what it is worth; where the SDE makes its noise
    of other numbers, to the size of the noise.
    """
    data = sl.load(path)
    again = sl.rerun(data, progress=False)
    loose = {"rule-ode": 0.05, "tanh-ode": 1e-6, "until-sde": 0.1}.get(path.stem, 1e-9)
    for name in data.data_vars:
        np.testing.assert_allclose(again[name], data[name], rtol=loose, atol=loose)
    assert json.loads(again.attrs["level_parameters"])["class"].isidentifier()


def test_a_file_holds_public_names_and_what_was_asked_for():
    problem = sl.presets.committee(2, 1, "tanh")
    text = to_json(problem)
    assert "sgdlimits" not in text
    assert json.loads(text)["fields"]["rule"] is None
    again = from_json(text)
    stats = sl.FixedInit(0.3).one(problem)
    np.testing.assert_array_equal(again.drift(stats).M, problem.drift(stats).M)
    assert from_json(to_json(problem.with_expectation(sl.Sobol(6)))).asked.rule == sl.Sobol(6)


def test_a_newer_version_and_a_class_that_is_gone_are_one_sentence(tmp_path):
    data = sl.simulate(sl.presets.phase_retrieval(), sl.ODE(), sl.FixedInit(0.3), t_max=1, save=2)
    newer = data.assign_attrs(version="99.1.0")
    with pytest.warns(UserWarning, match=r"made by sgdlimits 99\.1\.0, newer than the installed version"):
        loaded = sl.load(sl.save(newer, tmp_path / "new.nc"))
    with pytest.raises(sl.BadInput, match=r"cannot be simulated again: it was made by sgdlimits 99\.1\.0"):
        sl.rerun(loaded)
    gone = data.assign_attrs(level_parameters='{"class": "Chains", "fields": {"d": 3}}')
    with pytest.raises(sl.BadInput, match="refers to Chains, which is not known here"):
        sl.rerun(gone)
    other = data.assign_attrs(level_parameters='{"class": "Chain", "fields": {"size": 3}}')
    with pytest.raises(sl.BadInput, match="the file's Chain cannot be rebuilt"):
        sl.rerun(other)


def fading(power):
    def monomial(x):
        return x**power

    monomial.__qualname__ = f"monomial_{power}"  # as if it stood at the top of this module
    return monomial


def test_what_a_process_has_named_is_known_while_it_exists_and_what_it_registered_to_its_end():
    passed, registered = fading(2), sl.register(fading(3))
    names = [record_name(passed), record_name(registered)]
    assert [find_named_object(name) for name in names] == [passed, registered]
    del passed, registered
    gc.collect()
    with pytest.raises(sl.BadInput, match="monomial_2, which is not known here"):
        find_named_object(names[0])
    assert find_named_object(names[1])(2) == 8
