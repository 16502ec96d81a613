r"""
Partly non-negative least squares for models that are linear in their parameters, Eq. (21).

With the weighted samples `u tau = u (X a + Z b)`, X (rows, K) the columns of M and V, and Z those
of friction and memory, of which each joint has its own F, the fit is

    min  |u (X a + Z b - tau)|^2 / N + ridge (|S_a a|^2 + |S_b b|^2),    b >= 0,

S the root mean squares of the columns, so that `ridge` has no unit.  Only the normal equations
are kept, accumulated in chunks of samples.  On columns of unit size, A + ridge I in blocks,

    [ A_aa  A_ab ] [a]   [r_a]        G     = A_bb - A_ab' A_aa^-1 A_ab,
    [ A_ab' A_bb ] [b] = [r_b],       r     = r_b - A_ab' A_aa^-1 r_a,

the minimum over a leaves b' G b / 2 - r'b, and with G = R'R that is the non-negative least
squares problem  min |R b - R'^-1 r|, b >= 0,  of some hundred unknowns (Lawson and Hanson);
a = A_aa^-1 (r_a - A_ab b) follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import copy
from typing import NamedTuple

from dlnn_ros.dynamics.dlnn import LagrangianModel
from dlnn_ros.dynamics.linear_friction import LinearDissipation
from dlnn_ros.dynamics.memory import FrictionMemory
from dlnn_ros.dynamics.trigonometric import TrigonometricConservative
import numpy as np
from scipy.linalg import block_diag, cho_factor, cho_solve, cholesky, LinAlgError, solve_triangular
from scipy.optimize import nnls
import torch
from torch import Tensor

CHUNK = 512  # samples; 20 MB of columns for 6 joints and 800 terms


class Solution(NamedTuple):
    """Coefficients of M and V, (K,), and of friction and memory, (n, F), the latter >= 0."""

    free: np.ndarray
    friction: np.ndarray


class LinearProblem:
    """
    Normal equations of the fit, accumulated; float64.

    Parameters
    ----------
    n, free, friction : int
        Number of joints, of columns of M and V (K), of friction columns per joint (F).

    """

    def __init__(self, n: int, free: int, friction: int) -> None:
        self.samples = 0
        self._aa = np.zeros((free, free))
        self._ab = np.zeros((free, n, friction))
        self._bb = np.zeros((n, friction, friction))
        self._ra = np.zeros(free)
        self._rb = np.zeros((n, friction))
        self._square = 0.0

    def add(
        self, regressor: np.ndarray, friction: np.ndarray, tau: np.ndarray, weight: np.ndarray
    ) -> None:
        """
        Take in samples.

        Parameters
        ----------
        regressor : array, (B, n, K)
            Columns of M and V.
        friction : array, (B, n, F)
            Columns of friction and memory; those of one joint act on that joint.
        tau : array, (B, n)
            Torque, in the unit of the coefficients.
        weight : array, (n,) or (B, n)
            Factor on the errors, >= 0.

        """
        weight = np.broadcast_to(weight, tau.shape)
        self.samples += len(tau)
        for i in range(tau.shape[1]):
            u = weight[:, i]
            Z = friction[:, i] * u[:, None]
            y = tau[:, i] * u
            # Half of the columns do not act on a given joint.
            X_t = regressor[:, i].T
            acting = np.flatnonzero(X_t.any(1))
            X_t = X_t[acting] * u
            self._aa[np.ix_(acting, acting)] += X_t @ X_t.T
            self._ab[acting, i] += X_t @ Z
            self._bb[i] += Z.T @ Z
            self._ra[acting] += X_t @ y
            self._rb[i] += Z.T @ y
            self._square += float(y @ y)

    def __add__(self, other: LinearProblem) -> LinearProblem:
        """Return the problem with the samples of both."""
        return self._combined(other, 1)

    def __sub__(self, other: LinearProblem) -> LinearProblem:
        """Return the problem without the samples of the other, which it contains."""
        return self._combined(other, -1)

    def _combined(self, other: LinearProblem, sign: int) -> LinearProblem:
        total = copy.copy(self)
        for name, value in vars(other).items():
            setattr(total, name, getattr(self, name) + sign * value)
        return total

    def solve(self, ridge: float) -> Solution:
        """
        Return the minimiser; cheap beside :meth:`add`, so that many ridges can be tried.

        Raises
        ------
        ValueError
            If there are no samples, or they do not determine the coefficients and `ridge` is
            too small to do so.

        """
        if self.samples == 0:
            raise ValueError('linear fit: no samples')
        n, F = self._rb.shape
        A_aa, A_ab = self._aa / self.samples, self._ab.reshape(-1, n * F) / self.samples
        A_bb = block_diag(*self._bb) / self.samples
        r_a, r_b = self._ra / self.samples, self._rb.ravel() / self.samples
        S_a, S_b = _unit(A_aa), _unit(A_bb)
        A_aa, A_bb = _scaled(A_aa, S_a, ridge), _scaled(A_bb, S_b, ridge)
        A_ab, r_a, r_b = A_ab / np.outer(S_a, S_b), r_a / S_a, r_b / S_b
        try:
            factor = cho_factor(A_aa, lower=True)
            eliminated = cho_solve(factor, np.column_stack([A_ab, r_a]))
            G = A_bb - A_ab.T @ eliminated[:, :-1]
            R = cholesky(0.5 * (G + G.T))
        except LinAlgError as error:
            raise ValueError(
                f'linear fit: {self.samples} samples do not determine the coefficients with '
                f'ridge {ridge:g}; increase it, or reduce the degrees'
            ) from error
        b, _ = nnls(R, solve_triangular(R, r_b - A_ab.T @ eliminated[:, -1], trans='T'))
        a = eliminated[:, -1] - eliminated[:, :-1] @ b
        return Solution(a / S_a, (b / S_b).reshape(n, F))

    def loss(self, solution: Solution) -> float:
        """Return the weighted mean square of the torque error over samples and joints."""
        a, b = solution
        quadratic = a @ self._aa @ a + 2.0 * np.tensordot(
            a @ self._ab.reshape(len(a), -1), b.ravel(), 1
        )
        quadratic += np.einsum('if,ifg,ig', b, self._bb, b)
        linear = a @ self._ra + np.sum(b * self._rb)
        return float(quadratic - 2.0 * linear + self._square) / (self.samples * len(b))


def _unit(gram: np.ndarray) -> np.ndarray:
    """Return the root mean squares of the columns; 1 for those that are zero."""
    rms = np.sqrt(np.diag(gram))
    return np.where(rms > 0, rms, 1.0)


def _scaled(gram: np.ndarray, scale: np.ndarray, ridge: float) -> np.ndarray:
    """Return the Gram matrix of columns of unit size, with the ridge; 1 for zero columns."""
    gram = gram / np.outer(scale, scale)
    np.fill_diagonal(gram, np.where(np.diag(gram) > 0, np.diag(gram) + ridge, 1.0))
    return gram


class Columns(NamedTuple):
    """A chunk of samples as columns: (B, n, K), (B, n, F); torque in model units (B, n)."""

    regressor: np.ndarray
    friction: np.ndarray
    tau: np.ndarray


class Motion(NamedTuple):
    """
    Samples to fit: q, qd, qdd, tau (N, n) and the context (N, n, 1 + J), tensors of float64.

    The context is the activation of Coulomb friction and the states of the memory elements.
    """

    q: Tensor
    qd: Tensor
    qdd: Tensor
    context: Tensor
    tau: Tensor


class Parts(NamedTuple):
    """The parts of a model whose torque is linear in its parameters."""

    conservative: TrigonometricConservative
    dissipation: LinearDissipation
    memory: FrictionMemory | None


def parts_of(model: LagrangianModel) -> Parts:
    """Return the parts of a model; it must be of the linear kind."""
    conservative, dissipation = model.conservative, model.dissipation
    assert isinstance(conservative, TrigonometricConservative)
    assert isinstance(dissipation, LinearDissipation)
    return Parts(conservative, dissipation, model.memory)


@torch.no_grad()
def columns(model: LagrangianModel, motion: Motion) -> Iterator[Columns]:
    """Yield chunks of columns, so that memory stays bounded."""
    parts = parts_of(model)
    for start in range(0, len(motion.q), CHUNK):
        q, qd, qdd, context, tau = (x[start : start + CHUNK] for x in motion)
        friction = [parts.dissipation.features(qd, context[..., 0]), context[..., 1:]]
        yield Columns(
            parts.conservative.regressor(q, qd, qdd).numpy(),
            torch.cat(friction, -1).numpy(),
            (tau / model.torque_scale).numpy(),
        )


def accumulate(model: LagrangianModel, motion: Motion, weight: np.ndarray) -> LinearProblem:
    """
    Return the normal equations of a model on samples.

    Parameters
    ----------
    model : LagrangianModel
        Its present coefficients do not matter.
    motion : Motion
        The samples.
    weight : array, (n,) or (N, n)
        Factor on the errors in model units: torque_scale / standard deviation of the torque,
        or 0 where a sample shall not count for a joint.

    """
    parts = parts_of(model)
    masses, potentials = (
        parts.conservative.mass_coefficients,
        parts.conservative.potential_coefficients,
    )
    friction = parts.dissipation.coefficients().shape[1] + motion.context.shape[2] - 1
    problem = LinearProblem(motion.q.shape[1], len(masses) + len(potentials), friction)
    weight = np.broadcast_to(weight, motion.tau.shape)
    start = 0
    for chunk in columns(model, motion):
        end = start + len(chunk.tau)
        problem.add(*chunk, weight[start:end])
        start = end
    return problem


def assign(model: LagrangianModel, solution: Solution) -> None:
    """Set the coefficients of a model."""
    conservative, dissipation, memory = parts_of(model)
    masses = len(conservative.mass_coefficients)
    laws = dissipation.coefficients().shape[1]
    free, friction = map(torch.from_numpy, solution)
    with torch.no_grad():
        conservative.mass_coefficients.copy_(free[:masses])
        conservative.potential_coefficients.copy_(free[masses:])
    dissipation.set_coefficients(friction[:, :laws])
    if memory is not None:
        memory.set_weights(friction[:, laws:])


def total(problems: Sequence[LinearProblem]) -> LinearProblem:
    """Return the problem with the samples of all."""
    return sum(problems[1:], problems[0])


def held_out_losses(problems: Sequence[LinearProblem], ridges: Sequence[float]) -> list[float]:
    """Return for each ridge the mean loss of each problem under the fit of all others together."""
    whole = total(problems)
    losses = []
    for problem in problems:
        others = whole - problem
        losses.append([problem.loss(others.solve(ridge)) for ridge in ridges])
    return np.mean(losses, 0).tolist()
