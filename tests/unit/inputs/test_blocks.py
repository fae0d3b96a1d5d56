"""Spectra and blocks of variances: what is accepted, what is refused and in which words, and shapes."""

from __future__ import annotations

import numpy as np
import pytest

import sgdlimits as sl
from sgdlimits.inputs import Blocks, Mixture

MEANS = np.zeros((2, 1))
EASY = sl.presets.easy_and_hard
ONE_UNIT = sl.Overlaps([1.0], [[[0.1]], [[0.0]]], [[[0.5]], [[0.5]]])


def two_blocks(**target):
    return sl.ProjectionProblem(
        target=sl.Target(sl.CommitteeReadout("erf"), **target),
        network=sl.TwoLayer(1, "erf"),
        loss=sl.SquaredLoss(),
        algorithm=sl.OnePassSGD(0.5),
        data=sl.inputs.gaussian(sl.Spectrum([2.0, 0.5], [0.4, 0.6])),
    )


def on_sphere():
    return two_blocks().with_algorithm(sl.OnePassSGD(0.5, sphere=True))


def with_means():
    return sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout("erf")), sl.TwoLayer(1, "erf"), sl.SquaredLoss(), sl.OnePassSGD(0.5),
        data=sl.mixture([[1.0], [-1.0]], variance=[1.0, 2.0]),
    )  # fmt: skip


ONE_CLASS_UNIT = sl.Overlaps([1.0], [[0.1]], [[1.0]])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sl.Spectrum([1.0, -1.0], [0.5, 0.5]), "0 or larger"),
        (lambda: sl.Spectrum([], []), "eigenvalues is empty"),
        (lambda: sl.Spectrum([0.0, 0.0], [0.5, 0.5]), "not 0 in all blocks"),
        (lambda: sl.Spectrum([1.0, np.nan], [0.5, 0.5]), "eigenvalues"),
        (lambda: sl.Spectrum([1.0, 2.0], [0.5, 0.6]), "sum to 1"),
        (lambda: sl.Spectrum([1.0, 2.0], [1.0, 0.0]), "must be positive"),
        (lambda: sl.Spectrum([1.0, 2.0], [1.0]), "shares must be 2"),
        (lambda: sl.mixture(MEANS, variance=[1.0, 2.0, 3.0]), "variance must be one number or have shape"),
        (lambda: sl.mixture(MEANS, variance=[[1.0, 2.0], [1.0, 1.0]]), "but shares is missing"),
        (lambda: sl.mixture(MEANS, variance=1.0, shares=[0.5, 0.5]), "shares= are the sizes of blocks"),
        (lambda: sl.mixture(MEANS, variance=[[1.0, -2.0], [1.0, 1.0]], shares=[0.5, 0.5]), "0 or larger"),
        (lambda: EASY(relevant=1.0), "relevant"),
        (lambda: EASY(label="tanh"), "label must be sign or erf"),
        (lambda: two_blocks(gram=np.ones((3, 1, 1))), "gram has 3 blocks"),
        (lambda: two_blocks(gram=np.array([[[1.0]], [[-1.0]]])), "gram"),
        (lambda: sl.simulate(EASY(), sl.Chain(1), ONE_UNIT, t_max=1.0), "dimensions for a block"),
        (
            lambda: sl.simulate(EASY(), sl.MeanField(), ONE_UNIT, t_max=1.0),
            "MeanField does not support variances by block or class",
        ),
        (lambda: sl.simulate(EASY(), sl.ODE(), sl.FixedInit(0.5), t_max=1.0), "FixedInit does not support inputs with blocks"),
        (lambda: sl.simulate(EASY(algorithm=sl.Adam(0.1)), sl.SGD(20), ONE_UNIT, t_max=1.0), "coordinates separately"),
        (lambda: sl.simulate(EASY(algorithm=sl.Muon(0.1)), sl.ODE(), ONE_UNIT, t_max=1.0), "limit of Muon is not available"),
        (lambda: sl.simulate(EASY(), sl.ODE(), sl.Overlaps([1.0], [[0.1]], [[1.0]]), t_max=1.0), "shape"),
        (
            lambda: sl.simulate(EASY(), sl.ODE(), sl.Overlaps([1.0], [[[0.1]], [[0.3]]], [[[0.5]], [[0.5]]]), t_max=1.0),
            "in which the fixed directions are zero",
        ),
        (lambda: sl.fixed_points(on_sphere()), "weights on the sphere"),
        (lambda: sl.expansion(on_sphere(), ONE_UNIT, 1.0), "weights on the sphere"),
        (lambda: sl.hessian_spectrum(with_means(), ONE_CLASS_UNIT, 100), "needs mean zero"),
        (lambda: sl.landscape.hessian(two_blocks(), np.ones((1, 10))), "needs statistics, not weights"),
        (lambda: sl.landscape.risk(two_blocks(), ONE_UNIT), "do not support variances by block"),
        (lambda: sl.hessian_spectrum(two_blocks(), ONE_UNIT, 3), "fewer dimensions than its directions span"),
        (lambda: sl.expansion(with_means(), ONE_CLASS_UNIT, 1.0), "needs mean zero"),
        (lambda: sl.latex(EASY()), "single variance|blocks of variances"),
        (lambda: sl.information_exponent(EASY()), "single variance|blocks of variances"),
        (lambda: sl.recommended_lr(EASY(), 100), "is not available for inputs with variances"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(make, words):
    with pytest.raises(sl.BadInput, match=words):
        make()


def test_inputs_are_the_simplest_that_describe_them():
    assert isinstance(sl.mixture(MEANS, variance=0.5), Mixture)
    assert isinstance(sl.inputs.gaussian(sl.Spectrum([4.0], [1.0])), Mixture)
    assert sl.mixture(MEANS, variance=[0.5, 1.0]).blocks is None
    assert isinstance(sl.mixture(MEANS, variance=[[0.5], [1.0]]), Blocks)
    assert sl.mixture(MEANS, variance=np.ones((2, 3)), shares=[0.2, 0.3, 0.5]).blocks == 3


def test_sizes_sum_to_d_and_follow_the_shares():
    spectrum = sl.Spectrum([1.0, 2.0, 3.0], [1 / 3, 1 / 3, 1 / 3])
    for d in (3, 7, 100, 10**9):
        sizes = np.array(spectrum.sizes(d))
        assert sizes.sum() == d
        assert np.abs(sizes - d / 3).max() < 1


def test_problem_prints_and_compares_as_it_was_made():
    problem = EASY(relevant=0.3, hard=1.5, label="erf", lr=0.7)
    assert "hard=1.5" in repr(problem)
    assert "label=erf" in repr(problem).replace("'", "")
    assert problem == EASY(relevant=0.3, hard=1.5, label="erf", lr=0.7)


def test_gram_of_one_matrix_is_split_by_shares():
    problem = two_blocks()
    np.testing.assert_allclose(problem.model.gram.ravel(), [0.4, 0.6])


def test_start_has_the_law_of_random_weights():
    problem, d = two_blocks(), 50
    stats = sl.RandomInit(d).sample(problem, runs=4000)
    np.testing.assert_allclose(stats.Q[..., 0, 0].mean(0), [0.4, 0.6], rtol=0.02)
    np.testing.assert_allclose(stats.M[..., 0, 0].var(0), np.array([0.4, 0.6]) / d, rtol=0.1)
    unit = sl.RandomInit(d, unit=True).sample(problem, runs=10)
    np.testing.assert_allclose(unit.Q.sum(1)[:, 0, 0], 1.0, rtol=1e-12)


def test_vector_and_statistics_convert_into_each_other():
    problem = sl.ProjectionProblem(
        sl.Target(sl.CommitteeReadout("erf"), 2), sl.TwoLayer(3, "erf"), sl.SquaredLoss(), sl.OnePassSGD(0.5, lr_second=0.5),
        data=sl.inputs.gaussian(sl.Spectrum([2.0, 0.5], [0.4, 0.6])),
    )  # fmt: skip
    start = sl.RandomInit(30).one(problem)
    vector = problem.vector(start)
    names = problem.coordinates.names(start)
    assert len(names) == vector.size == 2 * (3 * 2 + 6) + 3
    assert names[:3] == ("M[0,0,0]", "M[0,0,1]", "M[0,1,0]")
    back = problem.from_vector(vector, start)
    for name in ("a", "M", "Q"):
        np.testing.assert_array_equal(getattr(back, name), getattr(start, name))
