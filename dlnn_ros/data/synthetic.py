"""
Recorder of a simulated arm.

A random motion (:mod:`dlnn_ros.data.excitation`) is followed by a computed-torque controller on
the rigid bodies of the robot's URDF with rotor inertia, counterbalance and Stribeck friction on
springs (:mod:`dlnn_ros.dynamics.plant`). Viscous and Coulomb friction are those of the URDF.
Collisions are not looked at. Each recording starts at rest, in balance with what the springs hold
from a motion before it. The recording has encoder noise and steps, and torque noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
import math
from typing import NamedTuple

from dlnn_ros.config import load_robot, Robot
from dlnn_ros.data.excitation import Box, make_motion, Motion
from dlnn_ros.data.trajectory import Recording, RecordingSet
from dlnn_ros.dynamics.plant import apply, Friction, Plant, State
from dlnn_ros.dynamics.rigid_body import RigidBody
import numpy as np

# Simulated at least this fast [Hz], at a multiple of the recording's rate.
SIMULATION_HZ = 1000.0
# Margin to the position limits, share of the range on each side.
POSITION_MARGIN = 0.05
# Share of the effort limit that a reference may need; the rest is for the controller.
EFFORT_MARGIN = 0.85
# Bandwidth of the controller [rad/s]; critically damped.
BANDWIDTH = 2 * math.pi * 6.0
# Pause between recordings [s].
GAP_S = 2.0


@dataclass(frozen=True)
class Synthetic:
    """
    Settings of the recorder.

    Attributes
    ----------
    robot : str
        Robot file by name or path; must name a URDF and all limits.
    trajectories : int
        Number of recordings, at least 3: the last is for test, the one before for validation.
    duration_s, rate_hz : float
        Length and sample rate of each recording [s, Hz].
    seed : int
        Same seed, same recordings; recording k does not depend on how many there are.
    stop_and_go : float
        Share of the time for moves from pose to pose with pauses, 0 to 1; the rest is multi-sine.
    reach : float
        Largest way of a joint from its home position [rad | m], inside the position limits. Home
        is `Robot.position_offset` where that is given, else the middle of the range. The more
        room, the more recordings a model needs.
    velocity_fraction : float
        Share of the velocity limit that is used, in (0, 1].
    acceleration : float
        Acceleration limit of all joints [rad/s^2 | m/s^2].
    breakaway : float
        Friction at rest over Coulomb friction, at least 1.
    stribeck_velocity : float
        Speed at which the breakaway part is gone [rad/s | m/s].
    presliding : float
        Way over which friction builds up after a reversal [rad | m]; friction then depends on
        the past. 0: it sticks rigidly. See :class:`dlnn_ros.dynamics.plant.Friction`.
    encoder_noise, encoder_step : float
        Standard deviation and resolution of the joint position [rad | m]; the defaults are near
        those of a KUKA KR300, seen through the gears.
    effort_noise : float
        Standard deviation of the recorded effort, share of the effort limit.

    """

    robot: str = 'kr300'
    trajectories: int = 12
    duration_s: float = 20.0
    rate_hz: float = 250.0
    seed: int = 0
    stop_and_go: float = 0.25
    reach: float = 1.2
    velocity_fraction: float = 0.65
    acceleration: float = 2.5
    breakaway: float = 1.2
    stribeck_velocity: float = 0.02
    presliding: float = 3e-4
    encoder_noise: float = 1e-6
    encoder_step: float = 1e-6
    effort_noise: float = 0.01

    def __post_init__(self) -> None:
        rules = {
            'trajectories': (self.trajectories >= 3, 'at least 3'),
            'duration_s': (4.0 <= self.duration_s <= 3600.0, '4 to 3600'),
            'rate_hz': (10.0 <= self.rate_hz <= 4000.0, '10 to 4000'),
            'seed': (self.seed >= 0, 'not negative'),
            'stop_and_go': (0.0 <= self.stop_and_go <= 1.0, '0 to 1'),
            'reach': (0.0 < self.reach < math.inf, 'positive'),
            'velocity_fraction': (0.0 < self.velocity_fraction <= 1.0, 'in (0, 1]'),
            'acceleration': (0.0 < self.acceleration < math.inf, 'positive'),
            'breakaway': (1.0 <= self.breakaway < math.inf, 'at least 1'),
            'stribeck_velocity': (0.0 < self.stribeck_velocity < math.inf, 'positive'),
            'presliding': (0.0 <= self.presliding < math.inf, 'not negative'),
            'encoder_noise': (0.0 <= self.encoder_noise < math.inf, 'not negative'),
            'encoder_step': (0.0 <= self.encoder_step < math.inf, 'not negative'),
            'effort_noise': (0.0 <= self.effort_noise < math.inf, 'not negative'),
        }
        for name, (is_kept, rule) in rules.items():
            if not is_kept:
                raise ValueError(f'{name} must be {rule}, got {getattr(self, name)}')


class Simulation(NamedTuple):
    """
    What happened in truth.

    Attributes
    ----------
    robot : Robot
        The robot that was simulated.
    rigid_body : RigidBody
        Its true rigid bodies, without friction.
    friction : Friction
        Its true friction.
    t : array, (N,)
        Time from the start of each motion [s].
    q, qd, qdd : array, (K, N, n)
        True motion of the K recordings; `qdd` is that of the step that starts at `t`.
    tau : array, (K, N, n)
        Joint-side drive torque from `t` on [N m | N].
    friction_torque : array, (K, N, n)
        The part of `tau` that friction takes [N m | N].

    """

    robot: Robot
    rigid_body: RigidBody
    friction: Friction
    t: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray
    tau: np.ndarray
    friction_torque: np.ndarray


def make_recordings(
    synthetic: Synthetic, progress: Callable[[str], None] | None = None
) -> RecordingSet:
    """
    Simulate and record; roles train ..., validation, test.

    Parameters
    ----------
    synthetic : Synthetic
        Settings.
    progress : callable, optional
        Called with a line of text now and then.

    Raises
    ------
    ImportError
        If Pinocchio is missing.
    ValueError
        If the robot has no limits or no URDF, or cannot move inside its limits.

    """
    return record(simulate(synthetic, progress), synthetic)


def simulate(synthetic: Synthetic, progress: Callable[[str], None] | None = None) -> Simulation:
    """Simulate all motions; the truth behind :func:`make_recordings`."""
    robot = load_robot(synthetic.robot)
    _check_limits(robot)
    body = RigidBody.from_robot(robot)
    friction = Friction(
        body.damping,
        body.dry_friction,
        synthetic.breakaway * body.dry_friction,
        synthetic.stribeck_velocity,
        synthetic.presliding,
    )
    steps = math.ceil(SIMULATION_HZ / synthetic.rate_hz)
    time_step_s = 1.0 / (steps * synthetic.rate_hz)
    tau_max = np.array(robot.limits.effort) * np.abs(robot.gear_ratio)
    box = _make_box(synthetic, robot, body, friction, tau_max, time_step_s)
    references = []
    for k in range(synthetic.trajectories):
        rng = np.random.default_rng([synthetic.seed, k, 0])
        references.append(
            make_motion(rng, box, synthetic.duration_s, time_step_s, synthetic.stop_and_go)
        )
        if progress is not None:
            progress(f'motion {k + 1} of {synthetic.trajectories} planned')
    reference = Motion(*(np.stack(columns, axis=1) for columns in zip(*references, strict=True)))
    plant = Plant(body, friction, time_step_s)
    start = _come_to_rest(plant, reference.q[0], synthetic.seed)
    out = _follow(plant, start, reference, tau_max, steps, progress)
    t = np.arange(out.shape[2]) / synthetic.rate_hz
    return Simulation(robot, body, friction, t, *out)


def record(simulation: Simulation, synthetic: Synthetic) -> RecordingSet:
    """Look at a simulation through encoders and a noisy torque signal."""
    robot = simulation.robot
    effort = simulation.tau
    if robot.effort.kind == 'no_gravity':
        effort = effort - simulation.rigid_body.gravity(simulation.q)
    effort = effort / robot.gear_ratio
    recordings = []
    count = len(simulation.q)
    for k in range(count):
        rng = np.random.default_rng([synthetic.seed, k, 1])
        shape = simulation.q[k].shape
        q = simulation.q[k] + synthetic.encoder_noise * rng.normal(size=shape)
        if synthetic.encoder_step > 0:
            q = synthetic.encoder_step * np.round(q / synthetic.encoder_step)
        noise = synthetic.effort_noise * np.array(robot.limits.effort)
        start_s = k * (synthetic.duration_s + GAP_S)
        recordings.append(
            Recording(
                t=start_s + simulation.t,
                q=q,
                tau=effort[k] + noise * rng.normal(size=shape),
                name=f'traj_{k:02d}',
                role={count - 1: 'test', count - 2: 'validation'}.get(k, 'train'),
            )
        )
    return RecordingSet(robot, tuple(recordings), f'synthetic {robot.name}, seed {synthetic.seed}')


def _check_limits(robot: Robot) -> None:
    missing = [f.name for f in fields(robot.limits) if not getattr(robot.limits, f.name)]
    if missing:
        raise ValueError(
            f'robot {robot.name!r} has no limits for {", ".join(missing)}; '
            'the recorder needs all of them'
        )
    wrong = [
        name
        for name, lower, upper, *others in zip(
            robot.joints,
            robot.limits.position_lower,
            robot.limits.position_upper,
            robot.limits.velocity,
            robot.limits.effort,
            strict=True,
        )
        if not (lower < upper and min(others) > 0)
    ]
    if wrong:
        raise ValueError(
            f'robot {robot.name!r}: limits of {", ".join(wrong)} leave no room to move '
            '(lower < upper, velocity > 0, effort > 0)'
        )


def _make_box(
    synthetic: Synthetic,
    robot: Robot,
    body: RigidBody,
    friction: Friction,
    tau_max: np.ndarray,
    time_step_s: float,
) -> Box:
    lower = np.array(robot.limits.position_lower)
    upper = np.array(robot.limits.position_upper)
    margin = POSITION_MARGIN * (upper - lower)
    home = np.array(robot.position_offset) if robot.position_offset else (lower + upper) / 2
    lower = np.maximum(lower + margin, home - synthetic.reach)
    upper = np.minimum(upper - margin, home + synthetic.reach)
    if not (lower < upper).all():
        names = [robot.joints[i] for i in np.flatnonzero(lower >= upper)]
        raise ValueError(
            f'robot {robot.name!r}: the home position of {", ".join(names)} lies outside the '
            'position limits'
        )
    every = max(1, round(0.02 / time_step_s))

    def is_within_torque(motion: Motion) -> bool:
        q, qd, qdd = (x[::every] for x in motion)
        rub = friction.viscous * qd + friction.coulomb * np.sign(qd)
        tau = body.inverse_dynamics(q, qd, qdd) + rub
        return bool((np.abs(tau) <= EFFORT_MARGIN * tau_max).all())

    return Box(
        lower,
        upper,
        synthetic.velocity_fraction * np.array(robot.limits.velocity),
        np.full(robot.n, synthetic.acceleration),
        is_within_torque,
    )


def _come_to_rest(plant: Plant, target: np.ndarray, seed: int) -> State:
    """Return a state of rest near `target` (K, n) after some motion, in balance."""
    state = plant.make_state(target)
    presliding = plant.friction.presliding
    if presliding == 0:
        return state
    draws = [
        np.random.default_rng([seed, k, 2]).uniform(-1, 1, t.shape) for k, t in enumerate(target)
    ]
    # Each joint has slid one way, then back by a part of the way over which friction turns.
    back = presliding * np.stack(draws)
    limit = plant.friction.limit(state.qd)
    springs = plant.stretch(state.springs, -np.sign(back) * presliding, limit)
    springs = plant.stretch(springs, back, limit)
    q = target
    for _ in range(3):  # The mass matrix hardly changes over a way of 1e-3 rad.
        M = plant.terms(q, state.qd).M
        q = target - np.linalg.solve(BANDWIDTH**2 * M, springs.sum(0)[..., None])[..., 0]
    return State(q, state.qd, springs)


def _follow(
    plant: Plant,
    state: State,
    reference: Motion,
    tau_max: np.ndarray,
    steps: int,
    progress: Callable[[str], None] | None,
) -> np.ndarray:
    """Follow the reference (N steps, K, n); return the motion and torques of a Simulation."""
    count = len(reference.q)
    samples = count // steps
    out = np.empty((5, len(state.q), samples, state.q.shape[1]))
    viscous = plant.friction.viscous
    for i in range(samples * steps):
        q, qd, _ = state
        terms = plant.terms(q, qd)
        qdd_wanted = (
            reference.qdd[i]
            + BANDWIDTH**2 * (reference.q[i] - q)
            + 2 * BANDWIDTH * (reference.qd[i] - qd)
        )
        tau = apply(terms.M, qdd_wanted) + terms.drift + viscous * reference.qd[i]
        np.clip(tau, -tau_max, tau_max, out=tau)
        state = plant.step(state, tau, terms)
        if i % steps == 0:
            k = i // steps
            qdd = (state.qd - qd) / plant.time_step_s
            friction_torque = tau - terms.drift - apply(terms.M, qdd)
            out[:, :, k] = q, qd, qdd, tau, friction_torque
            if progress is not None and k % max(1, samples // 10) == 0:
                progress(f'simulated {100 * k // samples} %')
    return out
