"""The Dissipative Lagrangian Neural Network: Eqs. (1)-(9) and (15)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .architecture import DlnnConfig, Scales
from .conservative import ConservativeNetwork
from .dissipation import DissipationNetwork
from .model import flatten, InverseDynamicsModel


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

    Parameters
    ----------
    n : int
        Number of joints.
    conservative : ConservativeNetwork
        Or whatever offers its `inverse`, `terms`, `mass_matrix` and `potential`.
    dissipation : DissipationNetwork or None
        Or any `d(q, qd, aux)` with `qd @ d >= 0`.
    torque_scale : float
        Unit of torque of both parts [N m].

    """

    def __init__(
        self,
        n: int,
        conservative: ConservativeNetwork,
        dissipation: DissipationNetwork | None,
        torque_scale: float,
    ) -> None:
        super().__init__()
        self.n = n
        self.conservative = conservative
        self.dissipation = dissipation
        self.torque_scale = torque_scale

    def _flatten(
        self, aux: Tensor | None, *arrays: Tensor
    ) -> tuple[tuple[int, ...], list[Tensor], Tensor | None]:
        if aux is None:
            return (*flatten(self.n, *arrays), None)
        lead, flat = flatten(self.n, *arrays, aux)
        return lead, flat[:-1], flat[-1]

    def inverse_dynamics(
        self, q: Tensor, qd: Tensor, qdd: Tensor, aux: Tensor | None = None
    ) -> Tensor:
        """Return tau = M qdd + c + g + d, (..., n) [N m | N], Eq. (5)."""
        lead, (q, qd, qdd), aux = self._flatten(aux, q, qd, qdd)
        tau = self.conservative.inverse(q, qd, qdd)
        if self.dissipation is not None:
            tau = tau + self.dissipation(q, qd, aux)
        return (self.torque_scale * tau).view(*lead, self.n)

    def terms(self, q: Tensor, qd: Tensor, aux: Tensor | None = None) -> Terms:
        """Return M, c, g, d apart, Eqs. (3), (4), (7), (8)."""
        lead, (q, qd), aux = self._flatten(aux, q, qd)
        M, c, g = self.conservative.terms(q, qd)
        d = torch.zeros_like(c) if self.dissipation is None else self.dissipation(q, qd, aux)
        M = (self.torque_scale * M).view(*lead, self.n, self.n)
        return Terms(M, *((self.torque_scale * x).view(*lead, self.n) for x in (c, g, d)))

    def forward_dynamics(
        self, q: Tensor, qd: Tensor, tau: Tensor, aux: Tensor | None = None
    ) -> Tensor:
        """Return qdd = M^-1 (tau - c - g - d), (..., n), by a Cholesky solve, Eq. (6)."""
        M, c, g, d = self.terms(q, qd, aux)
        rest = (tau - c - g - d).unsqueeze(-1)
        return torch.cholesky_solve(rest, torch.linalg.cholesky(M)).squeeze(-1)

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
        self, q: Tensor, qd: Tensor, qdd: Tensor, aux: Tensor | None = None
    ) -> Power:
        """Return dE/dt, qd'tau and qd'd, each (...) [W], Eq. (9)."""
        tau = self.inverse_dynamics(q, qd, qdd, aux)
        d = self.terms(q, qd, aux).d
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
        )
    return LagrangianModel(len(is_revolute), conservative, dissipation, scales.torque)
