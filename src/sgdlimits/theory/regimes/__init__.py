r"""Which limit holds when the width and the learning rate are powers of the dimension [5]_.

With :math:`p = d^\kappa` units and the learning rate :math:`\gamma = d^{-\delta}` one step of SGD changes the statistics by

.. math:: \Delta\Omega = \frac{\gamma}{dp}\,\psi_{\rm GF} + \frac{\gamma^2}{dp^2}\,\psi_{\rm noise},

where both :math:`\psi` are of order 1. A step takes :math:`\gamma/(dp)` of the paper's time, and only
:math:`\gamma/p = d^{-(\kappa+\delta)}` matters:

- :math:`\kappa+\delta > 0`: the noise term vanishes beside the other, and gradient flow on the population risk remains;
- :math:`\kappa+\delta = 0`: both terms remain (Saad and Solla);
- :math:`-\frac12 < \kappa+\delta < 0`: the noise term is the larger one. On its own clock, :math:`\gamma^2/(dp^2)` a step, it
  has an ODE, in which the norms grow and nothing is learnt;
- :math:`\kappa+\delta \le -\frac12`: a step does not become small even on that clock, and there is no ODE.

Where :math:`\kappa > 0` as well as :math:`\kappa+\delta > 0`, the overlaps between students follow from the other statistics
up to :math:`p^{-1/2} + d^{-1/2}` (mean field). On the line they do not: the noise term correlates students.

.. [5] Loureiro, *Dimension-free limits of SGD for two-layers neural networks*, slides, with the theorems of Veiga, Stephan,
   Loureiro, Krzakala, Zdeborová (2022) and of Arnaboldi, Stephan, Krzakala, Loureiro (2023).
"""

from sgdlimits.theory.regimes.diagram import phase_diagram as phase_diagram
from sgdlimits.theory.regimes.exponents import (
    REGIMES as REGIMES,
    Regime as Regime,
    Sizes as Sizes,
    classify as classify,
    of as of,
    regime as regime,
)
