"""The Dissipative Lagrangian Neural Network: Eqs. (1)-(9), (15) and (19)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .architecture import DlnnConfig, DlnnMemoryConfig, Scales
from .conservative import ConservativeNetwork
from .dissipation import DissipationNetwork
from .linear_friction import LinearDissipation
from .memory import FrictionMemory
from .model import Context, flatten, InverseDynamicsModel
from .trigonometric import TrigonometricConservative


class Terms(NamedTuple):
    """Mass matrix (..., n, n) and torques (..., n): tau = M qdd + c + g + d, Eq. (5)."""

    M: Tensor
    c: Tensor
    g: Tensor
    d: Tensor


class Power(NamedTuple):
    """Power balance at one state [W], Eq. (9): energy_rate = input - dissipated."""

    energy_rate: Tensor
    input: Tensor
    dissipated: Tensor


class LagrangianModel(InverseDynamicsModel):
    """
    Inverse and forward dynamics of a conservative part and a passive dissipation.

    The context of a sample, (..., n, 1 + J), is the sign of motion, tanh(k qd) of Eq. (8), and
    the states of the J memory elements of each joint, Eq. (19); it is empty without dissipation.

    Parameters
    ----------
    n : int
        Number of joints.
    conservative : ConservativeNetwork or TrigonometricConservative
        Or whatever offers its `inverse`, `terms`, `mass_matrix` and `potential`.
    dissipation : DissipationNetwork, LinearDissipation or None
        Or whatever offers its `activation` and `forward` with `qd @ d >= 0`.
    torque_scale : float
        Unit of torque of all parts [N m].
    memory : FrictionMemory or None
        Friction that depends on the past; only beside a dissipation.

    """

    def __init__(
        self,
        n: int,
        conservative: ConservativeNetwork | TrigonometricConservative,
        dissipation: DissipationNetwork | LinearDissipation | None,
        torque_scale: float,
        memory: FrictionMemory | None = None,
    ) -> None:
        super().__init__()
        self.n = n
        self.conservative = conservative
        self.dissipation = dissipation
        self.torque_scale = torque_scale
        self.memory = memory
        self.state_size = 0 if memory is None else memory.size + 1
        self.is_sharp = dissipation is not None

    def context(self, state: Tensor, q: Tensor, qd: Tensor, dt: Tensor) -> Context:
        """Return the sign of motion and the memory along a path, Eqs. (8) and (19)."""
        if self.dissipation is None:
            return super().context(state, q, qd, dt)
        sign = self.dissipation.activation(qd).unsqueeze(-1)
        if self.memory is None:
            return Context(sign, state)
        run = self.memory.run(state, q, qd, dt)
        return Context(torch.cat([sign.to(run.y.dtype), run.y], -1), run.state)

    def initial_state(self, q: Tensor, tau: Tensor | None = None) -> Tensor:
        """
        Return the state at the start of a motion, (..., n, state_size).

        Unbent elements; or, from a torque measured at rest, all of a joint bent alike so that
        they hold what gravity leaves of it, as far as they can.
        """
        lead, (q,) = flatten(self.n, q)
        y = q.new_zeros(*q.shape, max(0, self.state_size - 1))
        if self.memory is None:
            return y.view(*lead, self.n, 0)
        if tau is not None:
            still = torch.zeros_like(q)
            held = tau.reshape(q.shape) / self.torque_scale
            y = self.memory.start(q, held - self.conservative.inverse(q, still, still))
        return torch.cat([y, q.unsqueeze(-1)], -1).view(*lead, self.n, self.state_size)

    def torque(
        self,
        q: Tensor,
        qd: Tensor,
        qdd: Tensor,
        context: Tensor | None = None,
        aux: Tensor | None = None,
    ) -> Tensor:
        """Return tau = M qdd + c + g + d, (..., n) [N m | N], Eq. (5)."""
        lead, (q, qd, qdd), aux = self._flatten(aux, q, qd, qdd)
        tau = self.conservative.inverse(q, qd, qdd)
        d = self._dissipate(q, qd, context, aux)
        return (self.torque_scale * (tau if d is None else tau + d)).view(*lead, self.n)

    def terms(
        self, q: Tensor, qd: Tensor, aux: Tensor | None = None, context: Tensor | None = None
    ) -> Terms:
        """Return M, c, g, d apart, Eqs. (3), (4), (7), (8), (19)."""
        lead, (q, qd), aux = self._flatten(aux, q, qd)
        M, c, g = self.conservative.terms(q, qd)
        d = self._dissipate(q, qd, context, aux)
        d = torch.zeros_like(c) if d is None else d
        M = (self.torque_scale * M).view(*lead, self.n, self.n)
        return Terms(M, *((self.torque_scale * x).view(*lead, self.n) for x in (c, g, d)))

    def forward_dynamics(
        self,
        q: Tensor,
        qd: Tensor,
        tau: Tensor,
        aux: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """Return qdd = M^-1 (tau - c - g - d), (..., n), by a Cholesky solve, Eq. (6)."""
        M, c, g, d = self.terms(q, qd, aux, context)
        rest = (tau - c - g - d).unsqueeze(-1)
        return torch.cholesky_solve(rest, torch.linalg.cholesky(M)).squeeze(-1)

    def stored_energy(self, q: Tensor, context: Tensor) -> Tensor:
        """Return what the memory elements store, (...) [J], Eq. (19)."""
        assert self.memory is not None
        lead, (q,) = flatten(self.n, q)
        y = context[..., 1:].reshape(-1, self.n, self.memory.size)
        return (self.torque_scale * self.memory.stored(q, y)).view(lead)

    def memory_torque(self, q: Tensor, context: Tensor) -> Tensor:
        """Return the part of d that remembers, (..., n) [N m | N], Eq. (19)."""
        assert self.memory is not None
        lead, (q,) = flatten(self.n, q)
        y = context[..., 1:].reshape(-1, self.n, self.memory.size)
        return (self.torque_scale * self.memory.force(q, y)).view(*lead, self.n)

    def _flatten(
        self, aux: Tensor | None, *arrays: Tensor
    ) -> tuple[tuple[int, ...], list[Tensor], Tensor | None]:
        if aux is None:
            return (*flatten(self.n, *arrays), None)
        lead, flat = flatten(self.n, *arrays, aux)
        return lead, flat[:-1], flat[-1]

    def _dissipate(
        self, q: Tensor, qd: Tensor, context: Tensor | None, aux: Tensor | None
    ) -> Tensor | None:
        """Return d, (B, n), in the model's unit of torque; None without dissipation."""
        if self.dissipation is None:
            return None
        if context is None:
            if self.memory is not None:
                raise ValueError(
                    'this model has memory: its torque needs the context of `context`'
                )
            return self.dissipation(q, qd, aux, self.dissipation.activation(qd))
        context = context.reshape(-1, self.n, context.shape[-1])
        d = self.dissipation(q, qd, aux, context[..., 0])
        return d if self.memory is None else d + self.memory.force(q, context[..., 1:])

    def mass_matrix(self, q: Tensor) -> Tensor:
        """Return M(q), (..., n, n) [kg m^2], Eq. (3)."""
        lead, (q,) = flatten(self.n, q)
        return (self.torque_scale * self.conservative.mass_matrix(q)).view(*lead, self.n, self.n)

    def energy(self, q: Tensor, qd: Tensor) -> Tensor:
        """Return E = qd' M qd / 2 + V, (...) [J], Eq. (9); its zero is arbitrary."""
        lead, (q, qd) = flatten(self.n, q, qd)
        kinetic = 0.5 * torch.einsum('bi,bij,bj->b', qd, self.conservative.mass_matrix(q), qd)
        return (self.torque_scale * (kinetic + self.conservative.potential(q))).view(lead)

    def power_balance(
        self,
        q: Tensor,
        qd: Tensor,
        qdd: Tensor,
        aux: Tensor | None = None,
        context: Tensor | None = None,
    ) -> Power:
        """
        Return dE/dt, qd'tau and qd'd, each (...) [W], Eq. (9).

        With memory `dissipated` counts what goes into the elements too, and E leaves it out.
        """
        tau = self.torque(q, qd, qdd, context, aux)
        d = self.terms(q, qd, aux, context).d
        supplied, dissipated = (qd * tau).sum(-1), (qd * d).sum(-1)
        return Power(supplied - dissipated, supplied, dissipated)


def make_dlnn(
    config: DlnnConfig, scales: Scales, is_revolute: tuple[bool, ...], has_gravity: bool = True
) -> LagrangianModel:
    """Build an untrained dLNN for joints of the given kinds, Eq. (15)."""
    conservative = ConservativeNetwork(
        is_revolute,
        scales.position,
        config.width,
        config.depth,
        config.dropout,
        config.mass_eps,
        has_gravity,
    )
    dissipation = None
    if config.dissipative:
        dissipation = DissipationNetwork(
            is_revolute,
            scales.position,
            scales.velocity,
            config.dissipation_width,
            config.dissipation_depth,
            0.0,
            config.dissipation_eps,
            config.dissipation_scale,
            config.coulomb,
            config.coulomb_gain,
            config.aux_size,
            config.asymmetric,
        )
    memory = None
    if isinstance(config, DlnnMemoryConfig):
        memory = FrictionMemory(config.memory, is_revolute, scales.position)
    return LagrangianModel(len(is_revolute), conservative, dissipation, scales.torque, memory)
