r"""
The dissipative half, linear in its parameters: friction laws with coefficients >= 0, Eq. (21).

    d_i = viscous_i qd_i + a_i (coulomb_i + sum_k stribeck_ik v_k^2 / (v_k^2 + qd_i^2))

with the activation a_i = tanh(k qd_i), of the sign of qd_i, so `qd'd >= 0` by the signs alone.
Coulomb friction that falls with speed is Stribeck's effect; the v_k are given, not fitted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn, Tensor


class LinearDissipation(nn.Module):
    """
    Passive friction torque d(qd), each joint by itself, linear in coefficients >= 0.

    A negative coefficient counts as zero, so the model is passive whatever its parameters are,
    as long as the activation has the sign of qd.

    Parameters
    ----------
    n : int
        Number of joints.
    stribeck_velocities : sequence of float
        v_k, > 0 [rad/s | m/s]; may be empty.
    coulomb_gain : float
        k [s/rad].

    Attributes
    ----------
    viscous : Parameter, (n,)
        In the model's unit of torque per rad/s; all parameters are zero at the start.
    coulomb : Parameter, (n,)
        In the model's unit of torque.
    stribeck : Parameter, (n, K)
        What comes on top of Coulomb friction below v_k, in the model's unit of torque.

    Raises
    ------
    ValueError
        A velocity that is not positive.

    """

    squared_velocity: Tensor

    def __init__(
        self, n: int, stribeck_velocities: Sequence[float] = (), coulomb_gain: float = 1e6
    ) -> None:
        super().__init__()
        if not all(v > 0 for v in stribeck_velocities):
            raise ValueError(f'stribeck_velocities {tuple(stribeck_velocities)} must be > 0')
        self.coulomb_gain = coulomb_gain
        squared = torch.tensor(stribeck_velocities, dtype=torch.float32).square()
        self.register_buffer('squared_velocity', squared, False)
        self.viscous = nn.Parameter(torch.zeros(n))
        self.coulomb = nn.Parameter(torch.zeros(n))
        self.stribeck = nn.Parameter(torch.zeros(n, len(stribeck_velocities)))

    def activation(self, qd: Tensor) -> Tensor:
        """Return tanh(k qd)."""
        return torch.tanh(self.coulomb_gain * qd)

    def forward(self, q: Tensor, qd: Tensor, aux: Tensor | None, activation: Tensor) -> Tensor:
        """
        Return d, (B, n).

        Parameters
        ----------
        q, aux : ignored; friction depends on the velocity alone
        qd : Tensor, (B, n)
            Velocity [rad/s | m/s].
        activation : Tensor, (B, n)
            Sign of motion in [-1, 1]: tanh(k qd), or that as a low-pass of the recording
            lets it through, which is for fitting only: it may lead or lag qd.

        """
        del q, aux
        return (self.features(qd, activation) * self.coefficients().clamp_min(0.0)).sum(-1)

    def features(self, qd: Tensor, activation: Tensor) -> Tensor:
        """Return what the coefficients multiply, (B, n, 2 + K)."""
        v2 = self.squared_velocity
        stribeck = v2 / (v2 + qd.square().unsqueeze(-1))
        plain = torch.stack([qd, activation], -1)
        return torch.cat([plain, activation.unsqueeze(-1) * stribeck], -1)

    def coefficients(self) -> Tensor:
        """Return viscous, coulomb and stribeck side by side, (n, 2 + K)."""
        return torch.cat([torch.stack([self.viscous, self.coulomb], -1), self.stribeck], -1)

    @torch.no_grad()
    def set_coefficients(self, coefficients: Tensor) -> None:
        """Set viscous, coulomb and stribeck from (n, 2 + K)."""
        self.viscous.copy_(coefficients[:, 0])
        self.coulomb.copy_(coefficients[:, 1])
        self.stribeck.copy_(coefficients[:, 2:])
