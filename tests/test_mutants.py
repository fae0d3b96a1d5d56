"""The table of faults fits the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import MUTANTS, ROOT

SOURCE = ROOT / "src" / "sgdlimits"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: f"{one.file}: {one.old}")
def test_the_text_of_a_fault_occurs_once(mutant):
    assert (SOURCE / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new


def test_the_tests_of_faults_exist_and_the_faults_are_enough():
    assert len(MUTANTS) >= 40
    for mutant in MUTANTS:
        for word in mutant.tests.partition(" -k ")[0].split():
            assert Path(ROOT / word).exists()
