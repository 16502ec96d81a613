"""What training minimises."""

from __future__ import annotations

import torch
from torch import Tensor


def torque_objective(
    predicted: Tensor, measured: Tensor, weight: Tensor, huber_delta: float = 0.0
) -> Tensor:
    """
    Mean weighted squared torque error, Eq. (14).

    Differs from Eq. (14): with `huber_delta` > 0 weighted errors beyond it count linearly, so
    that the few samples around a stop, which no memoryless model can explain, do not rule.

    Parameters
    ----------
    predicted, measured : Tensor, (B, n)
        Torque [N m | N].
    weight : Tensor, (n,)
        Inverse standard deviation of the torque per joint.
    huber_delta : float
        In weighted units; 0 for the plain square.

    """
    error = (predicted - measured) * weight
    if huber_delta > 0:
        zero = torch.zeros_like(error)
        return 2.0 * torch.nn.functional.huber_loss(error, zero, delta=huber_delta)
    return error.square().mean()
