"""Where the vectors of samples come from."""

import sgdlimits._x64
from sgdlimits.inputs.base import Inputs
from sgdlimits.inputs.mixture import Data, Mixture, gaussian, mixture
