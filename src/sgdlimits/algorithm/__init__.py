"""Optimisers: each algorithm is written once, as one step in R^d, for all levels of description (SGD, chain, SDE, ODE)."""

import sgdlimits._x64
from sgdlimits.algorithm.average import Averaged
from sgdlimits.algorithm.base import Algorithm, Descent, Wrapper
from sgdlimits.algorithm.clip import Clipped, Private
from sgdlimits.algorithm.coordinates import Adam, SignSGD
from sgdlimits.algorithm.dana import DANA
from sgdlimits.algorithm.decay import Decayed
from sgdlimits.algorithm.momentum import HeavyBall, Nesterov
from sgdlimits.algorithm.muon import Muon
from sgdlimits.algorithm.normalised import AdaGradNorm, Normalised
from sgdlimits.algorithm.repeated import Repeated
from sgdlimits.algorithm.schedule import Scheduled
from sgdlimits.algorithm.schedule_free import ScheduleFree
from sgdlimits.algorithm.sgd import OnePassSGD
from sgdlimits.algorithm.sharpness import SAM, Extragradient

ALGORITHMS = {
    "sgd": OnePassSGD,
    "heavy_ball": HeavyBall,
    "nesterov": Nesterov,
    "averaged": Averaged,
    "clipped": Clipped,
    "normalised": Normalised,
    "adagrad_norm": AdaGradNorm,
    "sam": SAM,
    "extragradient": Extragradient,
    "repeated": Repeated,
    "private": Private,
    "muon": Muon,
    "decayed": Decayed,
    "scheduled": Scheduled,
    "schedule_free": ScheduleFree,
    "dana": DANA,
    "sign_sgd": SignSGD,
    "adam": Adam,
}
"""Dictionary from the names of optimisers on the command line to their classes."""
