"""The model of one sample: inputs, target, network and loss."""

import sgdlimits._x64
from sgdlimits.inputs import Data, gaussian, mixture
from sgdlimits.model.activation import Activation, Erf, FunctionActivation, PiecewiseLinear, Polynomial, hermite
from sgdlimits.model.expansion import hermite_coefficients, information_exponent
from sgdlimits.model.leaps import Leap, hermite_tensor, leaps
from sgdlimits.model.loss import CrossEntropy, FunctionLoss, Loss, SoftmaxCrossEntropy, SquaredLoss
from sgdlimits.model.network import Network, TwoLayer
from sgdlimits.model.sample import Model
from sgdlimits.model.target import (
    ClassLabels,
    CommitteeReadout,
    FunctionReadout,
    QuadraticReadout,
    Readout,
    Target,
    TimedReadout,
)
from sgdlimits.model.tasks import ClassReadouts, Rotation
