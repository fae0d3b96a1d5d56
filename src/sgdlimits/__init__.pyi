from . import gaussian as gaussian, plot as plot
from .problem import presets as presets
from .errors import BadInput as BadInput, Interrupted as Interrupted
from .gaussian import GaussHermite as GaussHermite, Sobol as Sobol
from .level import ODE as ODE, SDE as SDE, SGD as SGD, Chain as Chain, flow as flow
from .problem import (
    ClosedForm as ClosedForm,
    CommitteeReadout as CommitteeReadout,
    InitialWeights as InitialWeights,
    OnePassSGD as OnePassSGD,
    Overlaps as Overlaps,
    Problem as Problem,
    ProjectionProblem as ProjectionProblem,
    QuadraticReadout as QuadraticReadout,
    SquaredLoss as SquaredLoss,
    Target as Target,
    TwoLayer as TwoLayer,
)
from .start import FixedInit as FixedInit, OrthogonalInit as OrthogonalInit, RandomInit as RandomInit
from .trajectory import (
    DivergedWarning as DivergedWarning,
    check as check,
    load as load,
    rerun as rerun,
    save as save,
    simulate as simulate,
)
