"""How steps are made: `xla`, which takes any process; `lanes` and `cuda`, which take small ones and are faster."""

import sgdlimits._x64
