"""
The KUKA KR300 recordings as published, read into this package's types.

The benchmark (doi:10.26204/DATA/5) gives axis positions relative to the home pose in degrees and
motor-side torque [N m] at 10 Hz, zero-phase low-passed at 4 Hz. One recording holds three
motions, each run twice, and is one uninterrupted stretch of time; the test file is exactly one
recording, the training file several of the same length, the last one a little shorter.

    kuka-forward   official forward file: torque and position
    kuka-inverse   official inverse file: position, velocity, acceleration and torque
    kuka-shifted   copy of the forward file in which each motion lost one sample of each signal
    kuka-250hz     data.mat of one recording of the IROS 2021 set, 250 Hz
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dlnn_ros.config import load_robot, Robot
from dlnn_ros.data.observation import ObservationFilter
from dlnn_ros.data.trajectory import Dataset, Recording, RecordingSet, Trajectory
import numpy as np

AXES = 6
PERIOD_S = 0.1
BLOCKS = 6  # motions per recording
# At the cuts between recordings the arm stands still; real files stay below 0.02 deg per sample.
REST_DEG = 0.2
# What the 10 Hz files went through before they were decimated.
PREPARED = ObservationFilter(cutoff_hz=4.0)


def kuka_forward(path: str | Path) -> RecordingSet:
    """
    Read the official forward file: keys u_train, y_train, u_test, y_test.

    `u` (6, N) is motor torque [N m], `y` (6, N) the position relative to home [deg].

    """
    mat, robot = _load(path), load_robot('kr300')
    length = _columns(path, mat, 'u_test', AXES)
    recordings = []
    for part in ('train', 'test'):
        n = _columns(path, mat, f'u_{part}', AXES)
        u = _matrix(path, mat, f'u_{part}', AXES, n)
        y = _matrix(path, mat, f'y_{part}', AXES, n)
        for name, role, cut in _cuts(path, part, y, length):
            t = PERIOD_S * np.arange(cut.stop - cut.start)
            recordings.append(_recording(robot, t, y[:, cut], u[:, cut], name, role, PREPARED))
    return RecordingSet(robot, tuple(recordings), str(path))


def kuka_inverse(path: str | Path) -> Dataset:
    """
    Read the official inverse file: keys u_train, y_train, u_test, y_test.

    `u` (18, N) is position [deg], velocity [deg/s] and acceleration [deg/s^2], taken as they
    are; `y` (6, N) is motor torque [N m].

    """
    mat, robot = _load(path), load_robot('kr300')
    length = _columns(path, mat, 'y_test', AXES)
    trajectories = []
    for part in ('train', 'test'):
        n = _columns(path, mat, f'y_{part}', AXES)
        u = _matrix(path, mat, f'u_{part}', 3 * AXES, n)
        y = _matrix(path, mat, f'y_{part}', AXES, n)
        for name, role, cut in _cuts(path, part, u[:AXES], length):
            t = PERIOD_S * np.arange(cut.stop - cut.start)
            qd, qdd = (np.radians(u[k * AXES : (k + 1) * AXES, cut]).T for k in (1, 2))
            q, tau = u[:AXES, cut], y[:, cut]
            recording = _recording(robot, t, q, tau, name, role, PREPARED, velocity=qd)
            trajectories.append(
                Trajectory(recording, recording.q, qd, qdd, 'derivatives of the benchmark file')
            )
    return Dataset(robot, tuple(trajectories), str(path))


def kuka_shifted(path: str | Path) -> RecordingSet:
    """
    Read the shifted copy of the forward file: keys u_*, y_* with * = train, val, test.

    Each motion of P samples is stored in P - 1 columns: torque without its last sample, position
    without its first. Here a sample without position is left out of `t`, one without torque has
    `tau` NaN and is not `valid`, and so are the zeros the copy is padded with at its end.

    """
    mat, robot = _load(path), load_robot('kr300')
    test = _columns(path, mat, 'u_test', AXES)
    if test % BLOCKS:
        raise ValueError(f'{path}: u_test has {test} columns, expected {BLOCKS} equal motions')
    period = test // BLOCKS + 1
    i = np.arange(BLOCKS * period)
    has_q, has_tau = i % period != 0, i % period != period - 1
    recordings: list[Recording] = []
    for part, prefix in (('train', 'train'), ('val', 'train'), ('test', 'test')):
        n = _columns(path, mat, f'u_{part}', AXES)
        u = _matrix(path, mat, f'u_{part}', AXES, n)
        y = _matrix(path, mat, f'y_{part}', AXES, n)
        if n % test:
            raise ValueError(
                f'{path}: u_{part} has {n} columns, not a multiple of the {test} of u_test'
            )
        padding = n - 1 - int(np.flatnonzero(u.any(axis=0))[-1]) if u.any() else n
        for k in range(n // test):
            cut = slice(k * test, (k + 1) * test)
            tau = np.full((AXES, len(i)), np.nan)
            tau[:, has_tau] = u[:, cut]
            if k == n // test - 1 and padding:
                tau[:, np.flatnonzero(has_tau)[-padding:]] = np.nan
            number = sum(r.name.startswith(prefix) for r in recordings)
            recordings.append(
                _recording(
                    robot,
                    PERIOD_S * i[has_q],
                    y[:, cut],
                    tau[:, has_q],
                    f'{prefix}{number:02d}',
                    prefix,
                    PREPARED,
                )
            )
    return RecordingSet(robot, _hold_out(recordings), str(path))


def kuka_250hz(path: str | Path) -> RecordingSet:
    """
    Read one recording at 250 Hz: struct `rec` of data.mat.

    Position and velocity are those of the motor encoder, because the secondary encoder is off
    by up to 72 deg on axes 4 to 6; effort is the total motor torque [N m].

    """
    mat, robot = _load(path), load_robot('kr300')
    rec = mat.get('rec')
    names = set(rec.dtype.names or ()) if isinstance(rec, np.ndarray) else set()
    keys = 'time_cont', 'act_pos_mot_deg', 'act_vel_mot_deg_per_s', 'act_torque_abs_nm'
    missing = [k for k in keys if k not in names]
    if missing:
        raise ValueError(
            f'{path}: struct rec lacks {", ".join(missing)}; expected data.mat of one recording'
        )
    assert isinstance(rec, np.ndarray)
    fields: dict[str, Any] = {k: rec[k].reshape(-1)[0] for k in keys}
    t = np.asarray(fields['time_cont'], float).reshape(-1)
    q, qd, tau = (_matrix(path, fields, k, AXES, len(t)) for k in keys[1:])
    name = Path(path).stem
    recording = _recording(robot, t, q, tau, name, '', velocity=np.radians(qd).T)
    return RecordingSet(robot, (recording,), str(path))


class _Cut(NamedTuple):
    name: str
    role: str
    columns: slice


def _cuts(path: str | Path, part: str, q_deg: np.ndarray, length: int) -> Iterator[_Cut]:
    """Yield the recordings of `part`, each of `length` columns, the last one perhaps shorter."""
    n = q_deg.shape[1]
    starts = list(range(0, n, length))
    for k in starts[1:]:
        step = np.abs(q_deg[:, k] - q_deg[:, k - 1]).max()
        if step > REST_DEG:
            raise ValueError(
                f'{path}: {part} is expected to hold recordings of {length} samples that start '
                f'at rest, but the position moves by {step:.3g} deg at sample {k}'
            )
    held_out = _held_out(len(starts))
    for k, start in enumerate(starts):
        role = 'validation' if part == 'train' and k in held_out else part
        yield _Cut(f'{part}{k:02d}', role, slice(start, min(start + length, n)))


def _held_out(recordings: int) -> range:
    """Return the training recordings held out for validation: the last two, or fewer of few."""
    return range(recordings - min(2, recordings // 2), recordings)


def _hold_out(recordings: list[Recording]) -> tuple[Recording, ...]:
    held_out = _held_out(sum(r.role == 'train' for r in recordings))
    return tuple(
        replace(r, role='validation') if r.role == 'train' and k in held_out else r
        for k, r in enumerate(recordings)
    )


def _recording(
    robot: Robot,
    t: np.ndarray,
    q_deg: np.ndarray,
    tau: np.ndarray,
    name: str,
    role: str,
    observation_filter: ObservationFilter | None = None,
    velocity: np.ndarray | None = None,
) -> Recording:
    """Make a recording from (6, N) arrays, position in degrees relative to home."""
    q = np.radians(q_deg.T) + robot.position_offset
    valid = np.isfinite(tau).all(axis=0)
    return Recording(
        t,
        q,
        tau.T,
        velocity,
        valid=valid,
        name=name,
        role=role,
        observation_filter=observation_filter,
    )


def _load(path: str | Path) -> dict[str, Any]:
    import scipy.io

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f'{path}: no such file')
    try:
        return scipy.io.loadmat(path)
    except NotImplementedError:
        raise ValueError(
            f'{path}: MATLAB 7.3 (HDF5) file is not supported; save it with -v7'
        ) from None
    except Exception as error:
        # scipy reports a damaged file by a dozen exception types.
        raise ValueError(f'{path}: not a readable MATLAB file ({error})') from None


def _columns(path: str | Path, mat: dict[str, Any], key: str, rows: int) -> int:
    return _matrix(path, mat, key, rows, None).shape[1]


def _matrix(
    path: str | Path, mat: dict[str, Any], key: str, rows: int, columns: int | None
) -> np.ndarray:
    if key not in mat:
        known = ', '.join(k for k in mat if not k.startswith('__'))
        raise ValueError(f'{path}: no variable {key!r}; the file has {known or "none"}')
    array = np.asarray(mat[key])
    if array.dtype.kind not in 'fiu' or array.ndim != 2 or array.shape[0] != rows:
        raise ValueError(
            f'{path}: {key} has shape {array.shape} and type {array.dtype}, '
            f'expected numbers of shape ({rows}, N)'
        )
    if columns is not None and array.shape[1] != columns:
        raise ValueError(f'{path}: {key} has {array.shape[1]} columns, expected {columns}')
    if array.shape[1] < 2:
        raise ValueError(f'{path}: {key} has {array.shape[1]} columns, expected at least 2')
    return array.astype(float)


RECORDING_LOADERS: dict[str, Callable[[str | Path], RecordingSet]] = {
    'kuka-forward': kuka_forward,
    'kuka-shifted': kuka_shifted,
    'kuka-250hz': kuka_250hz,
}
KINDS = (*RECORDING_LOADERS, 'kuka-inverse')
