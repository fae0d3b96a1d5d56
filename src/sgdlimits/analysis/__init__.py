"""What is read off trajectories and flows."""

from sgdlimits.analysis.exit_times import exit_times
from sgdlimits.analysis.linearise import Linearisation, linearise
from sgdlimits.analysis.summary import CensoredWarning, Summary, summarise

__all__ = ["CensoredWarning", "Linearisation", "Summary", "exit_times", "linearise", "summarise"]
