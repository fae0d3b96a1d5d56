"""Laws of the inputs, with methods that draw samples."""

import sgdlimits._x64
from sgdlimits.inputs import spectrum
from sgdlimits.inputs.base import Inputs
from sgdlimits.inputs.blocks import Blocks
from sgdlimits.inputs.make import gaussian, mixture
from sgdlimits.inputs.mixture import Data, Mixture
from sgdlimits.inputs.spectrum import Spectrum
