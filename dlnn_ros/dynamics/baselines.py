"""Models without physical structure, Eq. (16): a perceptron and a linear map."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn, Tensor

from .architecture import LinearConfig, MlpConfig, Scales
from .model import flatten, InverseDynamicsModel
from .networks import JetMLP, JointEncoding


class MlpModel(InverseDynamicsModel):
    """Torque as a perceptron of sin q, cos q, qd, qdd and, by option, sign(qd)."""

    inverse_velocity: Tensor
    inverse_acceleration: Tensor

    def __init__(
        self,
        config: MlpConfig,
        scales: Scales,
        is_revolute: Sequence[bool],
    ) -> None:
        super().__init__()
        self.n = len(is_revolute)
        self.encoding = JointEncoding(is_revolute, scales.position)
        self.register_buffer('inverse_velocity', 1.0 / torch.tensor(scales.velocity), False)
        self.register_buffer(
            'inverse_acceleration', 1.0 / torch.tensor(scales.acceleration), False
        )
        self.velocity_sign = config.velocity_sign
        inputs = self.encoding.size + (3 if config.velocity_sign else 2) * self.n
        self.net = JetMLP(inputs, self.n, config.width, config.depth, config.dropout)
        self.torque_scale = scales.torque

    def torque(
        self,
        q: Tensor,
        qd: Tensor,
        qdd: Tensor,
        context: Tensor | None = None,
        aux: Tensor | None = None,
    ) -> Tensor:
        """Return tau, (..., n) [N m | N]."""
        del context, aux
        lead, (q, qd, qdd) = flatten(self.n, q, qd, qdd)
        inputs = [self.encoding(q), qd * self.inverse_velocity, qdd * self.inverse_acceleration]
        if self.velocity_sign:
            inputs.append(torch.sign(qd))
        tau = self.torque_scale * self.net(torch.cat(inputs, -1))
        return tau.view(*lead, self.n)


class LinearModel(InverseDynamicsModel):
    """The benchmark authors' map: torque linear in q, qd, qdd (6 x 18), and options."""

    def __init__(self, config: LinearConfig, n: int) -> None:
        super().__init__()
        self.n = n
        self.config = config
        features = 3 * n + (n if config.velocity_sign else 0) + int(config.bias)
        self.weight = nn.Parameter(torch.zeros(n, features))

    def features(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Return the regressors, (B, features)."""
        parts = [q, qd, qdd]
        if self.config.velocity_sign:
            parts.append(torch.sign(qd))
        if self.config.bias:
            parts.append(q.new_ones(len(q), 1))
        return torch.cat(parts, -1)

    def torque(
        self,
        q: Tensor,
        qd: Tensor,
        qdd: Tensor,
        context: Tensor | None = None,
        aux: Tensor | None = None,
    ) -> Tensor:
        """Return tau, (..., n) [N m | N]."""
        del context, aux
        lead, (q, qd, qdd) = flatten(self.n, q, qd, qdd)
        return (self.features(q, qd, qdd) @ self.weight.T).view(*lead, self.n)

    @torch.no_grad()
    def fit(self, q: Tensor, qd: Tensor, qdd: Tensor, tau: Tensor) -> None:
        """Set the weights by ridge regression on columns of unit scale; arrays (N, n)."""
        A = self.features(q, qd, qdd)
        column = A.square().mean(0).sqrt().clamp_min(torch.finfo(A.dtype).tiny)
        A = A / column
        gram = A.T @ A + self.config.ridge * len(A) * torch.eye(A.shape[1], dtype=A.dtype)
        self.weight.copy_((torch.linalg.solve(gram, A.T @ tau) / column.unsqueeze(1)).T)
