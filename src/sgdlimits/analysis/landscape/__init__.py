r"""The landscape of the population risk: its gradient and its Hessian, in R^d or in the frame of the statistics.

The function is the one that gradient flow descends,

.. math:: R(u_1, \dots, u_p) = E[\text{loss}] + \frac{\text{ridge}}2\sum_j|u_j|^2,

as a function of the first layer only: the second layer `a` stays where it is, also where it is trained. On the sphere the
gradient is projected on the tangent space of the product of p spheres, and the Hessian is the Riemannian one,
:math:`\Pi\,(H - \mathrm{diag}(u_j\cdot\nabla_jR))\,\Pi`.
"""

from sgdlimits.analysis.landscape.point import Weights as Weights, coordinates as coordinates
from sgdlimits.analysis.landscape.surface import (
    Hessian as Hessian,
    gradient as gradient,
    hessian as hessian,
    hessian_spectrum as hessian_spectrum,
    risk as risk,
)
from sgdlimits.theory.spectrum import Spectrum as Spectrum
