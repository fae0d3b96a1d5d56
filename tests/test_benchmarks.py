"""The scripts behind the figures run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import sgdlimits as sl

RUN = Path(__file__).parents[1] / "benchmarks" / "run.py"


def test_help_of_the_audit_computes_and_writes_nothing(monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("audit_script", RUN.with_name("audit.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr("sys.argv", ["audit.py", "--help"])
    monkeypatch.setattr(module, "audit", lambda: pytest.fail("--help runs the audit"))
    with pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == 0
    assert "--pages" in capsys.readouterr().out


@pytest.mark.parametrize("level", [sl.SGD(300), sl.Chain(300), sl.SDE(300)], ids=lambda level: level.name)
def test_the_steps_that_are_timed_are_made(level):
    spec = importlib.util.spec_from_file_location("benchmark", RUN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    call, steps, samples = module.stepper(level, 1, 10)
    there = call(2)
    assert steps >= 10
    assert samples >= 1
    assert bool(there.moving.all())
