"""Quantities that learning conserves, and the zero-risk solution that conserved quantities select."""

from sgdlimits.analysis.conserved.functions import along as along, check as check
from sgdlimits.analysis.conserved.polar import (
    EndPoint as EndPoint,
    distance as distance,
    end_point as end_point,
    phase as phase,
    polar as polar,
)
