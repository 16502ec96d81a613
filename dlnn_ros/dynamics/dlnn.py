"""The Dissipative Lagrangian Neural Network: Eqs. (1)-(9) and (15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .conservative import ConservativeNetwork
from .dissipation import DissipationNetwork
from .model import flatten, InverseDynamicsModel


@dataclass(frozen=True)
class DlnnConfig:
    """
    Architecture of a dLNN.

    Attributes
    ----------
    width, depth : int
        Hidden layers of the conservative network.
    dissipation_width, dissipation_depth : int
        Hidden layers of the dissipation network.
    dropout : float
        In the conservative network, in [0, 1).
    mass_eps, dissipation_eps : float
        Lower bounds of the eigenvalues of M and D in units of the torque scale, > 0.
    dissipation_scale : float
        Factor on chol_D, > 0.
    coulomb : bool
        Term f tanh(k qd), Eq. (8).
    coulomb_gain : float
        k [s/rad], > 0.
    dissipative : bool
        False gives a Lagrangian network without friction (DeLaN, LNN).
    aux_size : int
        Auxiliary inputs of the dissipation network, >= 0.

    """

    width: int = 128
    depth: int = 3
    dissipation_width: int = 64
    dissipation_depth: int = 3
    dropout: float = 0.0
    mass_eps: float = 1e-2
    dissipation_eps: float = 1e-2
    dissipation_scale: float = 0.1
    coulomb: bool = True
    coulomb_gain: float = 1e6
    dissipative: bool = True
    aux_size: int = 0

    def __post_init__(self) -> None:
        for name in ('width', 'depth', 'dissipation_width', 'dissipation_depth'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} is {getattr(self, name)}, must be at least 1')
        for name in ('mass_eps', 'dissipation_eps', 'dissipation_scale', 'coulomb_gain'):
            if not getattr(self, name) > 0:
                raise ValueError(f'{name} is {getattr(self, name)}, must be > 0')
        if not 0 <= self.dropout < 1:
            raise ValueError(f'dropout is {self.dropout}, must be in [0, 1)')
        if self.aux_size < 0:
            raise ValueError(f'aux_size is {self.aux_size}, must be >= 0')


@dataclass(frozen=True)
class Scales:
    """
    Units the networks work in, taken from the training data once.

    Attributes
    ----------
    torque : float
        One factor on M, V and D [N m]: one, so that energies stay energies.
    velocity, acceleration : tuple of float
        Typical speed and acceleration per joint [rad/s | m/s, /s^2].
    position : tuple of float
        Typical travel per joint [m]; used for prismatic joints only.

    """

    torque: float
    velocity: tuple[float, ...]
    acceleration: tuple[float, ...]
    position: tuple[float, ...]

    def __post_init__(self) -> None:
        if not min(self.torque, *self.velocity, *self.acceleration, *self.position) > 0:
            raise ValueError(f'scales must be > 0, got {self}')


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
