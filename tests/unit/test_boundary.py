"""Every public function and constructor, found by introspection, fed with what cannot be right: a sentence, or a finite result.

A new public function is covered without a new line here.
"""

from __future__ import annotations

import inspect
import types
import warnings

import equinox as eqx
import jax
import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings, strategies as st

import sgdlimits as sl
from sgdlimits.domain import checks_of

RESULTS = (tuple, BaseException)
"""Classes that the package makes and users do not."""


def public():
    """The public functions and classes, by where users find them."""
    rooms = {"sl": sl, "presets": sl.presets, "plot": sl.plot, "landscape": sl.landscape, "conserved": sl.conserved}
    rooms |= {f"theory.{name}": getattr(sl.theory, name) for name in sl.theory.__all__}
    for room, module in rooms.items():
        for name in getattr(module, "__all__", None) or dir(module):
            thing = getattr(module, name)
            ours = str(getattr(thing, "__module__", "")).startswith(module.__name__)
            if not name.startswith("_") and ours and callable(thing) and not isinstance(thing, types.ModuleType):
                yield f"{room}.{name}", thing


PUBLIC = {name: thing for name, thing in public() if not (isinstance(thing, type) and issubclass(thing, RESULTS))}
GUARDED = {name: thing for name, thing in PUBLIC.items() if checks_of(thing)}


MADE = {
    "Summary", "FixedPoint", "FixedPoints", "LocalLimit", "Localizability", "Closure", "HessianSpectrum", "ExitTable",
    "PlateauExits", "DynamicsEstimates", "EmpiricalProblem", "FittedDynamics", "SampleAverage", "SampledClosure",
    "SampledDynamics", "SampledLocalizability", "Surrogate", "Phases", "Trust", "EndPoint", "Hessian", "Audit", "Model",
    "CriticalPoints", "CriticalFamily", "UnevenFamily", "Optimum", "ChainGain", "BlockHessian",
}  # fmt: skip
"""Classes of results, which the package fills in."""
INSIDE = {"coordinates", "locate", "on_sphere", "block_hessian"}
"""What other functions of a module call."""
TRIED = {
    "fn",
    "readout",
    "loss",
    "sample",
    "statistics",
    "at",
    "until",
    "observe",
    "symmetries",
    "threshold",
    "problem",
    "orders",
    "thing",
    "exits",
}
"""Functions of users, tried on one sample, and what may be one: `test_functions.py`."""
SWEPT = {"sweep", "collect", "export", "grid", "random_points", "Refine", "rerun"}
"""What points of a sweep are made of is read by its recipe: `tests/unit/run/sweeps`."""


def test_every_argument_is_checked():
    """A new argument gets a type that carries its check."""
    for name, thing in PUBLIC.items():
        if name.split(".")[-1] in MADE | INSIDE | SWEPT:
            continue
        try:
            parameters = inspect.signature(thing).parameters
        except ValueError:
            continue
        free = [n for n, p in parameters.items() if n not in checks_of(thing) and p.kind is not p.VAR_KEYWORD]
        assert set(free) <= TRIED, (
            f"{name} takes {free}: decorate it with @checked, and annotate them with types that carry checks"
        )


NEVER = [object(), 1j, np.array(1j), [[1.0], [1.0, 2.0]], [None], b"x", {1, 2}, np.datetime64("2020"), slice(3)]
"""What no argument may be."""


@pytest.mark.parametrize("name", sorted(GUARDED))
def test_what_is_never_right_is_refused(name):
    for argument, check in checks_of(GUARDED[name]).items():
        for poison in NEVER:
            assert not accepts(check, poison), f"{name}({argument}={poison!r}) passes"


POISONS = [
    None, "", "0.1", "no", b"3", [], [1.0, 2.0], {}, (), object(), float, np.nan, np.inf, -np.inf, -1, -0.5, 0, 1.5, 1e308,
    -1e308, 5e-324, 10**400, 2**64, 1j, True, np.array([]), np.array(["a"]), np.array(np.nan), np.bool_(False), lambda: 0,
    np.datetime64("2020"), "lr", slice(None), ..., {"d": 3}, range(0), xr.Dataset(),
]  # fmt: skip


@pytest.mark.parametrize("name", sorted(GUARDED))
def test_a_poison_is_refused_in_a_sentence_or_fits(name):
    """Each checked argument alone: what the check lets pass is a value of its domain."""
    thing = GUARDED[name]
    for argument, check in checks_of(thing).items():
        for poison in POISONS:
            try:
                value = check(argument, poison)
            except sl.BadInput as sentence:
                text = str(sentence)
                assert text.startswith(argument), text
                assert text.endswith("."), text
                assert "\n" not in text, text
                assert len(text) < 400, text
                continue
            if isinstance(value, (int, float)) and not hasattr(thing, "dims"):  # statistics are looked at with their problem
                assert np.isfinite(float(value)) or value == np.inf


def accepts(check, value):
    """Whether a check lets a value pass: text, where names are looked up later."""
    try:
        check("it", value)
    except sl.BadInput:
        return False
    return True


@pytest.mark.parametrize("name", sorted(GUARDED))
def test_the_check_stands_before_the_function(name):
    """A call with one poison for an argument and nothing else: the sentence about it, not an error from inside."""
    thing = GUARDED[name]
    for argument in checks_of(thing):
        default = inspect.signature(thing).parameters[argument].default
        for poison in ("0.1", object(), np.nan):
            if poison is default or accepts(checks_of(thing)[argument], poison):
                continue
            with pytest.raises((sl.BadInput, TypeError)) as caught:
                thing(**{argument: poison})
            if isinstance(caught.value, sl.BadInput):
                assert str(caught.value).startswith(argument)
            else:
                assert "missing" in str(caught.value) or "argument" in str(caught.value)


# --- whole calls -------------------------------------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.integers(-(10**20), 10**20), st.sampled_from(POISONS),
    st.floats(0.01, 3), st.integers(1, 4),
)  # fmt: skip


def small(thing):
    """Functions of plain numbers, which are quick: formulas, presets, algorithms, levels, starts."""
    parameters = inspect.signature(thing).parameters
    return parameters and all(
        (name in checks_of(thing) and name not in ("problem", "dataset", "level", "base", "algorithm"))
        or parameter.default is not inspect.Parameter.empty
        for name, parameter in parameters.items()
    )  # fmt: skip


FORMULAS = {
    name: thing for name, thing in GUARDED.items() if small(thing) and not {"starts", "ax", "effort"} & set(checks_of(thing))
}


def finite(result):
    """Whether no number of a result is NaN."""
    if isinstance(result, eqx.Module):
        leaves = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, (float, np.ndarray, jax.Array))]
    else:
        leaves = [np.asarray(result, float)] if isinstance(result, (float, np.ndarray)) else []
    return all(not np.isnan(np.asarray(leaf, float)).any() for leaf in leaves)


@pytest.mark.parametrize("name", sorted(FORMULAS))
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_formulas_and_constructors_give_a_sentence_or_a_finite_result(name, data):
    thing = FORMULAS[name]
    parameters = inspect.signature(thing).parameters
    chosen = [n for n, p in parameters.items() if n in checks_of(thing) and (p.default is p.empty or data.draw(st.booleans()))]
    call = {n: data.draw(NUMBERS, label=n) for n in chosen}
    if any(isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) > 1e6 for value in call.values()):
        call = {n: value for n, value in call.items() if n not in ("width", "teachers", "order", "starts", "n", "d", "times")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = thing(**call)
        except sl.BadInput as sentence:
            assert "\n" not in str(sentence)  # noqa: PT017
        except TypeError as missing:
            assert "missing" in str(missing)  # noqa: PT017
        else:
            statistics = hasattr(thing, "dims")  # whose numbers are checked with their problem
            assert finite(result) or statistics or "NaN" in thing.__doc__, f"{name}({call}) = {result}"
