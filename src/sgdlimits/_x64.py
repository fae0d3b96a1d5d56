"""Double precision for JAX, before the first array is made. The subpackages that use JAX import this module first.

In dimension d, overlaps of order 1/sqrt(d) leave a saddle by many steps of size 1/d, whose sum single precision would bias.
Importing the package sets this option and the workaround in `_miscompiled`, and nothing else; `settings` has further options.
"""

import jax

from sgdlimits._miscompiled import turn_off_fusion

jax.config.update("jax_enable_x64", True)
# After the option: the test for the fault compiles a program in double precision.
turn_off_fusion()
