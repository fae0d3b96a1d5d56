"""The audit: verdicts of comparisons, computation of every claim, and the generated pages."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.papers.audit import AuditInterrupted, audit as package_audit, find_claims, format_cells
from sgdlimits.papers.claim import CLAIMS, MAX_STANDARD_ERRORS, PAPER_BY_MODULE, PAPERS, Claim, Effort, compare
from sgdlimits.papers.errata import rewrite_pages

ROOT = Path(__file__).parents[3]
EXACT = "mediocrity.covariance_55"


# --- verdicts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "right", "printed", "more", "kind", "verdict"),
    [
        (1.0, 1.0, None, {}, "holds", "holds"),
        (1.1, 1.0, None, {}, "holds", "disagreement"),
        (2.0, 2.0, 1.0, {}, "misprint", "misprint"),
        (2.0, 2.0, 1.0, {}, "disagreement", "disagreement"),
        (2.0, 2.0, 1.0, {}, "remark", "remark"),
        (1.0, 2.0, 1.0, {}, "misprint", "holds"),  # the paper was right
        (3.0, 2.0, 1.0, {}, "misprint", "open"),  # neither explains it
        (1.5, 2.0, 1.0, {"sigma": 1.0}, "misprint", "open"),  # the error is too large to tell
        (1.0, None, None, {}, "open", "open"),
        ([1.0, 5.0], [1.0, 5.1], None, {"sigma": [0.0, 0.1]}, "holds", "holds"),
        ([1.0, 5.0], [1.1, 5.0], None, {"sigma": [0.0, 0.1]}, "holds", "disagreement"),
        (-1.0, -0.5, None, {"relation": "<", "rtol": 0.0}, "holds", "holds"),
        (-0.4, -0.5, None, {"relation": "<", "rtol": 0.0}, "holds", "disagreement"),
        (2.0, 3.0, 1.0, {"relation": "<"}, "misprint", "misprint"),
        (np.nan, 1.0, None, {"sigma": 1.0}, "holds", "disagreement"),
    ],
)
def test_a_verdict_follows_from_number_and_formulas(number, right, printed, more, kind, verdict):
    assert compare(number, right, printed, **more).verdict(kind) == verdict


def test_the_entry_that_is_farthest_off_is_shown():
    found = compare([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, 7.0, 3.0], sigma=0.1)
    assert found.worst == pytest.approx(
        {"number": 2, "right": 2, "printed": 7, "sigma": 0.1, "tolerance": MAX_STANDARD_ERRORS * 0.1 + 3e-9}
    )
    assert Effort("quick").runs(1000) == 250
    assert Effort("full").runs(1000) == 16_000
    assert Effort("quick").runs(100, least=64) == 64


# --- the claims --------------------------------------------------------------------------------------------------------------


def test_what_is_shown_is_what_is_judged():
    """The printed interval is the tolerance of the verdict, and NaN is not printed as zero."""
    limit = compare(1.03, 0.95, atol=0.1, sigma=0.01)
    shown = dict(limit.worst, relation="=", error="")
    assert limit.verdict("holds") == "holds"
    assert format_cells(shown) == ("1.03", "0.885 to 1.175", "0.95", "")
    assert format_cells(dict(shown, number=float("nan")))[0] == "nan"


def test_claims_are_whole():
    folder = ROOT / "src/sgdlimits/papers"
    there = {".".join(path.relative_to(folder).with_suffix("").parts) for path in folder.glob("*/claims/[!_]*.py")}
    assert set(PAPER_BY_MODULE) == there
    every = find_claims()
    assert {each.paper for each in every} == set(PAPERS)
    for each in every:
        assert each.kind in ("holds", "misprint", "remark", "disagreement", "open"), each.name
        assert bool(each.right) == (each.kind in ("misprint", "remark", "disagreement")), each.name
        assert bool(each.proof) == (each.paper == "new_results"), each.name
        assert each.proof == "measured" or not each.proof or re.fullmatch(r"\[[\w ]+\]\(\w+\.md(#[\w-]+)?\)", each.proof), (
            each.name
        )
        assert len(each.title) <= 52, each.name


def slug(heading: str) -> str:
    """Return the anchor that the generator of the pages gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).strip().replace(" ", "-")


def test_proofs_are_where_links_lead():
    for each in find_claims("new_results"):
        if found := re.fullmatch(r"\[.*\]\((\w+\.md)#?(.*)\)", each.proof):
            headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / found[1]).read_text(encoding="utf-8"), re.MULTILINE)
            assert not found[2] or found[2] in map(slug, headings), each.name


CHEAP = [
    "mediocrity.sign_of_increments", "mediocrity.explicit_expectations", "mediocrity.ode_26", EXACT, "mediocrity.largest_lr",
    "mediocrity.mean_hessian",
    "mediocrity.largest_excess_risk", "mediocrity.linear_sde_time", "effective.spiked_ode", "effective.small_step_fixed_point",
    "quadratic.student_overlap_ode",
    "quadratic.critical_families", "quadratic.terminal_decay", "slides.projected_gram_matrix", "slides.erf_product_mean",
    "new_results.plateau_correction",
    "new_results.second_layer_only_risk", "new_results.critical_points", "new_results.classifier_ridge",
    "mediocrity.statistics_rank",
    "mediocrity.random_overlap", "quadratic.null_directions", "new_results.ring_angle",
]  # fmt: skip


@pytest.mark.parametrize("name", CHEAP)
def test_cheap_claims_have_the_verdict_on_record(name):
    found = sl.audit("quick", name.split(".")[0], only=name, progress=False)
    mine = next(each for each in found.judged if each.claim.name == name)
    assert mine.has_recorded_verdict, (mine.verdict, mine.as_dict())


@pytest.mark.full
def test_every_claim_has_the_verdict_on_record_at_quick_effort():
    """All at 4.5 standard errors with fixed seeds: some hundred statistical numbers, together off by chance with 1e-3."""
    found = sl.audit("quick", progress=False)
    assert found.complete
    assert not found.unexpected, found.summary()


# --- what users meet ---------------------------------------------------------------------------------------------------------


def test_an_audit_prints_itself_and_becomes_files(tmp_path):
    found = sl.audit(only="(55)", progress=False)
    text = repr(found)
    assert "misprint" in text
    assert "293.6" in text
    assert "1 claim at default effort" in text
    stored = json.loads(found.save(tmp_path / "x.json").read_text())
    assert stored["claims"][0]["name"] == EXACT
    rows = list(csv.reader(found.save(tmp_path / "x.csv").read_text().splitlines()))
    assert (rows[0][0], rows[1][0], rows[1][-1]) == ("paper", "mediocrity", "misprint")
    assert found.save(tmp_path / "x.md").read_text().startswith("| paper | where |")
    for bad, words in (("x.txt", "out must end in"), ("x", "out must end in")):
        with pytest.raises(sl.BadInput, match=words):
            found.save(tmp_path / bad)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"effort": "some"}, "effort must be one of quick, default, full"),
        ({"paper": "mine"}, "paper must be one of mediocrity"),
        ({"only": "no such claim"}, "only must be part of a claim's name"),
        ({"only": ""}, "only must be a word"),
        ({"progress": 1}, "progress must be True or False"),
    ],
)
def test_wrong_questions_get_a_sentence(more, words):
    with pytest.raises(sl.BadInput, match=words):
        sl.audit(**more)


@pytest.fixture
def one_more(monkeypatch):
    """Return a function that adds a claim for the duration of a test."""
    find_claims()

    def add(name, compute, kind="holds"):
        monkeypatch.setitem(CLAIMS, name, Claim(name, "slides", "nowhere", name, "", compute, kind))

    return add


def test_a_claim_that_fails_is_open_with_its_reason_and_not_as_recorded(one_more):
    def fail(effort):
        raise RuntimeError("3 runs did not exit")

    one_more("slides.fails", fail)
    found = sl.audit(only="slides.fails", progress=False)
    assert [each.verdict for each in found.unexpected] == ["open"]
    assert "slides.fails is recorded as holds; found open. RuntimeError: 3 runs did not exit" in found.summary()


def test_an_interruption_keeps_what_was_found(one_more):
    def first(effort):
        return compare(1.0, 1.0)

    def second(effort):
        raise KeyboardInterrupt

    one_more("slides.zzz_first", first)
    one_more("slides.zzz_second", second)
    with pytest.raises(AuditInterrupted) as stopped:
        sl.audit(only="zzz", progress=False)
    found = stopped.value.found
    assert [each.claim.name for each in found.judged] == ["slides.zzz_first"]
    assert not found.complete
    assert "1 more were not computed" in found.summary()


# --- the pages ---------------------------------------------------------------------------------------------------------------


def test_pages_are_those_that_the_audit_writes():
    """`python benchmarks/audit.py --pages` makes them so."""
    for path, text in rewrite_pages(ROOT / "docs").items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date: run python benchmarks/audit.py --pages"


def test_the_stored_audit_has_every_claim_with_the_verdict_on_record():
    stored = json.loads((ROOT / "docs/audit.json").read_text(encoding="utf-8"))
    assert {each["name"]: each["verdict"] for each in stored["claims"]} == {each.name: each.kind for each in find_claims()}
    assert stored["effort"] == "default"


def test_judged_claims_are_values():
    found = package_audit(only="(55)", progress=False)
    assert dataclasses.replace(found, chosen=2).complete is False
