r"""
The dissipative half: a torque that can only take energy out, Eqs. (7)-(8).

    d = (chol_D chol_D' + eps I) qd + f * tanh(k qd),      f_i(q, qd) > 0

so `qd'd = |chol_D' qd|^2 + eps |qd|^2 + sum_i f_i qd_i tanh(k qd_i) >= 0` for any weights.  An
asymmetric `f` has one value for either direction, which keeps that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn, Tensor

from .networks import CholeskyFactor, JetMLP, JointEncoding


class DissipationNetwork(nn.Module):
    """
    Passive friction torque d(q, qd, aux) from a network.

    Parameters
    ----------
    is_revolute, position_scale : sequences, n
        See :class:`~.networks.JointEncoding`.
    velocity_scale : sequence of float, n
        Typical speed of each joint [rad/s | m/s]; the network sees qd / velocity_scale.
    width, depth, dropout : see :class:`~.networks.JetMLP`
    eps : float
        Lower bound of the eigenvalues of D, > 0, in the model's unit of torque per rad/s.
    scale : float
        Factor on the entries of chol_D before its diagonal is made positive.
    coulomb : bool
        Whether the term f tanh(k qd) of Eq. (8) is there.
    coulomb_gain : float
        k [s/rad]; 1e6 makes it the sign of qd.
    aux_size : int
        Number of auxiliary inputs (temperature, payload), Eq. (18d).
    asymmetric : bool
        Whether f differs between the two directions.

    """

    inverse_velocity_scale: Tensor

    def __init__(
        self,
        is_revolute: Sequence[bool],
        position_scale: Sequence[float],
        velocity_scale: Sequence[float],
        width: int,
        depth: int,
        dropout: float,
        eps: float,
        scale: float,
        coulomb: bool,
        coulomb_gain: float,
        aux_size: int = 0,
        asymmetric: bool = False,
    ) -> None:
        super().__init__()
        n = len(is_revolute)
        self.encoding = JointEncoding(is_revolute, position_scale)
        self.register_buffer('inverse_velocity_scale', 1.0 / torch.tensor(velocity_scale), False)
        self.factor = CholeskyFactor(n)
        inputs = self.encoding.size + n + aux_size
        levels = (2 if asymmetric else 1) * n if coulomb else 0
        self.net = JetMLP(inputs, self.factor.size + levels, width, depth, dropout)
        self.eps = eps
        self.scale = scale
        self.coulomb = coulomb
        self.coulomb_gain = coulomb_gain
        self.aux_size = aux_size
        self.asymmetric = asymmetric

    def activation(self, qd: Tensor) -> Tensor:
        """Return tanh(k qd), the sign of motion that f is multiplied by, Eq. (8)."""
        return torch.tanh(self.coulomb_gain * qd)

    def forward(self, q: Tensor, qd: Tensor, aux: Tensor | None, activation: Tensor) -> Tensor:
        """
        Return d, (B, n); with the activation of qd, `qd @ d >= 0` and d = 0 at qd = 0.

        Parameters
        ----------
        q, qd : Tensor, (B, n)
        aux : Tensor, (B, aux_size), or None
        activation : Tensor, (B, n)
            Of :meth:`activation`, or that as a low-passed recording shows it, which is for
            fitting only: it may lead or lag qd.

        """
        inputs = [self.encoding(q), qd * self.inverse_velocity_scale]
        if self.aux_size:
            if aux is None:
                raise ValueError(f'this model needs {self.aux_size} auxiliary inputs, got none')
            inputs.append(aux)
        y = self.net(torch.cat(inputs, -1))
        size = self.factor.size
        chol = self.factor(self.scale * y[:, :size])
        column = qd.unsqueeze(-1)
        d = (chol @ (chol.transpose(1, 2) @ column)).squeeze(-1) + self.eps * qd
        if self.coulomb:
            level = nn.functional.softplus(y[:, size:])
            if self.asymmetric:
                forwards, backwards = level.chunk(2, -1)
                level = torch.where(activation > 0, forwards, backwards)
            d = d + level * activation
        return d
