"""
What recordings are worth before anything is learned from them.

`check_effort` refuses what nothing can be learned from; `inspect` measures, and warns of what
looks wrong without being certain: degrees, a velocity that is not one, an effort in other units
or without gravity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import math

from dlnn_ros.config import REST_SPEED, Robot
from dlnn_ros.data.derivatives import Derivatives, differentiate
from dlnn_ros.data.trajectory import Recording, RecordingSet, Trajectory
import numpy as np

# An effort that keeps one value this long while its joint moves this far is frozen.
FROZEN_S = 1.0
FROZEN_MOTION = 0.05  # rad or m
# A revolute joint that is further from zero than this has turned more than once and a bit.
DEGREES_RAD = 3 * math.pi
MOVING_RANGE = 0.02  # rad or m
# Shares of the reference outside of which an effort is said to be in other units.
SCALE_RANGE = (0.5, 2.0)
# Gravity must vary by this share of the effort to be compared.
VISIBLE_GRAVITY = 0.3


def check_positions(robot: Robot, recordings: Sequence[Recording], source: str = '') -> None:
    """
    Refuse positions that jump, as those of a joint do that wraps and is not declared so.

    Raises
    ------
    ValueError
        Names the joint, the recording, the time and both positions.

    """
    where = f'{source}: ' if source else ''
    for r in recordings:
        step = np.abs(np.diff(r.q, axis=0))
        step[:, ~robot.is_revolute] = 0.0
        k, joint = np.unravel_index(int(step.argmax()), step.shape)
        if step[k, joint] > np.pi:
            raise ValueError(
                f'{where}{r.name}: {robot.joints[joint]} jumps from {r.q[k, joint]:.4g} to '
                f'{r.q[k + 1, joint]:.4g} rad at {r.t[k + 1]:.3f} s; if it turns without end, '
                'give it the kind continuous in the robot file (--robot)'
            )


def check_effort(robot: Robot, recordings: Sequence[Recording], source: str = '') -> None:
    """
    Refuse recordings from which no effort can be learned.

    Raises
    ------
    ValueError
        There is no effort, or that of some joints keeps one value all the time or for
        `FROZEN_S` while the joint moves; names the joints and the values.

    """
    usable = [r for r in recordings if _valid(r).any()]
    where = f'{source}: ' if source else ''
    if not usable:
        never = [
            joint
            for k, joint in enumerate(robot.joints)
            if not any(np.isfinite(r.tau[:, k]).any() for r in recordings)
        ]
        raise ValueError(
            f'{where}no sample has an effort of all joints'
            + (f' ({", ".join(never)} never has one)' if never else '')
            + '; record it (effort interface of the driver), choose another topic, or name the '
            'joints to use with --robot'
        )
    constant = []
    for k, joint in enumerate(robot.joints):
        values = np.concatenate([r.tau[_valid(r), k] for r in usable])
        if np.ptp(values) == 0:
            constant.append(f'{joint} (always {values[0]:g})')
    if constant:
        raise ValueError(
            f'{where}effort is constant, which carries no information: {", ".join(constant)}'
        )
    for r in usable:
        for k, joint in enumerate(robot.joints):
            frozen = _frozen_stretch(r, k)
            if frozen is not None:
                start, stop = frozen
                raise ValueError(
                    f'{where}{r.name}: effort of {joint} is frozen at {r.tau[start, k]:g} from '
                    f'{r.t[start]:.3f} s to {r.t[stop]:.3f} s while the joint moves; leave this '
                    'stretch out'
                )


def _valid(recording: Recording) -> np.ndarray:
    assert recording.valid is not None
    return recording.valid


def _frozen_stretch(r: Recording, k: int) -> tuple[int, int] | None:
    """Return first and last sample of the longest stretch with frozen effort, None if none."""
    tau, valid = r.tau[:, k], _valid(r)
    same = (tau[1:] == tau[:-1]) & valid[1:] & valid[:-1]
    edges = np.diff(np.concatenate([[False], same, [False]]).astype(int))
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if not len(starts):
        return None
    longest = int(np.argmax(r.t[stops] - r.t[starts]))
    start, stop = int(starts[longest]), int(stops[longest])
    if r.t[stop] - r.t[start] < FROZEN_S or np.ptp(r.q[start : stop + 1, k]) < FROZEN_MOTION:
        return None
    return start, stop


@dataclass(frozen=True)
class RecordingQuality:
    """
    Figures of one recording.

    Attributes
    ----------
    name, group, role : str
        As in the recording.
    samples, valid : int
        Samples, and how many of them have an effort.
    duration_s, rate_hz : float
        Length and rate by the median period.
    jitter_ms, longest_period_ms : float
        Standard deviation and maximum of the sample period.
    repeated_share : float
        Share of samples that repeat the position before them while the robot moves.
    has_velocity : bool
        Whether the messages carry velocity.

    """

    name: str
    group: str
    role: str
    samples: int
    valid: int
    duration_s: float
    rate_hz: float
    jitter_ms: float
    longest_period_ms: float
    repeated_share: float
    has_velocity: bool


@dataclass(frozen=True)
class JointQuality:
    """
    Figures of one joint over all recordings; each range is lowest and highest.

    Attributes
    ----------
    q, qd, qdd : tuple of float
        Ranges of position, velocity and acceleration [rad | m, /s, /s^2].
    tau : tuple of float or None
        Range of effort as recorded; None without any.
    rest_share : float
        Share of samples slower than `REST_SPEED`.
    effort : str
        'ok', 'missing', 'zero' or 'constant'.

    """

    q: tuple[float, float]
    qd: tuple[float, float]
    qdd: tuple[float, float]
    tau: tuple[float, float] | None
    rest_share: float
    effort: str


@dataclass(frozen=True)
class Quality:
    """
    What :func:`inspect` found.

    Attributes
    ----------
    robot, effort_kind : str
        Name of the robot and declared meaning of effort.
    recordings : tuple of RecordingQuality
        One per recording.
    joints : dict
        Joint name -> JointQuality.
    rest_share : float
        Share of samples at which every joint is slower than `REST_SPEED`.
    derivatives : str
        How velocity and acceleration were derived for this report.
    warnings : tuple of str
        What looks wrong.

    """

    robot: str
    effort_kind: str
    recordings: tuple[RecordingQuality, ...]
    joints: dict[str, JointQuality]
    rest_share: float
    derivatives: str
    warnings: tuple[str, ...]


def inspect(recording_set: RecordingSet, derivatives: Derivatives | None = None) -> Quality:
    """Measure recordings; nothing is refused but what cannot be differentiated."""
    trajectories = [differentiate(r, derivatives) for r in recording_set.recordings]
    return inspect_trajectories(recording_set.robot, trajectories)


def inspect_trajectories(robot: Robot, trajectories: Sequence[Trajectory]) -> Quality:
    """Measure trajectories as :func:`inspect` does recordings."""
    q, qd, qdd = (
        np.concatenate([getattr(t, name) for t in trajectories]) for name in ('q', 'qd', 'qdd')
    )
    tau = np.concatenate([t.tau[t.valid] for t in trajectories])
    is_resting = np.abs(qd) < REST_SPEED
    joints = {
        joint: JointQuality(
            _range(q[:, k]),
            _range(qd[:, k]),
            _range(qdd[:, k]),
            _range(tau[:, k]) if len(tau) else None,
            float(is_resting[:, k].mean()),
            _effort_state(tau[:, k]),
        )
        for k, joint in enumerate(robot.joints)
    }
    return Quality(
        robot.name,
        robot.effort.kind,
        tuple(_measure(t) for t in trajectories),
        joints,
        float(is_resting.all(axis=1).mean()),
        ', '.join(dict.fromkeys(t.method for t in trajectories)),
        (
            *_warn_of_position(robot, q),
            *_warn_of_velocity(robot, trajectories),
            *_warn_of_effort(robot, [t.recording for t in trajectories], joints, tau),
            *_compare_with_rigid_body(robot, trajectories),
        ),
    )


def _range(x: np.ndarray) -> tuple[float, float]:
    return float(x.min()), float(x.max())


def _effort_state(tau: np.ndarray) -> str:
    if not len(tau):
        return 'missing'
    if np.ptp(tau) > 0:
        return 'ok'
    return 'zero' if tau[0] == 0 else 'constant'


def _measure(trajectory: Trajectory) -> RecordingQuality:
    r = trajectory.recording
    dt = np.diff(r.t)
    is_moving = (np.abs(trajectory.qd) >= REST_SPEED).any(axis=1)[1:]
    repeats = (np.diff(r.q, axis=0) == 0).all(axis=1) & is_moving
    return RecordingQuality(
        r.name,
        r.group,
        r.role,
        len(r.t),
        int(_valid(r).sum()),
        float(r.t[-1] - r.t[0]),
        r.rate_hz,
        float(dt.std() * 1e3),
        float(dt.max() * 1e3),
        float(repeats.sum() / max(1, is_moving.sum())),
        r.velocity is not None,
    )


def _warn_of_position(robot: Robot, q: np.ndarray) -> list[str]:
    warnings = []
    lower, upper = robot.limits.position_lower, robot.limits.position_upper
    for k, joint in enumerate(robot.joints):
        lowest, highest = _range(q[:, k])
        if robot.kinds[k] == 'revolute' and max(-lowest, highest) > DEGREES_RAD:
            warnings.append(
                f'{joint}: position from {lowest:.4g} to {highest:.4g} rad looks like degrees '
                '(a joint that turns on and on is of kind continuous)'
            )
        elif lower and upper:
            share = float(((q[:, k] < lower[k]) | (q[:, k] > upper[k])).mean())
            if share > 0.01:
                warnings.append(
                    f'{joint}: {share:.0%} of the positions are outside the limits '
                    f'[{lower[k]:.4g}, {upper[k]:.4g}] of robot {robot.name!r}'
                )
        if highest - lowest < MOVING_RANGE:
            warnings.append(f'{joint}: hardly moves (from {lowest:.4g} to {highest:.4g})')
    return warnings


def _warn_of_velocity(robot: Robot, trajectories: Sequence[Trajectory]) -> list[str]:
    """Compare the velocity of the messages with the derivative of the position."""
    pairs = [
        (t.recording.velocity, t.qd) for t in trajectories if t.recording.velocity is not None
    ]
    if not pairs:
        return []
    message = np.concatenate([p[0] for p in pairs])
    derived = np.concatenate([p[1] for p in pairs])
    warnings = []
    for k, joint in enumerate(robot.joints):
        power = float(np.mean(derived[:, k] ** 2))
        if power < REST_SPEED**2:
            continue
        scale = float(np.mean(message[:, k] * derived[:, k])) / power
        if not message[:, k].any():
            warnings.append(f'{joint}: velocity in the messages is always 0 though it moves')
        elif abs(scale / math.degrees(1) - 1) < 0.2:
            warnings.append(f'{joint}: velocity in the messages looks like deg/s')
        elif not 0.7 < scale < 1.4:
            warnings.append(
                f'{joint}: velocity in the messages is {scale:.2g} times the derivative of the '
                'position'
            )
    return warnings


def _warn_of_effort(
    robot: Robot, recordings: Sequence[Recording], joints: dict[str, JointQuality], tau: np.ndarray
) -> list[str]:
    warnings = []
    if not len(tau):
        return ['no sample has an effort: nothing can be learned from it']
    for k, (joint, quality) in enumerate(joints.items()):
        if quality.effort in ('zero', 'constant'):
            warnings.append(
                f'{joint}: effort is always {tau[0, k]:g}, which carries no information'
            )
        limits = robot.limits.effort
        if limits and limits[k] > 0:
            share = float((np.abs(tau[:, k]) > limits[k]).mean())
            if share > 0.01:
                warnings.append(
                    f'{joint}: {share:.0%} of the efforts are above the limit {limits[k]:g}; '
                    f'is their kind {robot.effort.kind!r}?'
                )
    for r in recordings:
        if not _valid(r).any():
            continue
        for k, joint in enumerate(robot.joints):
            frozen = None if joints[joint].effort != 'ok' else _frozen_stretch(r, k)
            if frozen is not None:
                warnings.append(
                    f'{r.name}: effort of {joint} is frozen at {r.tau[frozen[0], k]:g} from '
                    f'{r.t[frozen[0]]:.3f} s to {r.t[frozen[1]]:.3f} s'
                )
    return warnings


def _compare_with_rigid_body(robot: Robot, trajectories: Sequence[Trajectory]) -> list[str]:
    """
    Compare effort with the rigid bodies of the robot's URDF.

    Per joint, least squares of the joint-side effort on gravity, inertial torque, sgn qd and qd.
    A share of gravity far from one means effort without gravity, in other units or of other sign.

    """
    if robot.urdf is None or not any(t.valid.any() for t in trajectories):
        return []
    try:
        from dlnn_ros.dynamics.rigid_body import RigidBody

        body = RigidBody.from_robot(robot)
    except (ImportError, FileNotFoundError) as error:
        return [f'effort is not compared with the URDF: {error}']
    q, qd, qdd, tau = (
        np.concatenate([getattr(t, name)[t.valid] for t in trajectories])
        for name in ('q', 'qd', 'qdd', 'tau')
    )
    step = max(1, len(q) // 5000)
    q, qd, qdd, tau = q[::step], qd[::step], qdd[::step], tau[::step] * robot.gear_ratio
    gravity = body.gravity(q)
    inertial = body.inverse_dynamics(q, qd, qdd) - gravity
    warnings = []
    for k, joint in enumerate(robot.joints):
        spread = float(gravity[:, k].std())
        if spread == 0 or spread < VISIBLE_GRAVITY * float(tau[:, k].std()):
            continue  # gravity hardly shows at this joint
        columns = (gravity[:, k], inertial[:, k], np.sign(qd[:, k]), qd[:, k])
        A = np.stack(columns, axis=1)
        size = np.linalg.norm(A, axis=0)
        share = np.linalg.lstsq(A / np.where(size > 0, size, 1), tau[:, k], rcond=None)[0][0]
        share = float(share / size[0])
        if robot.effort.kind == 'no_gravity':
            if share > SCALE_RANGE[0]:
                warnings.append(
                    f'{joint}: effort is declared to be without gravity but follows {share:.2f} '
                    'of it'
                )
        elif not SCALE_RANGE[0] < share < SCALE_RANGE[1]:
            warnings.append(
                f'{joint}: effort follows {share:.2f} times the gravity of the URDF; is it '
                "without gravity (kind 'no_gravity'), motor current, on the other side of the "
                'gear, or of the other sign?'
            )
    return warnings
