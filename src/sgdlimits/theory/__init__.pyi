from . import (
    effective as effective,
    escape as escape,
    mediocrity as mediocrity,
    quadratic as quadratic,
    recovery as recovery,
    regimes as regimes,
    single_index as single_index,
)
