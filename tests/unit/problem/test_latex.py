"""The LaTeX of a problem is its ODE: SymPy reads it, and its numbers are those of the drift."""

import itertools
import re
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import sympy
from sympy.parsing.latex import parse_latex

import sgdlimits as sl

INFINITE = float("inf")
KNOWN = {"asin": np.arcsin, "sqrt": np.sqrt, "exp": np.exp, "tanh": np.tanh}
STUDENTS, TEACHERS = "jl", "r"


@lru_cache(None)
def parsed(text):
    return parse_latex(text, backend="antlr")


class Reader:
    """The rows of a problem's LaTeX as functions of their indices, each parsed by SymPy and computed from the statistics.

    A letter with indices becomes one symbol for SymPy, and brackets behind a letter are a product. Sums and indices are put in
    here. What is no row is looked up in `given`, by letter, with the values of the indices from 1 on.
    """

    symbols: ClassVar[dict] = {}  # of all problems, whose rows are then the same text

    def __init__(self, problem, given):
        text = sl.latex(problem)
        self.rows, self.given, self.cache = {}, given, {}
        self.p, self.k = given["p"], given["k"]
        self.students_first = r"r = p + 1, \dots" in text
        for left, right in re.findall(r"^(.+?) &= (.+?)(?: \\\\)?$", text, re.MULTILINE):
            name, indices = self.split(left)
            if r"\mathbb" not in right:
                self.rows.setdefault(name, []).append((indices, right))

    @staticmethod
    def split(left):
        derivative = re.fullmatch(r"\\frac\{d(.+)\}\{dt\}", left)
        name, _, indices = (derivative[1] if derivative else left).partition("_")
        return ("d" if derivative else "") + name, re.sub("[{}]", "", indices)

    @lru_cache  # noqa: B019
    def parse(self, text):
        def symbol(found):
            return f"z_{{{self.symbols.setdefault((found[1], found[2]), len(self.symbols) + 1000)}}}"

        text = text.replace(r"\left", "").replace(r"\right", "")
        text = re.sub(r"(s'?)\((\\lambda)_\{(\w+)\}\)", r"\1_{\3}", text)  # a unit of a field
        text = re.sub(r"\\sum_\{(\w)=1\}", r"\\sum@{\1=1}", text)
        text = re.sub(r"(\\?[A-Za-z]+'?)_\{(\w+)\}", symbol, text).replace("@", "_")
        text = re.sub(r"(?<=[\w})])\s*(?=\()", r" \\cdot ", text).replace(r"\arcsin \cdot", r"\arcsin")
        return parsed(re.sub(r"\\sqrt \\cdot", r"\\sqrt", text))

    def __call__(self, name, *at):
        """A letter at values of its indices."""
        if (name, at) not in self.cache:
            self.cache[name, at] = self.row(name, at)
        return self.cache[name, at]

    def row(self, name, at):
        for indices, body in self.rows.get(name, ()):
            bound = dict(zip(indices, at, strict=False))
            exact = all(int(i) == value for i, value in bound.items() if i.isdigit())
            agree = tuple(bound[i] for i in indices) == at if len(indices) == len(at) else False
            if exact and agree and all(self.fits(i, value) for i, value in bound.items()):
                return self.value(self.parse(body), bound)
        value = self.given[name]
        return value(*at) if callable(value) else value[tuple(i - 1 for i in at)] if at else value

    def fits(self, letter, value):
        if letter in STUDENTS:
            return value <= self.p
        return value > self.p if letter in TEACHERS and self.students_first else True

    def value(self, expression, bound):
        if expression.is_Symbol:
            code = re.fullmatch(r"z_\{(\d+)\}", expression.name)
            if not code:
                return bound[expression.name] if expression.name in bound else self(self.spelt(expression.name))
            name, indices = next(key for key, number in self.symbols.items() if number == int(code[1]))
            if name in ("s", "s'"):
                return self.given[name](self(r"\lambda", *(self.index(i, bound) for i in indices)))
            return self(name, *(self.index(i, bound) for i in indices))
        if isinstance(expression, sympy.Sum):
            (index, first, last), *more = expression.limits[::-1]
            inner = sympy.Sum(expression.function, *more[::-1]) if more else expression.function
            values = range(int(first), int(self.value(last, bound)) + 1)
            return sum(self.value(inner, {**bound, index.name: v}) for v in values)
        if not expression.args:
            return float(expression)
        parts = [self.value(part, bound) for part in expression.args]
        if expression.func.__name__ in KNOWN:
            return KNOWN[expression.func.__name__](*parts)
        return {sympy.Add: np.sum, sympy.Mul: np.prod, sympy.Pow: lambda pair: pair[0] ** pair[1]}[expression.func](
            np.asarray(parts, float)
        )

    @staticmethod
    def spelt(name):
        return rf"\{name}" if len(name) > 1 else name

    @staticmethod
    def index(letter, bound):
        return int(letter) if letter.isdigit() else bound[letter]


def statistics(problem, seed=0):
    """Random statistics with the second layer that is printed, on the sphere where the problem is."""
    rng = np.random.default_rng(seed)
    p, k = problem.network.width, problem.target.teachers
    B = np.linalg.cholesky(np.asarray(problem.target.gram))
    U = rng.normal(size=(p, k + p)) / np.sqrt(p + k)
    U = U / np.linalg.norm(U, axis=1, keepdims=True) if problem.sphere else U
    held = not problem.trains_second and problem.initial.second_spread == 0
    a = np.full(p, problem.initial.second) if held else rng.normal(size=p)
    return sl.Overlaps(a, U[:, :k] @ B.T, U @ U.T)


def numbers(problem, stats):
    """The letters of a projection problem."""
    p, k = stats.M.shape
    sigma, algorithm = float(problem.data.sigma), problem.algorithm.limit
    Omega = np.block([[stats.Q, stats.M], [stats.M.T, problem.target.gram]])
    readout, data = problem.target.readout, problem.data
    first = r"r = p + 1, \dots" in sl.latex(problem)
    second = algorithm.lr_second
    found = {
        "p": p, "k": k, r"\pi": np.pi, "e": np.e, r"\gamma": float(algorithm.lr_sample), "a": np.asarray(stats.a),
        "Q": stats.Q, "M": (lambda j, r: stats.M[j - 1, r - 1 - p * first]), r"\Omega": Omega, "P": problem.target.gram,
        r"\Delta": float(problem.target.noise), r"\alpha": float(algorithm.ridge), r"\sigma": sigma, "m": stats.M[0, 0],
        "q": stats.Q[0, 0],
    }  # fmt: skip
    if isinstance(readout, sl.QuadraticReadout):
        found["R"] = np.asarray(readout.R)
    if data.means is not None:
        unit = problem.network.activation
        slope = lambda x: float(jnp.where(x > 0, unit.right, unit.left)) if hasattr(unit, "right") else 1 - np.tanh(x) ** 2
        weights = lambda *at: np.asarray(data.weights)[at[0] - 1] if at else np.pi
        found |= {"b": data.means, "y": readout.labels, r"\pi": weights, "s": lambda x: float(unit(x)), "s'": slope}
    if second is not None:
        found |= {r"\gamma": lambda *at: float((second if at else algorithm.lr) / algorithm.batch)}
    if not np.shape(stats.a)[0] > 1:
        found["a"] = lambda *at: float(stats.a[0])
    return found


def compare(problem, seed=0, given=None, tolerance=1e-6):
    stats = statistics(problem, seed)
    read, drift = Reader(problem, {**numbers(problem, stats), **(given or {})}), problem.drift(stats)
    p, k = stats.M.shape
    if "dm" in read.rows:
        found = {"M": [[read("dm")]], "Q": [[read("dq")]] if "dq" in read.rows else [[0.0]]}
        found["a"] = [read("da")] if "da" in read.rows else [0.0]
    else:
        rows = range(1, p + 1)
        found = {"M": [[read("dM", j, r + p * read.students_first) for r in range(1, k + 1)] for j in rows]}
        found["Q"] = [[read("dQ", j, l) for l in rows] for j in rows]
        found["a"] = [read("da", j) for j in rows] if "da" in read.rows else np.zeros(p)
    for name, values in found.items():
        np.testing.assert_allclose(values, getattr(drift, name), rtol=tolerance, atol=tolerance, err_msg=name)


P = sl.presets
CLOSED = {
    "phase retrieval": lambda: P.phase_retrieval(lr=0.1, noise=0.2),
    "a second layer": lambda: P.phase_retrieval(lr=0.1, noise=0.2, sphere=False, train_second=True, rho=2.0),
    "squares": lambda: P.phase_retrieval(width=3, lr=0.2, noise=0.3),
    "squares, both layers": lambda: P.phase_retrieval(width=2, lr=0.2, noise=0.3, sphere=False, train_second=True),
    "quadratic network": lambda: P.quadratic_network(3, 2, lr=0.1, noise=0.1),
    "quadratic form": lambda: sl.ProjectionProblem(
        sl.Target(sl.QuadraticReadout([[1.0, 0.2], [0.2, 3.0]]), gram=[[1.0, 0.1], [0.1, 2.0]], noise=0.1),
        sl.TwoLayer(2, "square", mean=False), sl.SquaredLoss(0.25), sl.OnePassSGD(0.1, lr_second=0.5, ridge=0.3, batch=2),
    ),
    "erf": lambda: P.committee(2, 2, "erf", lr=0.3, noise=0.1),
    "erf, both layers": lambda: P.committee(2, 1, "erf", lr=0.3, noise=0.1, train_second=0.5, sphere=True),
    "erf of two scales": lambda: P.committee(2, 1, "erf", teacher_activation="erf_plain", lr=0.3, noise=0.1),
    "relu": lambda: P.committee(1, 2, "relu", lr=0.3, noise=0.1, train_second=True),
    "absolute values": lambda: P.committee(1, 2, "abs", lr=0.3, noise=0.1),
    "relu and absolute values": lambda: P.committee(1, 2, "relu", teacher_activation="abs", lr=0.3, noise=0.1),
    "he2": lambda: P.single_index("he2", lr=0.02, noise=0.1),
    "he3": lambda: P.single_index("he3", lr=0.01, noise=0.1),
    "he1 and he3": lambda: P.single_index(sl.Polynomial([0.5, 1.0, 0.0, 0.3]), "he3", lr=0.01, noise=0.1, sphere=False),
    "classes": lambda: P.binary_mixture(snr=INFINITE, ridge=0.1),
    "four classes": lambda: P.xor_mixture(snr=INFINITE, ridge=0.2, lr=0.5),
    "momentum": lambda: P.quadratic_network(2, 1, algorithm=sl.HeavyBall(0.1, 0.5)),
}  # fmt: skip


QUICK = ("phase retrieval", "squares", "quadratic form", "erf", "relu", "he3", "classes")


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in CLOSED])
def test_closed_equations_are_the_drift(name):
    compare(CLOSED[name]())


def huber(prediction, label):
    error = jnp.abs(prediction - label)
    return jnp.where(error < 1, error**2 / 2, error - 0.5)


NAMED = {
    "tanh": lambda: P.committee(2, 1, "tanh", lr=0.3, noise=0.1, sphere=True),
    "noisy classes": lambda: P.binary_mixture(snr=20.0, ridge=0.1),
    "a loss and a readout": lambda: sl.ProjectionProblem(
        sl.Target(lambda fixed: fixed[0] * fixed[1], 2), sl.TwoLayer(2, jnp.abs), huber, sl.OnePassSGD(0.1, lr_second=0.5)
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", NAMED)
def test_equations_with_named_expectations_are_the_drift(name):
    problem = NAMED[name]()
    stats = statistics(problem)
    moments = problem.moments(stats).value
    named = {
        r"\Phi": np.asarray(moments.gradient_fixed), r"\Psi": np.asarray(moments.gradient_field),
        r"\Gamma": np.asarray(moments.gradient_gradient), "A": np.asarray(moments.gradient_second),
    }  # fmt: skip
    compare(problem, given=named)


def four_fields(problem, stats, nodes):
    """E[s'_j s'_l s_m s_n] on a Gauss-Hermite grid over all fields."""
    Omega = np.block([[stats.Q, stats.M], [stats.M.T, problem.target.gram]])
    z, weights = scipy.special.roots_hermitenorm(nodes)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[z] * len(Omega), indexing="ij")])
    mass = np.prod(np.meshgrid(*[weights / weights.sum()] * len(Omega), indexing="ij"), axis=0).ravel()
    fields, unit = np.linalg.cholesky(Omega) @ grid, problem.network.activation
    value = np.asarray(unit(fields))
    slope = np.asarray(jax.vmap(jax.vmap(jax.grad(unit)))(jnp.asarray(fields)))
    return np.einsum("jx,lx,mx,nx,x->jlmn", slope, slope, value, value, mass)


@pytest.mark.parametrize(
    ("activation", "nodes", "most"), [("he3", 8, 1e-9), pytest.param("relu", 60, 5e-3, marks=pytest.mark.full)]
)
def test_integral_over_four_fields_that_keeps_its_name_is_that_of_its_row(activation, nodes, most):
    problem = P.committee(2, 1, activation, lr=0.3, noise=0.1, train_second=True)
    compare(problem, given={"J": four_fields(problem, statistics(problem), nodes)}, tolerance=most)


def test_spiked_tensor_is_equation_3_1():
    problem = P.spiked_tensor(order=3, snr=4.0, lr=0.5, ridge=0.1)
    letters = {"p": 1, "k": 3, r"\lambda": 4.0, r"\gamma": 0.5, r"\alpha": 0.1, "m": 0.4, "r": lambda two: 0.7}
    read, drift = Reader(problem, letters), problem.drift(sl.Spike(0.4, 0.7))
    np.testing.assert_allclose([read("dm"), read("dr", 2)], [drift.m, drift.r2], rtol=1e-12)


def test_phase_retrieval_is_equation_7_of_escaping_mediocrity():
    read = Reader(P.phase_retrieval(lr=0.1, noise=0.2), {"p": 1, "k": 1, "m": 0.3, r"\gamma": 0.1, r"\Delta": 0.2})
    m, gamma, Delta = 0.3, 0.1, 0.2
    assert read("dm") == pytest.approx(gamma * m * (4 * (1 - 6 * gamma) * (1 - m**2) - 2 * gamma * Delta), rel=1e-14)


def test_algorithms_of_another_form_have_the_form_that_all_share():
    for algorithm in (sl.Clipped(sl.OnePassSGD(0.1), 1.0), sl.Averaged(sl.OnePassSGD(0.1)), sl.HeavyBall(0.1, friction=2.0)):
        text = sl.latex(P.committee(algorithm=algorithm))
        assert type(algorithm).__name__ in text
        assert r"\hat{C} K \hat{C}^{\top}" in text


def test_scalars_of_a_network_have_an_equation_each_with_its_own_rate():
    network = sl.Network(lambda fields, scalars: scalars["scale"] * fields.sum(), 2, {"scale": 1.0, "shift": 0.0})
    algorithm = sl.OnePassSGD(0.1, lr_second={"scale": 0.2}, ridge=0.3)
    text = sl.latex(sl.ProjectionProblem(sl.Target(sl.CommitteeReadout("tanh")), network, sl.SquaredLoss(), algorithm))
    assert r"\frac{d\text{scale}}{dt} &= -\gamma_{\text{scale}}" in text
    assert r"\gamma_{\text{scale}} = 0.2" in text
    assert "shift" not in text


def test_problems_show_their_equations_in_notebooks():
    problem = P.phase_retrieval()
    assert problem._repr_latex_() == f"$$\n{sl.latex(problem)}\n$$"
    assert (
        sl.ProjectionProblem(
            sl.Target(sl.CommitteeReadout("square")), sl.TwoLayer(1), sl.SquaredLoss(), sl.Muon(0.1, beta=0.5)
        )._repr_latex_()
        is None
    )


def test_page_has_what_its_code_prints(capsys):
    page = (Path(__file__).parents[3] / "docs/latex.md").read_text(encoding="utf-8")
    pairs = re.findall(r"```python\n([^`]+)```\n\n```\{math\}\n([^`]+)```", page)
    for code, block in pairs:
        exec(code, {})
        assert capsys.readouterr().out == block
    assert len(pairs) == 10


# --- noise -------------------------------------------------------------------------------------------------------------------


class NoiseReader(Reader):
    """The rows of the noise too; r and s are numbers of fixed directions behind those of the students."""

    def __init__(self, problem, given, monkeypatch):
        monkeypatch.setattr(sl, "latex", lambda one, plain=sl.latex: plain(one, noise=True))
        super().__init__(problem, given)
        self.students_first = True
        monkeypatch.undo()


def increments(problem, stats):
    """Increments of M, Q and a of one sample, times d as it grows, and weights, on a grid in plain NumPy that is exact."""
    p, k = stats.M.shape
    Omega = np.block([[stats.Q, stats.M], [stats.M.T, problem.target.gram]])
    z, w = np.polynomial.hermite_e.hermegauss(7)
    axes = np.meshgrid(*[z] * (p + k), [-(3**0.5), 0.0, 3**0.5], indexing="ij")  # label noise: exact up to its fifth moment
    mass = np.prod(np.meshgrid(*[w / w.sum()] * (p + k), [1 / 6, 2 / 3, 1 / 6], indexing="ij"), axis=0).ravel()
    points = np.stack([axis.ravel() for axis in axes])
    sigma2 = float(problem.data.squared_length)
    v = np.sqrt(sigma2) * np.linalg.cholesky(Omega) @ points[:-1]
    R, algorithm, loss = np.asarray(problem.target.readout.quadratic(k)), problem.algorithm, float(problem.loss.weight)
    share = 1 / p if problem.network.mean else 1.0
    D = share * np.asarray(stats.a) @ v[:p] ** 2 - np.einsum("rx,rs,sx->x", v[p:], R, v[p:])
    D = D - np.sqrt(float(problem.target.noise)) * points[-1]
    lr = float(algorithm.lr_sample)
    G = 4 * loss * share * np.asarray(stats.a)[:, None] * D * v[:p]
    M = -lr * G[:, None] * v[None, p:]
    Q = -lr * (G[:, None] * v[None, :p] + v[:p, None] * G[None]) + lr**2 * sigma2 * G[:, None] * G[None]
    norms = np.einsum("jjx->jx", Q)
    if problem.sphere:
        M = M - np.asarray(stats.M)[:, :, None] * norms[:, None] / 2
        Q = Q - np.asarray(stats.Q)[:, :, None] * (norms[:, None] + norms[None]) / 2
    a = -float(algorithm.lr_second or 0) / algorithm.batch * 2 * loss * share * D * v[:p] ** 2
    return M, Q, a, mass


NOISY = {
    "two units": lambda: P.phase_retrieval(width=2, lr=0.2, noise=0.3, sphere=False),
    "two units on the sphere": lambda: P.phase_retrieval(width=2, lr=0.2, noise=0.3),
    "two units, both layers": lambda: P.phase_retrieval(width=2, lr=0.2, noise=0.3, train_second=True),
    "quadratic form": CLOSED["quadratic form"],
}


@pytest.mark.parametrize("name", NOISY)
def test_noise_of_squares_is_that_of_one_sample_in_plain_numpy(name, monkeypatch):
    """Moments of degree 12 on a grid exact for them: (53) and (54) of Escaping mediocrity, at any width."""
    problem = NOISY[name]()
    stats = statistics(problem, seed=2)
    p, k = stats.M.shape
    given = numbers(problem, stats)
    K = np.zeros((p + k, p + k))
    K[:p, :p] = np.diag(np.asarray(stats.a) / (p if problem.network.mean else 1))
    K[p:, p:] = -np.asarray(problem.target.readout.quadratic(k))
    read = NoiseReader(problem, {**given, "K": K}, monkeypatch)
    M, Q, a, mass = increments(problem, stats)
    cov = lambda one, other: float((one * other) @ mass - (one @ mass) * (other @ mass))
    units, fixed = range(1, p + 1), range(1, k + 1)
    one = lambda j, r: M[j - 1, r - 1]
    two = lambda j, l: Q[j - 1, l - 1]
    for j, r, l, s in itertools.product(units, fixed, units, fixed):
        assert read(r"\Sigma^{MM}", j, r + p, l, s + p) == pytest.approx(cov(one(j, r), one(l, s)), abs=1e-9)
    for j, r, l, m in itertools.product(units, fixed, units, units):
        assert read(r"\Sigma^{MQ}", j, r + p, l, m) == pytest.approx(cov(one(j, r), two(l, m)), abs=1e-9)
    for j, l, m, n in itertools.product(units, repeat=4):
        assert read(r"\Sigma^{QQ}", j, l, m, n) == pytest.approx(cov(two(j, l), two(m, n)), abs=1e-9)
    if problem.trains_second:
        for j, l, r in itertools.product(units, units, fixed):
            assert read(r"\Sigma^{aM}", j, l, r + p) == pytest.approx(cov(a[j - 1], one(l, r)), abs=1e-9)
        for j, l, m in itertools.product(units, repeat=3):
            assert read(r"\Sigma^{aQ}", j, l, m) == pytest.approx(cov(a[j - 1], two(l, m)), abs=1e-9)
        for j, l in itertools.product(units, repeat=2):
            assert read(r"\Sigma^{aa}", j, l) == pytest.approx(cov(a[j - 1], a[l - 1]), abs=1e-9)


def test_noise_of_one_unit_is_equation_55_with_twice_its_rate(monkeypatch):
    """In units of lr, at q = 1; Var M is printed right."""
    from sgdlimits.papers.mediocrity.claims.noise import evaluate_55

    m, lr, noise = 0.3, 0.1, 0.2
    problem = P.phase_retrieval(lr=lr, noise=noise, sphere=False)
    given = {"p": 1, "k": 1, "m": m, "q": 1.0, r"\gamma": lr, r"\Delta": noise}
    read = NoiseReader(problem, given, monkeypatch)
    found = np.array([read(r"\Sigma^{mm}"), read(r"\Sigma^{mq}"), read(r"\Sigma^{qq}")]) / lr**2
    np.testing.assert_allclose(found, evaluate_55(m, 2 * lr, noise), rtol=1e-12)


@pytest.mark.parametrize("name", ["phase retrieval", "a second layer", "he3", "he1 and he3"])
def test_noise_of_polynomials_is_the_covariance_of_the_package(name, monkeypatch):
    """Isserlis' theorem here, sums over nodes or matrices there."""
    problem = CLOSED[name]()
    stats = statistics(problem, seed=1)
    read = NoiseReader(problem, numbers(problem, stats), monkeypatch)
    names = [letter for letter in "mqa" if rf"\Sigma^{{{letter}{letter}}}" in read.rows]
    free = np.flatnonzero(problem.coordinates.moves(stats))
    found = np.asarray(problem.covariance(stats))[np.ix_(free, free)]
    for i, one in enumerate(names):
        for j, other in enumerate(names[i:], i):
            assert read(rf"\Sigma^{{{one}{other}}}") == pytest.approx(found[i, j], rel=1e-6, abs=1e-10)
    assert len(names) == len(found)


def test_noise_of_the_spiked_tensor_is_its_covariance(monkeypatch):
    problem = P.spiked_tensor(order=3, snr=4.0, lr=0.5)
    letters = {"p": 1, "k": 3, r"\gamma": 0.5, "m": 0.4, "r": lambda two: 0.7, "R": np.sqrt(0.4**2 + 0.7)}
    read = NoiseReader(problem, letters, monkeypatch)
    found = np.asarray(problem.covariance(sl.Spike(0.4, 0.7)))
    printed = [read(rf"\Sigma^{{{name}}}") for name in ("mm", "mr", "rr")]
    assert printed == pytest.approx([found[0, 0], found[0, 1], found[1, 1]])


def test_noise_that_is_not_closed_keeps_its_name_and_other_algorithms_are_refused():
    assert r"\Sigma^{MM}_{jrls} &= \gamma^{2} \mathrm{Cov}\left[G_{j} \lambda_{r}, G_{l} \lambda_{s}\right]" in sl.latex(
        P.committee(2, 1, "erf"), noise=True
    )
    with pytest.raises(sl.BadInput, match="one-pass SGD on two-layer networks"):
        sl.latex(P.committee(algorithm=sl.Clipped(sl.OnePassSGD(0.1), 1.0)), noise=True)
