from . import (
    inputs as inputs,
    theory as theory,
)
from .algorithm import (
    DANA as DANA,
    SAM as SAM,
    AdaGradNorm as AdaGradNorm,
    Adam as Adam,
    Algorithm as Algorithm,
    Averaged as Averaged,
    Clipped as Clipped,
    Decayed as Decayed,
    Extragradient as Extragradient,
    HeavyBall as HeavyBall,
    Muon as Muon,
    Nesterov as Nesterov,
    Normalised as Normalised,
    OnePassSGD as OnePassSGD,
    Private as Private,
    Repeated as Repeated,
    Scheduled as Scheduled,
    ScheduleFree as ScheduleFree,
    SignSGD as SignSGD,
)
from .analysis import (
    conserved as conserved,
    landscape as landscape,
    plot as plot,
)
from .analysis.chain_rule import ChosenDynamics as ChosenDynamics
from .analysis.closure import Closure as Closure
from .analysis.controls import (
    Budget as Budget,
    Control as Control,
)
from .analysis.correction import (
    Trust as Trust,
    expansion as expansion,
    trust as trust,
)
from .analysis.dynamics import EffectiveDynamics as EffectiveDynamics
from .analysis.effective import effective_dynamics as effective_dynamics
from .analysis.equations import latex as latex
from .analysis.exit_times import exit_times as exit_times
from .analysis.fixed_points import (
    FixedPoint as FixedPoint,
    FixedPoints as FixedPoints,
    fixed_points as fixed_points,
)
from .analysis.landscape import (
    HessianSpectrum as HessianSpectrum,
    hessian_spectrum as hessian_spectrum,
)
from .analysis.local_limit import (
    LocalLimit as LocalLimit,
    linearise as linearise,
    local_limit as local_limit,
)
from .analysis.localizability import Localizability as Localizability
from .analysis.optimise import optimise as optimise
from .analysis.optimum import (
    ChainGain as ChainGain,
    Optimum as Optimum,
)
from .analysis.plateau_exits import (
    PlateauExits as PlateauExits,
    plateau_exits as plateau_exits,
)
from .analysis.sampled.closure import SampledClosure as SampledClosure
from .analysis.sampled.dynamics import SampledDynamics as SampledDynamics
from .analysis.sampled.empirical import EmpiricalProblem as EmpiricalProblem
from .analysis.sampled.estimates import (
    DynamicsEstimates as DynamicsEstimates,
    SampleAverage as SampleAverage,
)
from .analysis.sampled.family import SampledLocalizability as SampledLocalizability
from .analysis.sampled.fit import FittedDynamics as FittedDynamics
from .analysis.single_index import recommended_lr as recommended_lr
from .analysis.summary import (
    Summary as Summary,
    summarise as summarise,
)
from .analysis.tasks import (
    forgetting as forgetting,
    tracking_lr as tracking_lr,
    tracking_risk as tracking_risk,
    transfer as transfer,
)
from .errors import (
    AccuracyWarning as AccuracyWarning,
    BadInput as BadInput,
    CensoredWarning as CensoredWarning,
    Interrupted as Interrupted,
    RepeatedWarning as RepeatedWarning,
)
from .expectation import (
    AtMeans as AtMeans,
    ClassIntegrals as ClassIntegrals,
    ClosedForm as ClosedForm,
    FieldIntegrals as FieldIntegrals,
    NodeSums as NodeSums,
    Squares as Squares,
    gaussian as gaussian,
)
from .expectation.gaussian import (
    GaussHermite as GaussHermite,
    Sobol as Sobol,
)
from .inputs import (
    Reused as Reused,
    Spectrum as Spectrum,
    spectrum as spectrum,
)
from .level import (
    ODE as ODE,
    SDE as SDE,
    SGD as SGD,
    Chain as Chain,
    Local as Local,
    MeanField as MeanField,
    SecondMoments as SecondMoments,
    exits as exits,
    flow as flow,
)
from .model import (
    ClassLabels as ClassLabels,
    ClassReadouts as ClassReadouts,
    CommitteeReadout as CommitteeReadout,
    CrossEntropy as CrossEntropy,
    Erf as Erf,
    Model as Model,
    Network as Network,
    PiecewiseLinear as PiecewiseLinear,
    Polynomial as Polynomial,
    QuadraticReadout as QuadraticReadout,
    SoftmaxCrossEntropy as SoftmaxCrossEntropy,
    SquaredLoss as SquaredLoss,
    Target as Target,
    TwoLayer as TwoLayer,
    hermite as hermite,
    hermite_coefficients as hermite_coefficients,
    hermite_tensor as hermite_tensor,
    information_exponent as information_exponent,
    leaps as leaps,
    mixture as mixture,
)
from .papers.audit import (
    Audit as Audit,
    audit as audit,
)
from .papers.mediocrity.exit_table import (
    ExitTable as ExitTable,
    exit_table as exit_table,
)
from .papers.quadratic.phases import (
    Phases as Phases,
    phases as phases,
)
from .problem import (
    InitialWeights as InitialWeights,
    Problem as Problem,
    ProjectionProblem as ProjectionProblem,
    SpikedTensor as SpikedTensor,
    Surrogate as Surrogate,
    presets as presets,
)
from .run import (
    DivergedWarning as DivergedWarning,
    check as check,
    join as join,
    load as load,
    problem_of as problem_of,
    register as register,
    rerun as rerun,
    save as save,
    simulate as simulate,
    stream as stream,
)
from .run.sweeps import (
    Refine as Refine,
    SweepFailed as SweepFailed,
    SweepStopped as SweepStopped,
    SweepWarning as SweepWarning,
    collect as collect,
    export as export,
    grid as grid,
    random_points as random_points,
    sweep as sweep,
)
from .schedule import Schedule as Schedule
from .schedule_forms import (
    Cosine as Cosine,
    Linear as Linear,
    Power as Power,
    Steps as Steps,
    Warmup as Warmup,
)
from .settings import setup_jax as setup_jax
from .start import (
    Bernoulli as Bernoulli,
    FixedInit as FixedInit,
    OrthogonalInit as OrthogonalInit,
    RandomInit as RandomInit,
)
from .statistics import (
    Overlaps as Overlaps,
    Particles as Particles,
    Spike as Spike,
    Values as Values,
    weights as weights,
)

__version__: str
