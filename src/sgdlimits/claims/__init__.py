"""Every claim of the papers that can be computed, and what this package adds to them, as one audit."""

from sgdlimits.claims.audit import Audit as Audit, audit as audit
