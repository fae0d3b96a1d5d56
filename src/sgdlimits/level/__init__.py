"""Levels of description of SGD (SGD in R^d, chain, SDE, ODE and others): from the weights to the limit of large d."""

import sgdlimits._x64  # first: arrays are double precision
import sgdlimits.level.own_inputs
import sgdlimits.level.spiked
from sgdlimits.level.base import Engine, Level, Request, Snapshot, Stepper
from sgdlimits.level.chain import Chain
from sgdlimits.level.condition import Condition, Exits, Predicate, exits
from sgdlimits.level.local import Local
from sgdlimits.level.mean_field import MeanField
from sgdlimits.level.ode import ODE, flow
from sgdlimits.level.sde import SDE
from sgdlimits.level.second_moments import SecondMoments
from sgdlimits.level.sgd import SGD

LEVELS = {level.name: level for level in (SGD, Chain, SDE, ODE, MeanField, SecondMoments)}
