"""Two-layer relu networks on binary and XOR mixtures without noise inside the clusters: sections 4 and 5 of the paper."""

from __future__ import annotations

import math

from sgdlimits.errors import BadInput, check_number, check_share

SUCCESS = {"binary_mixture": 1 / 2, "xor_mixture": 3 / 32}


def ring_radius(ridge: float, weight: float) -> float:
    r"""The radius of the rings of fixed points, :math:`\sqrt C` with

    .. math:: C = \log\frac{\text{weight} - \text{ridge}}{\text{ridge}}.

    The units that serve one cluster have :math:`\sum_j v_j^2 = \sum_j (W_j\cdot\mu)^2 = C`: the gradient of the cross-entropy,
    :math:`\text{weight}/(1 + e^C)`, is then balanced by the penalty. The radius is zero from `critical_ridge` on.

    Parameters
    ----------
    ridge : :math:`\alpha`, the strength of the ridge penalty
    weight : the probability of one cluster: 1/2 in the binary mixture, 1/4 in XOR

    Examples
    --------
    >>> ring_radius(ridge=0.1, weight=0.5) ** 2 == math.log(4)
    True
    """
    check_number("ridge", ridge, above=0)
    if ridge >= critical_ridge(weight):
        return 0.0
    return math.sqrt(math.log((weight - ridge) / ridge))


def critical_ridge(weight: float) -> float:
    r"""The ridge from which on only zero weights are fixed: :math:`\text{weight}/2`, so 1/4 (binary) and 1/8 (XOR).

    >>> critical_ridge(weight=1/4)
    0.125
    """
    return check_share("weight", weight) / 2


def success_probability(preset: str) -> float:
    r"""The probability that SGD from random weights finds a network that classifies well, at the paper's width and small ridge.

    Binary, two units: one :math:`v_j` must start positive and the other negative, 1/2. XOR, four units: two and two, 6/16, and
    inside each pair the overlaps with the means of the pair's label must start with opposite signs, 1/2 each: 3/32. The signs
    of these overlaps are those of numbers of order :math:`d^{-1/2}`, and are not seen from the limit of the start.

    Parameters
    ----------
    preset : "binary_mixture" or "xor_mixture"

    >>> success_probability("xor_mixture")
    0.09375
    """
    if preset not in SUCCESS:
        raise BadInput(f"preset must be one of {', '.join(SUCCESS)}; got {preset!r}. Give one of them.")
    return SUCCESS[preset]
