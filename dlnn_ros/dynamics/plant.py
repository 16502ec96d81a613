"""
Simulated arm: rigid bodies with Stribeck friction that sticks, rigidly or on springs.

One step of length h solves, for the velocity v+ at its end,

    M (v+ - v) / h + B v+ + f(v+) = tau - c - g,        q+ = q + h v+

The dry friction f is implicit, so a joint comes to rest exactly and stays there until the load
exceeds the breakaway torque. (A speed below `CREEP` counts as rest.) Its level is the Stribeck
curve F(|v|). There are two kinds:

- Rigid (`presliding` = 0): f = F sgn(v+), with sgn(0) any value in [-1, 1].
- Maxwell slip: F is shared by J springs of stiffness k_j that carry at most W_j = F / J and then
  slide along, f = sum_j F_j+ with F_j+ = clip(F_j + k_j h v+, -W_j, W_j). The forces F_j are part
  of the state: what a joint at rest holds depends on how it came to rest, and a small motion
  about a point draws a closed loop of torque over position.

Both are passive. Of springs: with x = F_j + k_j h v+ before clipping, work less energy stored is

    F_j+ h v+ - (F_j+^2 - F_j^2) / (2 k_j) = (F_j+ (x - F_j+) + (F_j+ - F_j)^2 / 2) / k_j >= 0,

since F_j+ is x drawn towards 0. This holds for any limits, also when they fall with the speed.

The equation is the optimality condition of a strictly convex problem: v+ minimises
v'(M + h B)v / 2 - b'v + sum_i P_i(v_i) with P_i' = h f_i, which is not decreasing. It is linear
once it is known which joints rest or slide and which springs hold. That mostly holds on from the
last step; the springs' is corrected by Newton steps. Where this fails, Gauss-Seidel with
exact joint-wise solutions finds v+. Many arms are simulated at once to share the cost of the
array operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import math
from operator import mul
from typing import NamedTuple

from dlnn_ros.dynamics.rigid_body import RigidBody
import numpy as np

MAX_SWEEPS = 200
MAX_NEWTON_STEPS = 8
# Far below any encoder, far above rounding at joint speeds of about 1 rad/s.
VELOCITY_TOLERANCE = 1e-11
# A joint slower than this is at rest [rad/s | m/s]: under a controller without integral action it
# would creep to its end position for ever, by less than an encoder step.
CREEP = 1e-6
# Displacements at which the springs of a joint yield, shares of `presliding`.
YIELD = np.array([0.1, 0.3, 1.0])


@dataclass(frozen=True, eq=False)
class Friction:
    """
    Joint friction, viscous and dry; the dry part is at most F(|qd|).

    F(v) = coulomb + (breakaway - coulomb) exp(-(v / stribeck_velocity)^2).

    Attributes
    ----------
    viscous : array, (n,)
        Viscous friction [N m s/rad].
    coulomb, breakaway : array, (n,)
        Dry friction when sliding and at rest [N m], 0 <= coulomb <= breakaway.
    stribeck_velocity : float
        Speed at which the breakaway part is gone [rad/s | m/s].
    presliding : float
        Way from a relaxed state at which a joint slides, with all its springs [rad | m];
        0 for friction that sticks rigidly.

    """

    viscous: np.ndarray
    coulomb: np.ndarray
    breakaway: np.ndarray
    stribeck_velocity: float = 0.02
    presliding: float = 0.0

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
        if not 0 <= self.presliding < math.inf:
            raise ValueError(f'presliding must not be negative, got {self.presliding}')

    def level(self, qd: np.ndarray) -> np.ndarray:
        """Compute the dry friction F(|qd|), (..., n) [N m]."""
        # Beyond 20 the exponential is 0; the bound keeps it from underflowing.
        x = np.minimum(np.abs(qd) / self.stribeck_velocity, 20.0)
        return self.coulomb + (self.breakaway - self.coulomb) * np.exp(-x * x)

    def torque(self, qd: np.ndarray) -> np.ndarray:
        """Compute the friction of steady sliding, (..., n) [N m]; 0 at rest."""
        return self.viscous * qd + self.level(qd) * np.sign(qd)

    def stiffness(self) -> np.ndarray:
        """Compute that of the springs, (J, 1, n) [N m/rad]; J = 0 if friction sticks rigidly."""
        if self.presliding == 0:
            return np.zeros((0, 1, len(self.breakaway)))
        return self.breakaway / (len(YIELD) * self.presliding * YIELD[:, None, None])

    def limit(self, qd: np.ndarray) -> np.ndarray:
        """Compute what each spring of a joint carries at most, (..., n) [N m]."""
        return self.level(qd) / len(YIELD)


class Terms(NamedTuple):
    """Mass matrix (K, n, n) [kg m^2] and c + g (K, n) [N m] at the state of K arms."""

    M: np.ndarray
    drift: np.ndarray


class State(NamedTuple):
    """Position and velocity (K, n) and the springs' forces (J, K, n) [N m] of K arms."""

    q: np.ndarray
    qd: np.ndarray
    springs: np.ndarray


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
        self._stiffness = friction.stiffness()
        self._diagonal = np.arange(rigid_body.n)

    def make_state(self, q: np.ndarray, qd: np.ndarray | None = None) -> State:
        """Make a state with relaxed springs from `q` and `qd` (K, n), at rest by default."""
        qd = np.zeros_like(q) if qd is None else qd
        return State(q, qd, np.zeros((len(self._stiffness), *q.shape)))

    def stretch(self, springs: np.ndarray, way: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Compute the springs' forces (J, K, n) after a `way`, under a `limit` (K, n)."""
        return _clip(springs + self._stiffness * way, limit)

    def terms(self, q: np.ndarray, qd: np.ndarray) -> Terms:
        """Compute the terms of the equation of motion at a state, which a controller may use."""
        return Terms(*self.rigid_body.mass_and_drift(q, qd))

    def step(self, state: State, tau: np.ndarray, terms: Terms) -> State:
        """
        Advance by one step under the joint-side torque `tau` (K, n).

        Returns
        -------
        State
            At the end of the step; `qd` of a joint at rest is exactly 0.

        """
        q, qd, springs = state
        h = self.time_step_s
        A = terms.M + self._damper
        b = apply(terms.M, qd) + h * (tau - terms.drift)
        if self.friction.presliding == 0:
            v = self._solve_rigid(A, b, qd)
            v[np.abs(v) < CREEP] = 0.0
        else:
            limit = self.friction.limit(qd)
            v = self._solve_springs(A, b, qd, springs, limit)
            v[np.abs(v) < CREEP] = 0.0
            springs = self.stretch(springs, h * v, limit)
        return State(q + h * v, v, springs)

    def _solve_rigid(self, A: np.ndarray, b: np.ndarray, qd: np.ndarray) -> np.ndarray:
        F = self.time_step_s * self.friction.level(qd)
        sign = np.sign(qd)
        v = self._solve_with_signs(A, b, F, sign)
        slack = np.abs(b - apply(A, v)) - F
        wrong = np.where(sign == 0.0, slack > 0.0, v * sign < 0.0).any(axis=1)
        for k in np.flatnonzero(wrong):
            kinks = [[Kink(0.0, 2 * f, 0.0)] for f in F[k].tolist()]
            v[k] = _solve_by_sweeps(A[k], b[k] + F[k], kinks, v[k])
        return v

    def _solve_with_signs(
        self, A: np.ndarray, b: np.ndarray, F: np.ndarray, sign: np.ndarray
    ) -> np.ndarray:
        """Solve where joints slide in the direction `sign`, and rest where it is 0."""
        moves = sign != 0.0
        if moves.all():
            return np.linalg.solve(A, (b - F * sign)[..., None])[..., 0]
        both = moves[:, :, None] & moves[:, None, :]
        A = np.where(both, A, np.eye(len(self._diagonal)))
        v = np.linalg.solve(A, np.where(moves, b - F * sign, 0.0)[..., None])[..., 0]
        v[~moves] = 0.0
        return v

    def _solve_springs(
        self,
        A: np.ndarray,
        b: np.ndarray,
        qd: np.ndarray,
        springs: np.ndarray,
        limit: np.ndarray,
    ) -> np.ndarray:
        h = self.time_step_s
        # Impulses of a step and their slope over v: h F_j, h W_j, h^2 k_j.
        impulse, limit, slope = h * springs, h * limit, h * h * self._stiffness
        tolerance = VELOCITY_TOLERANCE * A[:, self._diagonal, self._diagonal]
        wanted = impulse + slope * qd
        side = np.sign(wanted - _clip(wanted, limit))
        for _ in range(MAX_NEWTON_STEPS):
            holds = side == 0.0
            fixed = (holds * impulse + side * limit).sum(0)
            gain = (holds * slope).sum(0)
            S = A.copy()
            S[:, self._diagonal, self._diagonal] += gain
            v = np.linalg.solve(S, (b - fixed)[..., None])[..., 0]
            wanted = impulse + slope * v
            kept = _clip(wanted, limit)
            wrong = (np.abs(fixed + gain * v - kept.sum(0)) > tolerance).any(axis=1)
            if not wrong.any():
                return v
            side = np.sign(wanted - kept)
        for k in np.flatnonzero(wrong):
            kinks = _find_kinks(limit[k], impulse[:, k].T, slope[:, 0].T)
            v[k] = _solve_by_sweeps(A[k], b[k] + len(YIELD) * limit[k], kinks, v[k])
        return v


def apply(M: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Multiply K matrices by K vectors."""
    return (M @ x[..., None])[..., 0]


def _clip(x: np.ndarray, limit: np.ndarray) -> np.ndarray:
    # Faster than np.clip for arrays of this size.
    return np.minimum(np.maximum(x, -limit), limit)


class Kink(NamedTuple):
    """Where the impulse h f(v) of a joint's dry friction jumps, or its slope changes."""

    v: float
    jump: float
    change: float


def _find_kinks(limit: np.ndarray, impulse: np.ndarray, slope: np.ndarray) -> list[list[Kink]]:
    """Find the kinks of sum_j clip(impulse_j + slope_j v, -limit, limit) per joint, sorted."""
    kinks: list[list[Kink]] = []
    for w, p, s in zip(limit.tolist(), impulse.tolist(), slope.tolist(), strict=True):
        pairs = [(x, y) for x, y in zip(p, s, strict=True) if y > 0]
        ends = [Kink((e * w - x) / y, 0.0, -e * y) for x, y in pairs for e in (-1.0, 1.0)]
        kinks.append(sorted(ends))
    return kinks


def _solve_by_sweeps(
    A: np.ndarray, push: np.ndarray, kinks: Sequence[list[Kink]], start: np.ndarray
) -> list[float]:
    """
    Solve one arm by Gauss-Seidel, which converges as A > 0 and friction does not decrease.

    `push` is the impulse of all but dry friction, plus the most that this ever brakes.
    Plain numbers: for so few of them array operations cost more than the arithmetic.
    """
    rows, pushes, v = A.tolist(), push.tolist(), start.tolist()
    for _ in range(MAX_SWEEPS):
        change = 0.0
        for i, row in enumerate(rows):
            old = v[i]
            rest = pushes[i] - sum(map(mul, row, v)) + row[i] * old
            v[i] = _solve_joint(row[i], rest, kinks[i])
            change = max(change, abs(v[i] - old))
        if change < VELOCITY_TOLERANCE:
            break
    return v


def _solve_joint(slope: float, push: float, kinks: list[Kink]) -> float:
    """Solve the equation of one joint: along its pieces, from v = -inf on."""
    v = push / slope
    for kink in kinks:
        if v <= kink.v:
            break
        beyond = max(slope * (v - kink.v) - kink.jump, 0.0)
        slope += kink.change
        v = kink.v + beyond / slope
    return v
