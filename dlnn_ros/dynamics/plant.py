"""
Simulated arm: rigid bodies with Stribeck friction that sticks.

One step of length h solves, for the velocity v+ at its end,

    M (v+ - v) / h + B v+ + F(|v|) sgn(v+) = tau - c - g,        q+ = q + h v+

with sgn(0) any value in [-1, 1]: the friction is implicit, so a joint comes to rest exactly and
stays there until the load exceeds the breakaway torque. (A speed below `CREEP` counts as rest.)
The equation is the optimality condition of a strictly convex problem: v+ minimises
v'(M + h B)v / 2 - b'v + h sum F_i |v_i|. The signs of the last step mostly still hold and give v+
by one linear solve; where they do not, projected Gauss-Seidel finds it. Many arms are simulated
at once to share the cost of the array operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

from dlnn_ros.dynamics.rigid_body import RigidBody
import numpy as np

MAX_SWEEPS = 200
# Far below any encoder, far above rounding at joint speeds of about 1 rad/s.
VELOCITY_TOLERANCE = 1e-11
# A joint slower than this is at rest [rad/s | m/s]: under a controller without integral action it
# would creep to its end position for ever, by less than an encoder step.
CREEP = 1e-6


@dataclass(frozen=True, eq=False)
class Friction:
    """
    Joint friction, d = viscous qd + F(|qd|) sgn(qd).

    F(v) = coulomb + (breakaway - coulomb) exp(-(v / stribeck_velocity)^2).

    Attributes
    ----------
    viscous : array, (n,)
        Viscous friction [N m s/rad].
    coulomb, breakaway : array, (n,)
        Dry friction when sliding and at rest [N m], 0 <= coulomb <= breakaway.
    stribeck_velocity : float
        Speed at which the breakaway part is gone [rad/s | m/s].

    """

    viscous: np.ndarray
    coulomb: np.ndarray
    breakaway: np.ndarray
    stribeck_velocity: float = 0.02

    def __post_init__(self) -> None:
        if min(self.viscous.min(), self.coulomb.min()) < 0:
            raise ValueError('friction must not be negative')
        if (self.breakaway < self.coulomb).any():
            raise ValueError(
                f'breakaway friction {self.breakaway.tolist()} must not be smaller than Coulomb '
                f'friction {self.coulomb.tolist()}'
            )
        if not self.stribeck_velocity > 0:
            raise ValueError(f'stribeck_velocity must be positive, got {self.stribeck_velocity}')

    def level(self, qd: np.ndarray) -> np.ndarray:
        """Compute the dry friction F(|qd|), (..., n) [N m]."""
        # Beyond 20 the exponential is 0; the bound keeps it from underflowing.
        x = np.minimum(np.abs(qd) / self.stribeck_velocity, 20.0)
        return self.coulomb + (self.breakaway - self.coulomb) * np.exp(-x * x)

    def torque(self, qd: np.ndarray) -> np.ndarray:
        """Compute d(qd), (..., n) [N m]; 0 at rest, where it can be anything up to breakaway."""
        return self.viscous * qd + self.level(qd) * np.sign(qd)


class Terms(NamedTuple):
    """Mass matrix (K, n, n) [kg m^2] and c + g (K, n) [N m] at the state of K arms."""

    M: np.ndarray
    drift: np.ndarray


class Plant:
    """
    K arms of one kind with friction, advanced together.

    Parameters
    ----------
    rigid_body : RigidBody
        Rigid bodies, rotor inertia, counterbalance; its own friction is not used.
    friction : Friction
        Joint friction.
    time_step_s : float
        Length of a step [s], at most 2 ms.

    """

    def __init__(self, rigid_body: RigidBody, friction: Friction, time_step_s: float) -> None:
        if not 0 < time_step_s <= 2e-3:
            raise ValueError(f'time_step_s must be in (0, 0.002], got {time_step_s}')
        self.rigid_body = rigid_body
        self.friction = friction
        self.time_step_s = time_step_s
        self._damper = time_step_s * np.diag(friction.viscous)
        self._identity = np.eye(rigid_body.n)

    def terms(self, q: np.ndarray, qd: np.ndarray) -> Terms:
        """Compute the terms of the equation of motion at a state, which a controller may use."""
        return Terms(*self.rigid_body.mass_and_drift(q, qd))

    def step(
        self, q: np.ndarray, qd: np.ndarray, tau: np.ndarray, terms: Terms
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Advance by one step under the joint-side torque `tau`; arrays (K, n).

        Returns
        -------
        q, qd : array, (K, n)
            State at the end of the step; `qd` of a joint at rest is exactly 0.

        """
        h = self.time_step_s
        A = terms.M + self._damper
        b = apply(terms.M, qd) + h * (tau - terms.drift)
        F = h * self.friction.level(qd)
        sign = np.sign(qd)
        v = self._solve_with_signs(A, b, F, sign)
        slack = np.abs(b - apply(A, v)) - F
        wrong = np.where(sign == 0.0, slack > 0.0, v * sign < 0.0).any(axis=1)
        for k in np.flatnonzero(wrong):
            v[k] = _solve_by_sweeps(A[k].tolist(), b[k].tolist(), F[k].tolist(), v[k].tolist())
        v[np.abs(v) < CREEP] = 0.0
        return q + h * v, v

    def _solve_with_signs(
        self, A: np.ndarray, b: np.ndarray, F: np.ndarray, sign: np.ndarray
    ) -> np.ndarray:
        """Solve where joints slide in the direction `sign`, and rest where it is 0."""
        moves = sign != 0.0
        if moves.all():
            return np.linalg.solve(A, (b - F * sign)[..., None])[..., 0]
        both = moves[:, :, None] & moves[:, None, :]
        A = np.where(both, A, self._identity)
        v = np.linalg.solve(A, np.where(moves, b - F * sign, 0.0)[..., None])[..., 0]
        v[~moves] = 0.0
        return v


def apply(M: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Multiply K matrices by K vectors."""
    return (M @ x[..., None])[..., 0]


def _solve_by_sweeps(
    A: list[list[float]], b: list[float], F: list[float], v: list[float]
) -> list[float]:
    """
    Solve one arm for velocity and signs by projected Gauss-Seidel, which converges as A > 0.

    Plain numbers: for so few of them array operations cost more than the arithmetic.
    """
    for _ in range(MAX_SWEEPS):
        change = 0.0
        for i, row in enumerate(A):
            old = v[i]
            rest = b[i] - sum(map(mul, row, v)) + row[i] * old
            if rest > F[i]:
                v[i] = (rest - F[i]) / row[i]
            elif rest < -F[i]:
                v[i] = (rest + F[i]) / row[i]
            else:
                v[i] = 0.0
            change = max(change, abs(v[i] - old))
        if change < VELOCITY_TOLERANCE:
            break
    return v
