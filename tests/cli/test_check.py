"""`sgdlimits check`: the table, the file, and the exit code."""

from __future__ import annotations

import json

from sgdlimits.cli.check import PAPERS as CHOICES
from sgdlimits.papers.audit import find_claims
from sgdlimits.papers.claim import CLAIMS, PAPERS, Claim, compare


def test_a_claim_is_shown_and_saved(command, tmp_path):
    result = command("check --only (55) --quiet --out x.json")
    assert result.exit_code == 0, result.output
    assert "misprint" in result.output
    assert json.loads((tmp_path / "x.json").read_text())["claims"][0]["verdict"] == "misprint"
    again = command("check --only (55) --quiet --out x.json")
    assert again.exit_code == 2
    assert "exists already" in again.stderr


def test_a_verdict_that_is_not_on_record_is_exit_code_1(command, monkeypatch):
    find_claims()
    wrong = Claim("slides.wrong", "slides", "nowhere", "wrong", "", lambda effort: compare(1.0, 2.0))
    monkeypatch.setitem(CLAIMS, "slides.wrong", wrong)
    result = command("check --only slides.wrong --quiet")
    assert result.exit_code == 1
    assert "recorded as holds; found disagreement" in result.output


def test_papers_are_those_with_claims():
    assert tuple(PAPERS) == CHOICES
