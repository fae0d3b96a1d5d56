"""Hermite tensors and leaps: against moments by hand, and whatever the axes are."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import sgdlimits as sl


def test_hermite_tensor_is_the_mean_of_derivatives():
    """By integration by parts E[g H_n] = E[D^n g]: for a cubic form its derivatives, by hand."""
    target = sl.Target(lambda x: x[0] ** 2 * x[1] + 3 * x[1], teachers=2)
    assert np.allclose(sl.hermite_tensor(target, 1), [0.0, 4.0])  # E[2 x0 x1], E[x0^2 + 3]
    third = np.zeros((2, 2, 2))
    third[0, 0, 1] = third[0, 1, 0] = third[1, 0, 0] = 2
    assert np.allclose(sl.hermite_tensor(target, 2), 0, atol=1e-10)
    assert np.allclose(sl.hermite_tensor(target, 3), third, atol=1e-9)


def test_tensor_of_one_direction_is_its_hermite_coefficient():
    target = sl.Target(lambda x: jnp.tanh(x[0]), teachers=1)
    for n in (1, 2, 3):
        assert np.allclose(sl.hermite_tensor(target, n).ravel()[0], sl.hermite_coefficients("tanh", n)[n], atol=1e-6)


@pytest.mark.parametrize(
    ("fn", "k", "orders"),
    [
        (lambda x: x[0] + x[0] * x[1], 2, [(1, 1), (1, 1)]),
        (lambda x: x[0] * x[1] * x[2], 3, [(3, 3)]),
        (lambda x: x[0] + x[0] * x[1] * x[2], 3, [(1, 1), (2, 2)]),
        (lambda x: x[0] ** 2 - x[1] ** 2 + x[0] * x[1] * x[2], 3, [(2, 2), (1, 1)]),
        (lambda x: jnp.sign(x[0]) + 0.3 * x[1] * x[2], 3, [(1, 1), (2, 2)]),
    ],
)
def test_leaps_do_not_depend_on_the_axes(fn, k, orders):
    """The same target in other coordinates: leaps stay, and their directions turn with it."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(k, k)))[0]
    plain, turned = sl.leaps(sl.Target(fn, k)), sl.leaps(sl.Target(lambda x: fn(turn @ x), k), 1e-2 if k == 3 else 1e-8)
    for found in (plain, turned):
        assert [(leap.order, len(leap.directions)) for leap in found] == orders
    for one, other in zip(plain, turned, strict=True):
        span = lambda rows: rows.T @ rows
        assert np.allclose(span(one.directions @ turn), span(other.directions), atol=0.02)


def test_directions_are_combinations_of_correlated_teachers():
    """By integration by parts E[grad g] is x1 for x1 + x1 x2, and the rest of x2 is x2 - x1/2; for x1 x2 x3 it is the sum."""
    gram = np.array([[1.0, 0.5], [0.5, 1.0]])
    one, two = sl.leaps(sl.Target(lambda x: x[0] + x[0] * x[1], gram=gram))
    assert (one.order, one.sums, two.order, two.sums) == (1, ["e1"], 1, ["e1 - 2 e2"])
    gram = 0.7 * np.eye(3) + 0.3
    for leap in sl.leaps(sl.Target(lambda x: x[0] * x[1] * x[2], gram=gram)):
        rows = leap.combinations @ np.linalg.cholesky(gram)
        span = lambda rows: rows.T @ np.linalg.solve(rows @ rows.T, rows)
        assert np.allclose(span(rows), span(leap.directions), atol=1e-6)
    assert [leap.sums for leap in sl.leaps(sl.Target(lambda x: x[0] * x[1] * x[2], 3))] == [["e1", "e2", "e3"]]


def test_information_exponent_of_several_teachers_is_the_first_leap():
    assert sl.information_exponent(sl.Target(lambda x: x[0] * x[1] * x[2], 3)) == 3
    assert sl.information_exponent(sl.presets.quadratic_network(2, 2)) == 2
    assert sl.information_exponent(sl.presets.committee(2, 3)) == 1
    with pytest.raises(sl.BadInput, match="the Hermite tensors of the target"):
        sl.leaps(sl.Target(lambda x: 0 * x[0] + 1.0, 2))
