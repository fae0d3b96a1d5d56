"""Laws of the inputs, and how to sample them."""

import sgdlimits._x64
from sgdlimits.inputs.base import Inputs
from sgdlimits.inputs.mixture import Data, Mixture, gaussian, mixture
