"""Presets: the learning problems of the papers, by name."""

from sgdlimits.errors import BadInput
from sgdlimits.problem.made import PRESET_FUNCTIONS
from sgdlimits.problem.presets.curricula import easy_and_hard
from sgdlimits.problem.presets.mixtures import binary_mixture, gaussian_mixture, xor_mixture
from sgdlimits.problem.presets.networks import committee, phase_retrieval, quadratic_network, single_index
from sgdlimits.problem.presets.spiked import spiked_tensor
from sgdlimits.problem.presets.tasks import drifting, two_tasks

PRESETS = {
    preset.__name__: preset
    for preset in (phase_retrieval, quadratic_network, committee, single_index, binary_mixture, xor_mixture, spiked_tensor)
}
PRESET_FUNCTIONS.update(
    PRESETS, gaussian_mixture=gaussian_mixture, two_tasks=two_tasks, drifting=drifting, easy_and_hard=easy_and_hard
)


class UnknownPreset(BadInput, AttributeError):
    """Error for a name that is not the name of a preset."""


def __getattr__(name: str):
    raise UnknownPreset(f"there is no preset {name!r}. The presets are {', '.join(PRESET_FUNCTIONS)}.")


def __dir__() -> list[str]:
    return list(PRESET_FUNCTIONS)
