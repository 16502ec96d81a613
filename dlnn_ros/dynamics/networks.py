r"""
A multilayer perceptron with its tangent and its gradient written out.

A Lagrangian model needs, at one state, the network's output `y(x)`, its time derivative
`ydot = J(x) xdot` and the gradient `J(x)' ybar` of a scalar of its output.  Differentiating
those again for training through nested automatic differentiation is slow; writing them out is
not, because they share everything.  With layers `z_k = W_k a_{k-1} + b_k`, `a_k = h(z_k)`:

    tangent     adot_k    = h'(z_k) * (W_k adot_{k-1})
    gradient    abar_{k-1} = W_k' (h'(z_k) * abar_k)

so `h'(z_k)`, evaluated once, serves both, and the whole inverse dynamics becomes a plain
feed-forward computation that one ordinary backward pass trains.  Only `h`, `h'` and, in that
backward pass, `h''` are needed; for GELU with the normal density `phi` and distribution `Phi`

    h = z Phi(z),   h' = Phi + z phi,   h'' = (2 - z^2) phi.

"""

from __future__ import annotations

from collections.abc import Sequence
import itertools
import math
from typing import NamedTuple

import torch
from torch import nn, Tensor

_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


class _GeluJet(torch.autograd.Function):
    """GELU and its derivative from one evaluation of the error function."""

    @staticmethod
    def forward(ctx, z):
        """Return h(z), h'(z)."""
        Phi = torch.erf(z * _SQRT_HALF).mul_(0.5).add_(0.5)
        phi = (z * z).mul_(-0.5).exp_().mul_(_INV_SQRT_2PI)
        dh = torch.addcmul(Phi, z, phi)
        ctx.save_for_backward(z, phi, dh)
        return Phi.mul_(z), dh

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, hbar, dhbar):
        """Pull back through h and h'."""
        z, phi, dh = ctx.saved_tensors
        ddh = (z * z).neg_().add_(2.0).mul_(phi)
        return torch.addcmul(hbar * dh, dhbar, ddh)


def gelu_jet(z: Tensor) -> tuple[Tensor, Tensor]:
    """Return GELU of `z` and its derivative, each of the shape of `z`."""
    return _GeluJet.apply(z)


class Jet(NamedTuple):
    """Output of a network, its tangent, and what the gradient pass needs."""

    y: Tensor
    ydot: Tensor
    slopes: tuple[Tensor, ...]


class JetMLP(nn.Module):
    """
    Perceptron with GELU that returns value, tangent and gradient without nested autodiff.

    Parameters
    ----------
    inputs, outputs : int
        Sizes of x and y.
    width, depth : int
        Size and number of the hidden layers.
    dropout : float
        Probability of dropping a hidden unit in training, in [0, 1); value, tangent and
        gradient see the same mask, so they stay those of one function.

    """

    def __init__(
        self, inputs: int, outputs: int, width: int, depth: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        sizes = [inputs, *[width] * depth]
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        self.hidden: Sequence[nn.Linear] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.output = nn.Linear(width, outputs)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Return y(x); x is (B, inputs)."""
        for layer in self.hidden:
            x = nn.functional.gelu(layer(x))
            mask = self._mask(x)
            if mask is not None:
                x = x * mask
        return self.output(x)

    def jet(self, x: Tensor, xdot: Tensor) -> Jet:
        """Return y(x), J(x) xdot and the slopes for :meth:`gradient`; x, xdot are (B, inputs)."""
        slopes = []
        for layer in self.hidden:
            zdot = nn.functional.linear(xdot, layer.weight)
            x, slope = gelu_jet(layer(x))
            mask = self._mask(x)
            if mask is not None:
                x, slope = x * mask, slope * mask
            xdot = slope * zdot
            slopes.append(slope)
        ydot = nn.functional.linear(xdot, self.output.weight)
        return Jet(self.output(x), ydot, tuple(slopes))

    def gradient(self, slopes: Sequence[Tensor], ybar: Tensor) -> Tensor:
        """Return J(x)' ybar, (B, inputs), at the x of the jet that gave `slopes`."""
        abar = ybar @ self.output.weight
        for layer, slope in zip(reversed(self.hidden), reversed(slopes), strict=True):
            abar = (abar * slope) @ layer.weight
        return abar

    def _mask(self, x: Tensor) -> Tensor | None:
        if not self.training or self.dropout == 0.0:
            return None
        keep = 1.0 - self.dropout
        return torch.empty_like(x).bernoulli_(keep).div_(keep)


class JointEncoding(nn.Module):
    """
    Network inputs of a joint position: sin q, cos q (revolute), q / scale (prismatic), Eq. (15).

    Parameters
    ----------
    is_revolute : sequence of bool
        One per joint.
    scale : sequence of float
        Typical travel of each prismatic joint [m]; ignored for revolute joints.

    """

    revolute: Tensor
    prismatic: Tensor
    inverse_scale: Tensor

    def __init__(self, is_revolute: Sequence[bool], scale: Sequence[float]) -> None:
        super().__init__()
        revolute = [i for i, r in enumerate(is_revolute) if r]
        prismatic = [i for i, r in enumerate(is_revolute) if not r]
        self.register_buffer('revolute', torch.tensor(revolute, dtype=torch.long), False)
        self.register_buffer('prismatic', torch.tensor(prismatic, dtype=torch.long), False)
        travel = torch.tensor([scale[i] for i in prismatic])
        self.register_buffer('inverse_scale', 1.0 / travel, False)
        self.n = len(is_revolute)
        self.size = 2 * len(revolute) + len(prismatic)
        self._all_revolute = not prismatic

    def forward(self, q: Tensor) -> Tensor:
        """Return the inputs, (B, size), of q, (B, n)."""
        r = q if self._all_revolute else q[:, self.revolute]
        parts = [torch.sin(r), torch.cos(r)]
        if not self._all_revolute:
            parts.append(q[:, self.prismatic] * self.inverse_scale)
        return torch.cat(parts, -1)

    def tangent(self, x: Tensor, qd: Tensor) -> Tensor:
        """Return d/dt of the inputs x at velocity qd, (B, size)."""
        m = len(self.revolute)
        r = qd if self._all_revolute else qd[:, self.revolute]
        parts = [x[:, m : 2 * m] * r, -x[:, :m] * r]
        if not self._all_revolute:
            parts.append(qd[:, self.prismatic] * self.inverse_scale)
        return torch.cat(parts, -1)

    def gradient(self, x: Tensor, xbar: Tensor) -> Tensor:
        """Pull a gradient with respect to the inputs back to q, (B, n)."""
        m = len(self.revolute)
        r = xbar[:, :m] * x[:, m : 2 * m] - xbar[:, m : 2 * m] * x[:, :m]
        if self._all_revolute:
            return r
        qbar = xbar.new_zeros(len(xbar), self.n)
        qbar[:, self.revolute] = r
        qbar[:, self.prismatic] = xbar[:, 2 * m :] * self.inverse_scale
        return qbar


class CholeskyFactor(nn.Module):
    """
    Lower-triangular factor with positive diagonal from a network's output, Eq. (3).

    The n (n + 1) / 2 outputs fill the lower triangle row by row; the diagonal passes softplus.
    """

    index: Tensor
    is_diagonal: Tensor

    def __init__(self, n: int) -> None:
        super().__init__()
        rows, columns = torch.tril_indices(n, n)
        self.register_buffer('index', rows * n + columns, False)
        self.register_buffer('is_diagonal', rows == columns, False)
        self.n = n
        self.size = len(rows)

    def forward(self, y: Tensor) -> Tensor:
        """Return the factor, (B, n, n), of outputs y, (B, size)."""
        return self.fill(torch.where(self.is_diagonal, nn.functional.softplus(y), y))

    def slope(self, y: Tensor) -> Tensor:
        """Return d(entry)/dy, (B, size)."""
        return torch.where(self.is_diagonal, torch.sigmoid(y), torch.ones_like(y))

    def fill(self, entries: Tensor) -> Tensor:
        """Place entries, (B, size), in the lower triangle of (B, n, n)."""
        flat = entries.new_zeros(len(entries), self.n * self.n)
        return flat.index_copy(1, self.index, entries).view(-1, self.n, self.n)

    def gather(self, matrix: Tensor) -> Tensor:
        """Take the lower triangle of (B, n, n) as (B, size)."""
        return matrix.reshape(-1, self.n * self.n)[:, self.index]
