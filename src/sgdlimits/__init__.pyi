from . import gaussian as gaussian
from . import plot as plot
from . import theory as theory
from .analysis import CensoredWarning as CensoredWarning
from .analysis import EffectiveDynamics as EffectiveDynamics
from .analysis import FixedPoint as FixedPoint
from .analysis import FixedPoints as FixedPoints
from .analysis import Localizability as Localizability
from .analysis import LocalLimit as LocalLimit
from .analysis import Phases as Phases
from .analysis import Spectrum as Spectrum
from .analysis import Summary as Summary
from .analysis import conserved as conserved
from .analysis import effective_dynamics as effective_dynamics
from .analysis import exit_times as exit_times
from .analysis import fixed_points as fixed_points
from .analysis import hessian_spectrum as hessian_spectrum
from .analysis import landscape as landscape
from .analysis import linearise as linearise
from .analysis import local_limit as local_limit
from .analysis import phases as phases
from .analysis import summarise as summarise
from .errors import AccuracyWarning as AccuracyWarning
from .errors import BadInput as BadInput
from .errors import Interrupted as Interrupted
from .gaussian import GaussHermite as GaussHermite
from .gaussian import Sobol as Sobol
from .level import ODE as ODE
from .level import SDE as SDE
from .level import SGD as SGD
from .level import Chain as Chain
from .level import Local as Local
from .level import MeanField as MeanField
from .level import exits as exits
from .level import flow as flow
from .problem import (
    AtMeans as AtMeans,
)
from .problem import (
    ClassIntegrals as ClassIntegrals,
)
from .problem import (
    ClassLabels as ClassLabels,
)
from .problem import (
    ClosedForm as ClosedForm,
)
from .problem import (
    CommitteeReadout as CommitteeReadout,
)
from .problem import (
    CrossEntropy as CrossEntropy,
)
from .problem import (
    Erf as Erf,
)
from .problem import (
    FieldIntegrals as FieldIntegrals,
)
from .problem import (
    InitialWeights as InitialWeights,
)
from .problem import (
    OnePassSGD as OnePassSGD,
)
from .problem import (
    Overlaps as Overlaps,
)
from .problem import (
    Particles as Particles,
)
from .problem import (
    PiecewiseLinear as PiecewiseLinear,
)
from .problem import (
    Polynomial as Polynomial,
)
from .problem import (
    Problem as Problem,
)
from .problem import (
    ProjectionProblem as ProjectionProblem,
)
from .problem import (
    QuadraticReadout as QuadraticReadout,
)
from .problem import (
    Spike as Spike,
)
from .problem import (
    SpikedTensor as SpikedTensor,
)
from .problem import (
    SquaredLoss as SquaredLoss,
)
from .problem import (
    Target as Target,
)
from .problem import (
    TwoLayer as TwoLayer,
)
from .problem import hermite as hermite
from .problem import hermite_coefficients as hermite_coefficients
from .problem import information_exponent as information_exponent
from .problem import mixture as mixture
from .problem import presets as presets
from .start import FixedInit as FixedInit
from .start import OrthogonalInit as OrthogonalInit
from .start import RandomInit as RandomInit
from .theory.single_index import recommended_lr as recommended_lr
from .trajectory import (
    DivergedWarning as DivergedWarning,
)
from .trajectory import (
    check as check,
)
from .trajectory import (
    load as load,
)
from .trajectory import (
    rerun as rerun,
)
from .trajectory import (
    save as save,
)
from .trajectory import (
    simulate as simulate,
)
