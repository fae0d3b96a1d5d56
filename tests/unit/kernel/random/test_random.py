"""The generator: known answers, laws of the numbers, independence of the batch."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from sgdlimits.kernel.random import Purpose, Stream
from sgdlimits.kernel.random.philox import philox
from sgdlimits.kernel.random.transform import marsaglia_tsang, normal_pair

chi_square = eqx.filter_jit(lambda stream, dof: stream.chi_square(Purpose.CHI, dof))
normal = eqx.filter_jit(lambda stream, count: stream.normal(Purpose.STEP, count))


def words(*values):
    return tuple(jnp.uint32(value) for value in values)


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_answers_its_authors_published(counter, key, answer):
    assert tuple(int(word) for word in philox(words(*counter), words(*key))) == answer


def test_normal_pair_is_box_and_muller_to_the_last_digits():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2**32, 10**5, dtype=np.uint32) for _ in range(2))
    b[:12] = (np.arange(4)[:, None] * 2**30 + [0, 1, -1]).ravel() % 2**32  # right angles, and beside them
    low = (b * np.uint32(0x9E3779B1)).astype(float)
    u, angle = (a + (low + 0.5) / 2**32) / 2**32, 2 * np.pi * b / 2**32
    x, y = normal_pair(jnp.asarray(a), jnp.asarray(b))
    np.testing.assert_allclose(x, np.sqrt(-2 * np.log(u)) * np.cos(angle), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(y, np.sqrt(-2 * np.log(u)) * np.sin(angle), rtol=1e-13, atol=1e-14)


def test_normal_pairs_in_single_precision_are_near_the_others():
    """By the error of the radius, which is of the order of 1/radius where that is small; on the host as in JAX."""
    a, b = np.random.default_rng(1).integers(0, 2**32, (2, 100_000), dtype=np.uint32)
    exact, host = np.array(normal_pair(a, b)), np.array(normal_pair(a, b, single=True))
    radius = np.hypot(*exact)
    assert (np.abs(host - exact) < 1e-7 * (1 / radius + 2 * radius)).all()
    np.testing.assert_allclose(normal_pair(jnp.asarray(a), jnp.asarray(b), single=True), host, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dof", [2, 3, 10, 1e3, 1e6])
def test_what_a_bound_accepts_is_accepted(dof):
    """And it leaves about one in 18 degrees of freedom open where these are many."""
    z = np.linspace(-9, 9, 100_001)
    _, sure, h = marsaglia_tsang(z, np.asarray(dof, float))
    assert (sure <= np.exp(h) + 1e-15 * dof).all()  # terms of the size of dof cancel in h
    if dof >= 1e3:
        assert 18 * dof * np.average(1 - sure, weights=np.exp(-(z**2) / 2)) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("single", [False, True])
def test_extreme_words_give_finite_normals(single):
    extreme = jnp.asarray([0, 1, 2**31, 2**32 - 1], jnp.uint32)
    for x in normal_pair(*(grid.ravel() for grid in jnp.meshgrid(extreme, extreme)), single=single):
        assert np.isfinite(x).all()


def test_normals_are_normal_and_independent():
    z = np.asarray(normal(Stream.from_seed(seed=7, runs=np.arange(500), steps=50), 8))
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-4
    flat = z.transpose(1, 0, 2).reshape(8, -1)
    n = flat.shape[1]
    assert np.abs(np.corrcoef(flat) - np.eye(8)).max() < 5 / np.sqrt(n)
    assert np.abs(np.corrcoef(flat**2) - np.eye(8)).max() < 5 / np.sqrt(n)
    for power, expected, spread in ((4, 3, 96), (6, 15, 10170)):
        assert abs((z**power).mean() - expected) < 5 * np.sqrt(spread / z.size)


@pytest.mark.parametrize("dof", [1, 2, 3, 5, 17, 100, 10**4, 10**9])
def test_chi_square_is_exact(dof):
    x = np.asarray(chi_square(Stream.from_seed(seed=dof, runs=np.arange(4000), steps=25), jnp.asarray([float(dof)])))
    assert stats.kstest(x.ravel(), stats.chi2(dof).cdf).pvalue > 1e-4
    assert abs(x.mean() - dof) < 5 * np.sqrt(2 * dof / x.size)
    assert abs(((x - dof) ** 2).mean() / (2 * dof) - 1) < 5 * np.sqrt((2 + 12 / dof) / x.size)


def test_no_degrees_of_freedom_give_zero():
    assert (chi_square(Stream.from_seed(0, np.arange(9)), jnp.zeros(3)) == 0).all()


def test_numbers_do_not_depend_on_the_runs_and_steps_beside_them():
    wide = Stream.from_seed(3, np.arange(100), first=10, steps=6)
    narrow = Stream.from_seed(3, [42], first=13, steps=1)
    dof = jnp.asarray([2.0, 3.0, 40.0])
    for draw in (
        lambda s: s.normal(Purpose.STEP, 5),
        lambda s: s.uniform(Purpose.CLASS, 3),
        lambda s: s.chi_square(Purpose.CHI, dof),
    ):
        compiled = eqx.filter_jit(draw)
        np.testing.assert_array_equal(compiled(wide)[3, :, 42], compiled(narrow)[0, :, 0])
    rows = eqx.filter_jit(lambda stream: stream.normal_rows(Purpose.STEP, 5))(wide)
    np.testing.assert_array_equal(np.swapaxes(rows, 1, 2), normal(wide, 5))


def test_steps_beyond_32_bits_and_large_seeds_have_their_own_numbers():
    draws = [
        np.asarray(normal(Stream.from_seed(seed, [0], first=first), 4)) for seed in (1, 1 + 2**40) for first in (5, 5 + 2**33)
    ]
    assert len({draw.tobytes() for draw in draws}) == 4
