"""Every rule for expectations that suits a problem gives the same drift, risk and covariance, within its own error estimate."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest
from contracts.matrix import FRESH, PROBLEMS, some

import sgdlimits as sl
from sgdlimits.expectation import AtMeans, ClassIntegrals, FieldIntegrals, NodeSums, Squares, choose_expectation


def grid(problem):
    """As many nodes a direction as memory allows; at least seven, which are exact for squares."""
    return sl.GaussHermite(max(7, int(2 ** (17 / (problem.network.width + problem.target.teachers + 1)))))


RULES = {
    "asked": lambda problem: problem.expectation,
    "squares": lambda problem: Squares(),
    "fields": lambda problem: FieldIntegrals(),
    "at means": lambda problem: AtMeans(),
    "classes": lambda problem: ClassIntegrals(),
    "grid": lambda problem: NodeSums(grid(problem)),
    # With the default 8 scrambles an error estimate has seven degrees of freedom, and the worst of some 30 moments is more than
    # six errors away for 2 seeds in 40.
    "sobol": lambda problem: NodeSums(sl.Sobol(10, 32, seed=1)),
}


def suits(rule, problem):
    """Whether a rule is for a problem: a grid is for smooth functions, whose errors it can estimate."""
    if isinstance(rule, NodeSums) and isinstance(rule.rule, sl.GaussHermite):
        return problem.network.activation.smooth and problem.target.readout.smooth
    return rule.supports(problem.model)


CASES = [
    (name, rule)
    for name, make in ((name, PROBLEMS[name]) for name in FRESH)
    if isinstance(problem := make(), sl.ProjectionProblem)
    for rule, of in RULES.items()
    if suits(of(problem), problem)
]
FEW = [("unequal_teachers", "squares"), ("committee", "fields"), ("on_means", "at means"), ("committee", "grid"),
       ("own_mixture", "classes"), ("absolute_huber_product", "sobol")]  # fmt: skip


def plain(problem):
    """The problem at the start, with plain SGD: rules are about one sample, and know of no time and no algorithm."""
    problem = problem.at(0.0)
    second = 0.5 if problem.trains_second else None
    return problem.with_algorithm(sl.OnePassSGD(1.0, lr_second=second, ridge=0.1, sphere=problem.sphere))


@eqx.filter_jit
def averages(problem, stats):
    """(moments, covariance) and the error estimates of the moments."""
    value, error = problem.expectation.estimate(problem.model, stats.a, problem.model.law(stats))
    return (value, problem.covariance(stats)), error


@pytest.fixture(scope="module")
def chosen():
    """A function for the averages of a problem by the rule that is chosen for it, computed once."""
    known = {}

    def look_up(name, stats):
        if name not in known:
            problem = plain(PROBLEMS[name]())
            known[name] = averages(problem.with_expectation(choose_expectation(problem.model)), stats)
        return known[name]

    return look_up


def largest(tree):
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("name", "rule"), some(CASES, FEW))
def test_rules_agree_within_their_error_estimates(name, rule, chosen, random_overlaps):
    """The moments, of which drift and risk are made, within six errors. The covariance, of products of their integrands, within
    100 times the relative error of the moments: it is made of products of twice the order.
    """
    problem = plain(PROBLEMS[name]())
    stats = random_overlaps(problem, seed=1)
    (moments, covariance), error = averages(problem.with_expectation(RULES[rule](problem)), stats)
    (best, best_covariance), best_error = chosen(name, stats)
    relative = (largest(error) + largest(best_error)) / largest(best) + 1e-6
    for value, exact, left, right in zip(*map(jax.tree.leaves, (moments, best, error, best_error)), strict=True):
        assert (np.abs(value - exact) <= 6 * (left + right) + 1e-6 * largest(best)).all()
    assert np.abs(covariance - best_covariance).max() <= 100 * relative * np.abs(best_covariance).max()
