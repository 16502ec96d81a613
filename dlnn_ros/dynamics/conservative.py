r"""
The conservative half: kinetic energy from a Cholesky factor, potential energy, one network.

With `M = chol chol' + eps I` (`chol` the Cholesky factor, Eq. 3) and `u = chol' qd`:

    T          = (|u|^2 + eps |qd|^2) / 2                                          Eq. (2)
    Mdot qd    = chol (chol_dot' qd) + chol_dot u
    dT/dchol_ij = qd_i u_j

`chol`, `V` come from one trunk; `chol_dot` is the trunk's tangent in the direction of motion, and
`grad_q (T - V)` is one gradient pass with `dT/dchol` and -1 at its outputs.  Then, Eqs. (1), (4):

    tau = M qdd + Mdot qd - grad_q (T - V) = M qdd + c + g.

Nothing of size dM/dq is ever built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn, Tensor

from .networks import CholeskyFactor, JetMLP, JointEncoding


class ConservativeTerms(NamedTuple):
    """M (B, n, n), c and g (B, n)."""

    M: Tensor
    c: Tensor
    g: Tensor


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


class ConservativeNetwork(nn.Module):
    """
    M(q) and V(q) from one network, and the torque they give; Eqs. (1)-(4).

    Whatever prescribes M and V another way (a rigid-body model, a symbolic one) offers the
    same four methods and takes this one's place in :class:`~.dlnn.LagrangianModel`.

    Parameters
    ----------
    is_revolute, position_scale : sequences, n
        See :class:`~.networks.JointEncoding`.
    width, depth, dropout : see :class:`~.networks.JetMLP`
    eps : float
        Lower bound of the eigenvalues of M, > 0, in the model's unit of torque per rad/s^2.
    has_gravity : bool
        False leaves V out, for efforts recorded with the gravity torque taken out.

    """

    def __init__(
        self,
        is_revolute: Sequence[bool],
        position_scale: Sequence[float],
        width: int,
        depth: int,
        dropout: float,
        eps: float,
        has_gravity: bool = True,
    ) -> None:
        super().__init__()
        self.encoding = JointEncoding(is_revolute, position_scale)
        self.factor = CholeskyFactor(len(is_revolute))
        outputs = self.factor.size + int(has_gravity)
        self.trunk = JetMLP(self.encoding.size, outputs, width, depth, dropout)
        self.eps = eps
        self.has_gravity = has_gravity

    def inverse(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Return M qdd + c + g, (B, n), by one tangent and one gradient pass."""
        x, jet, chol, chol_dot, slope = self._jet(q, qd)
        chol_t = chol.transpose(1, 2)
        u = _times(chol_t, qd)
        inertial = _times(chol, _times(chol_t, qdd) + _times(chol_dot.transpose(1, 2), qd))
        momentum_rate = inertial + self.eps * qdd + _times(chol_dot, u)
        ybar = slope * self.factor.gather(qd.unsqueeze(2) * u.unsqueeze(1))
        if self.has_gravity:
            ybar = torch.cat([ybar, ybar.new_full((len(q), 1), -1.0)], -1)
        gradient = self.encoding.gradient(x, self.trunk.gradient(jet.slopes, ybar))
        return momentum_rate - gradient

    def terms(self, q: Tensor, qd: Tensor) -> ConservativeTerms:
        """Return M, c and g apart; one more gradient pass than :meth:`inverse`."""
        x, jet, chol, chol_dot, slope = self._jet(q, qd)
        chol_t = chol.transpose(1, 2)
        u = _times(chol_t, qd)
        M = chol @ chol_t + self.eps * torch.eye(self.factor.n, dtype=q.dtype, device=q.device)
        Mdot_qd = _times(chol, _times(chol_dot.transpose(1, 2), qd)) + _times(chol_dot, u)
        ybar = torch.zeros_like(jet.y)
        ybar[:, : self.factor.size] = slope * self.factor.gather(qd.unsqueeze(2) * u.unsqueeze(1))
        grad_T = self.encoding.gradient(x, self.trunk.gradient(jet.slopes, ybar))
        g = torch.zeros_like(q)
        if self.has_gravity:
            ybar = torch.zeros_like(jet.y)
            ybar[:, -1] = 1.0
            g = self.encoding.gradient(x, self.trunk.gradient(jet.slopes, ybar))
        return ConservativeTerms(M, Mdot_qd - grad_T, g)

    def mass_matrix(self, q: Tensor) -> Tensor:
        """Return M, (B, n, n), Eq. (3)."""
        chol = self.factor(self.trunk(self.encoding(q))[:, : self.factor.size])
        eye = torch.eye(self.factor.n, dtype=q.dtype, device=q.device)
        return chol @ chol.transpose(1, 2) + self.eps * eye

    def potential(self, q: Tensor) -> Tensor:
        """Return V, (B,); its constant is arbitrary (Eq. 11)."""
        if not self.has_gravity:
            return q.new_zeros(len(q))
        return self.trunk(self.encoding(q))[:, -1]

    def _jet(self, q: Tensor, qd: Tensor):
        x = self.encoding(q)
        jet = self.trunk.jet(x, self.encoding.tangent(x, qd))
        size = self.factor.size
        y, ydot = jet.y[:, :size], jet.ydot[:, :size]
        slope = self.factor.slope(y)
        return x, jet, self.factor(y), self.factor.fill(slope * ydot), slope
