"""A file is data: whatever it names or holds, nothing in it runs, is imported or is written."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import random
import subprocess
import sys

import pytest

import sgdlimits as sl
from sgdlimits.run.record import find_named_object, from_json

ENCODED = ("problem", "level_parameters", "start", "until")
"""The attributes that hold something encoded. Those that hold names, and numbers, are beside them below."""
NAMES = [
    "os:system", "subprocess:Popen", "builtins:exec", "builtins:eval", "builtins:__import__", "posix:system", "shutil:rmtree",
    "sgdlimits.run.io:os.system", "sgdlimits:os.system", "pickle:loads", "jax.numpy:save", "jax.numpy:load", "jax:os",
    "jax._src.numpy.io:save", "numpy:fromfile", "importlib:import_module", "os.system", "simulate", "save", "write_netcdf",
    "find", "sgdlimits.files:write", "__builtins__", "", ":", "a:b:c", "\0", "x" * 10_000,
]  # fmt: skip
POISONS = [None, [], {}, 3, -1, 1e308, "x", "NaN", {"array": "x"}, {"tuple": 3}, {"dict": []}, {"class": 3}, {"fields": {}},
           {"class": "Chain"}, {"class": "Chain", "fields": {"d": -3}}, {"class": "Chain", "fields": {"d": "30"}}]  # fmt: skip


class Ran(BaseException):
    """Something in a file ran."""


def trip(*words, **more):
    raise Ran


@pytest.fixture(scope="module")
def dataset():
    until = sl.exits(0.9)
    return sl.simulate(sl.presets.phase_retrieval(), sl.Chain(20), sl.RandomInit(20), t_max=0.1, save=2, until=until)


@pytest.fixture
def wired(monkeypatch, dataset):
    """Doors to the world that raise when they are opened."""
    sl.rerun(dataset)  # everything that is needed is imported
    for place, name in ((os, "system"), (subprocess, "Popen"), (builtins, "exec"), (builtins, "eval"), (os, "remove")):
        monkeypatch.setattr(place, name, trip)
    before = set(sys.modules)
    yield
    assert set(sys.modules) == before


@pytest.mark.parametrize("name", NAMES)
def test_names_from_outside_are_not_looked_up(name):
    with pytest.raises(sl.BadInput, match="not known here"):
        find_named_object(name)


@pytest.mark.parametrize("attribute", [*ENCODED, "observe", "statistics", "save", "seed", "t_max"])
def test_an_attribute_that_names_a_function_or_holds_nonsense_is_one_sentence(attribute, dataset, wired):
    texts = [json.dumps(poison) for poison in POISONS] + ["", "{", "[" * 5000, "\ud800"]
    texts += [json.dumps({"function": name}) for name in NAMES] + [json.dumps({"class": name, "fields": {}}) for name in NAMES]
    texts += [json.dumps({"f": name}) for name in NAMES] + NAMES
    for text in texts:
        bad = dataset.assign_attrs({attribute: text})
        with contextlib.suppress(sl.BadInput):
            sl.rerun(bad, progress=False)


def mutated(text: str, rng: random.Random) -> str:
    """The JSON with one part replaced by a name or nonsense."""
    tree = json.loads(text)
    places = []

    def walk(node):
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            walk(node[key])

    walk(tree)
    node, key = rng.choice(places)
    name = rng.choice(NAMES)
    node[key] = rng.choice([name, {"function": name}, {"class": name, "fields": {}}, *POISONS])
    return json.dumps(tree)


def test_no_mutated_file_runs_anything(dataset, wired):
    rng, refused = random.Random(0), 0
    for _ in range(100):
        attribute = rng.choice(ENCODED)
        try:
            from_json(mutated(dataset.attrs[attribute], rng))
        except sl.BadInput:
            refused += 1
    assert refused > 50


def test_what_the_user_passes_or_registers_is_known():
    with pytest.raises(sl.BadInput, match=r"Give it to sgdlimits\.register"):
        find_named_object(f"{__name__}:leaning")
    sl.register(leaning)
    assert find_named_object(f"{__name__}:leaning") is leaning
    for nameless in (lambda x: x, 3):
        with pytest.raises(sl.BadInput, match="with a name can be registered"):
            sl.register(nameless)


def leaning(x):
    return 0.5 * x
