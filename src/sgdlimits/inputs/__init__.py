"""Laws of the inputs, with methods that draw samples."""

import sgdlimits._x64
from sgdlimits.inputs import spectrum
from sgdlimits.inputs.base import Inputs
from sgdlimits.inputs.blocks import Blocks
from sgdlimits.inputs.make import add_noise, gaussian, mixture
from sgdlimits.inputs.mixture import Data, Mixture
from sgdlimits.inputs.reused import Reused, TrainingSet
from sgdlimits.inputs.rows import GaussianFit, Rows, from_data
from sgdlimits.inputs.sampler import Sampler, sampler
from sgdlimits.inputs.spectrum import Spectrum
