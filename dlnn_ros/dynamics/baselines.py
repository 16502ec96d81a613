"""Models without physical structure, Eq. (16): a perceptron and a linear map."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn, Tensor

from .architecture import LinearConfig, MlpConfig, Scales, WAY_GAIN
from .model import Context, flatten, InverseDynamicsModel
from .networks import JetMLP, JointEncoding


class MlpModel(InverseDynamicsModel):
    """
    Torque as a perceptron of sin q, cos q, qd, qdd and, by option, sign(qd) and past samples.

    With a window of W samples the state is (..., n, 2 W): the last W positions and velocities,
    the oldest first; at the start the robot stood still.  The context of a sample, also
    (..., n, 2 W), is how far it has come since each of them [rad | m] and their velocities [/s].
    """

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
        self.window = config.window
        self.state_size = 2 * config.window
        signs = self.n if config.velocity_sign else 0
        inputs = self.encoding.size + 2 * self.n + signs + self.window * (2 * self.n + signs)
        self.net = JetMLP(inputs, self.n, config.width, config.depth, config.dropout)
        self.torque_scale = scales.torque

    def initial_state(self, q: Tensor, tau: Tensor | None = None) -> Tensor:
        """Return the window of a robot that has stood at q, (..., n, 2 W); tau tells nothing."""
        del tau
        past = q.unsqueeze(-1).expand(*q.shape, self.window)
        return torch.cat([past, torch.zeros_like(past)], -1)

    def context(self, state: Tensor, q: Tensor, qd: Tensor, dt: Tensor) -> Context:
        """Return the way since, and the velocity of, the samples before, (..., N, n, 2 W)."""
        if not self.window:
            return super().context(state, q, qd, dt)
        past = state.transpose(-1, -2)
        q = torch.cat([past[..., : self.window, :], q], -2)
        qd = torch.cat([past[..., self.window :, :], qd], -2)
        positions, velocities = (x.unfold(-2, self.window + 1, 1) for x in (q, qd))
        way = positions[..., -1:] - positions[..., :-1]
        recent = torch.cat([q[..., -self.window :, :], qd[..., -self.window :, :]], -2)
        return Context(torch.cat([way, velocities[..., :-1]], -1), recent.transpose(-1, -2))

    def torque(
        self,
        q: Tensor,
        qd: Tensor,
        qdd: Tensor,
        context: Tensor | None = None,
        aux: Tensor | None = None,
    ) -> Tensor:
        """Return tau, (..., n) [N m | N]."""
        del aux
        lead, (q, qd, qdd) = flatten(self.n, q, qd, qdd)
        inputs = [self.encoding(q), qd * self.inverse_velocity, qdd * self.inverse_acceleration]
        if self.velocity_sign:
            inputs.append(torch.sign(qd))
        if self.window:
            if context is None:
                raise ValueError('this model has a window: its torque needs the context')
            inputs += self._past(context.reshape(-1, self.n, self.state_size))
        tau = self.torque_scale * self.net(torch.cat(inputs, -1))
        return tau.view(*lead, self.n)

    def _past(self, context: Tensor) -> list[Tensor]:
        """Return the inputs of the window, each (B, W n)."""
        way, qd = context.transpose(-1, -2).split(self.window, 1)
        parts = [torch.asinh(way * WAY_GAIN), qd * self.inverse_velocity]
        if self.velocity_sign:
            parts.append(torch.sign(qd))
        return [x.flatten(1) for x in parts]


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
