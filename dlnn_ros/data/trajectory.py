"""
Recorded motion as frozen, validated values.

`Recording` is what sensors gave over one uninterrupted stretch of time; `Trajectory` is the
same stretch with velocity and acceleration; `Dataset` is a set of them from one robot.
All arrays are read-only, time on the first axis, joints last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dlnn_ros.config import Robot
from dlnn_ros.data.observation import ObservationFilter
import numpy as np

ROLES = ('', 'train', 'validation', 'test')


def _frozen(name: str, value: object, shape: tuple[int, ...] | None, dtype: type) -> np.ndarray:
    array: np.ndarray = np.array(value, dtype=dtype)
    if shape is not None and array.shape != shape:
        raise ValueError(f'{name} has shape {array.shape}, expected {shape}')
    array.setflags(write=False)
    return array


def _check_finite(name: str, array: np.ndarray) -> None:
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))
        raise ValueError(
            f'{name} has {len(bad)} non-finite values, the first at {bad[0].tolist()}'
        )


@dataclass(frozen=True, eq=False)
class Recording:
    """
    One uninterrupted stretch of measured motion.

    Attributes
    ----------
    t : array, (N,)
        Time of each sample [s], strictly increasing.
    q : array, (N, n)
        Joint position [rad | m].
    tau : array, (N, n)
        Effort as recorded; `Robot.effort` says what it means. Finite wherever `valid`.
    velocity : array, (N, n), or None
        Joint velocity as the driver reported it [rad/s | m/s].
    valid : array of bool, (N,)
        Samples that may be fitted and scored; all where None is given.
    name : str
        Shown in reports.
    group : str
        Repeats of one motion share a group and are never split apart; `name` where empty.
    role : str
        'train', 'validation' or 'test' where the source prescribes it, else ''.
    observation_filter : ObservationFilter or None
        Low-pass that the recorded effort went through; None for none.

    """

    t: np.ndarray
    q: np.ndarray
    tau: np.ndarray
    velocity: np.ndarray | None = None
    valid: np.ndarray | None = None
    name: str = 'recording'
    group: str = ''
    role: str = ''
    observation_filter: ObservationFilter | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, 't', _frozen('t', self.t, None, float))
        if self.t.ndim != 1 or len(self.t) < 2:
            raise ValueError(f'{self.name}: t has shape {self.t.shape}, expected (N,) with N >= 2')
        put(self, 'q', _frozen('q', self.q, None, float))
        if self.q.ndim != 2 or len(self.q) != len(self.t):
            raise ValueError(f'{self.name}: q has shape {self.q.shape} for {len(self.t)} times')
        put(self, 'tau', _frozen('tau', self.tau, self.q.shape, float))
        if self.velocity is not None:
            put(self, 'velocity', _frozen('velocity', self.velocity, self.q.shape, float))
            _check_finite(f'{self.name}: velocity', self.velocity)
        valid = np.ones(len(self.t), bool) if self.valid is None else self.valid
        put(self, 'valid', _frozen('valid', valid, self.t.shape, bool))
        put(self, 'group', self.group or self.name)
        if self.role not in ROLES:
            raise ValueError(f'{self.name}: role {self.role!r} must be one of {ROLES}')
        _check_finite(f'{self.name}: t', self.t)
        _check_finite(f'{self.name}: q', self.q)
        _check_finite(f'{self.name}: tau', self.tau[self.valid])
        if not (np.diff(self.t) > 0).all():
            k = int(np.argmin(np.diff(self.t) > 0))
            raise ValueError(
                f'{self.name}: time does not increase at sample {k + 1}: '
                f'{self.t[k]:.6f} s, then {self.t[k + 1]:.6f} s'
            )

    @property
    def rate_hz(self) -> float:
        """Sample rate [Hz] from the median sample period."""
        return float(1.0 / np.median(np.diff(self.t)))


@dataclass(frozen=True, eq=False)
class Trajectory:
    """
    A recording with its derivatives.

    Attributes
    ----------
    recording : Recording
        What was measured.
    q, qd, qdd : array, (N, n)
        Position, velocity and acceleration at `recording.t` [rad | m, /s, /s^2]; `q` may be
        smoothed by the method that gave the derivatives.
    method : str
        How they were derived, in one line.

    """

    recording: Recording
    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray
    method: str = ''

    def __post_init__(self) -> None:
        for name in ('q', 'qd', 'qdd'):
            array = _frozen(name, getattr(self, name), self.recording.q.shape, float)
            _check_finite(f'{self.recording.name}: {name}', array)
            object.__setattr__(self, name, array)

    @property
    def t(self) -> np.ndarray:
        return self.recording.t

    @property
    def tau(self) -> np.ndarray:
        return self.recording.tau

    @property
    def valid(self) -> np.ndarray:
        assert self.recording.valid is not None
        return self.recording.valid

    def with_role(self, role: str) -> Trajectory:
        """Return the same trajectory with another role."""
        return replace(self, recording=replace(self.recording, role=role))


class Samples(NamedTuple):
    """Valid samples of some trajectories, one after the other; arrays (N, n)."""

    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray
    tau: np.ndarray


@dataclass(frozen=True, eq=False)
class RecordingSet:
    """Recordings of one robot, as a source gave them."""

    robot: Robot
    recordings: tuple[Recording, ...]
    source: str = ''

    def __post_init__(self) -> None:
        if not self.recordings:
            raise ValueError(f'{self.source}: no recording with at least 2 samples')
        for r in self.recordings:
            if r.q.shape[1] != self.robot.n:
                raise ValueError(
                    f'{self.source}: {r.name} has {r.q.shape[1]} joints, '
                    f'robot {self.robot.name!r} has {self.robot.n}'
                )


@dataclass(frozen=True, eq=False)
class Dataset:
    """Trajectories of one robot, each with its role in learning."""

    robot: Robot
    trajectories: tuple[Trajectory, ...]
    source: str = ''
    notes: tuple[str, ...] = field(default=())

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)

    def role(self, role: str) -> Dataset:
        """Return the part with the given role."""
        part = tuple(t for t in self.trajectories if t.recording.role == role)
        return replace(self, trajectories=part)

    def samples(self) -> Samples:
        """
        Return all valid samples.

        `tau` is the generalised force on the joint side [N m | N], as the equations of
        dynamics/ use it: recorded effort times gear ratio.

        Raises
        ------
        ValueError
            If there is no sample.

        """
        if not self.trajectories:
            raise ValueError(f'{self.source}: no trajectory in this part of the data set')
        if not any(t.valid.any() for t in self):
            names = ', '.join(t.recording.name for t in self)
            raise ValueError(f'{self.source}: no sample of {names} has an effort of all joints')
        cat = np.concatenate
        return Samples(
            cat([t.q[t.valid] for t in self]),
            cat([t.qd[t.valid] for t in self]),
            cat([t.qdd[t.valid] for t in self]),
            cat([t.tau[t.valid] for t in self]) * self.robot.gear_ratio,
        )
