"""Double precision for JAX, before the first array is made. The subpackages that use JAX import this module first.

Overlaps leave a saddle from 1/sqrt(d) by many steps of size 1/d, whose sum single precision would bias at large d. Besides this
option and the protection in `_miscompiled`, importing the package changes nothing in the process: `settings` has the rest.
"""

import jax

from sgdlimits._miscompiled import turn_off_fusion

jax.config.update("jax_enable_x64", True)
# After the option: the test for the fault compiles a program in double precision.
turn_off_fusion()
