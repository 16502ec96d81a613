"""
Joint states in rosbag2 folders and files, read and written without ROS.

Reading goes by joint name and by header stamp. Files of a split bag are read in order of time,
whatever they are called; files compressed as a whole and messages compressed one by one are
recognised by their first bytes, with or without metadata.yaml.

The stream is cut into segments, and every segment becomes a `Recording`:

- messages that come out of order by up to `REORDER_S` are put in order by their stamps; one that
  then lies closer to another than half a sample period is dropped, as after a clock step of some
  milliseconds; a stamp further back starts a new segment;
- a stamp that repeats is dropped;
- a gap longer than `GAP_PERIODS` median periods and than `GAP_S` starts a new segment: a few
  lost messages are bridged by every derivative method, a pause is not;
- a segment of fewer than `MIN_SAMPLES` samples is dropped.

All of it is counted in `BagReport`, so that nothing is lost in silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
import tempfile
from typing import Any, NamedTuple

from dlnn_ros.config import from_mapping, Robot, to_mapping
from dlnn_ros.data import cdr
from dlnn_ros.data.bag_files import (
    choose_topic,
    custom_data,
    DEFAULT_TOPIC,
    File,
    JOINT_STATE,
    open_files,
    read_chunks,
)
from dlnn_ros.data.observation import ObservationFilter
from dlnn_ros.data.trajectory import Recording, RecordingSet
import numpy as np
import yaml

STORAGES = ('mcap', 'sqlite3')
REORDER_S = 0.1
GAP_PERIODS = 5.0
GAP_S = 0.05
MIN_SAMPLES = 16
ROBOT_KEY = 'dlnn_robot'
RECORDINGS_KEY = 'dlnn_recordings'
# Written stamps start here: a stamp of zero means 'not filled in'.
FIRST_STAMP_NS = 10**9


@dataclass(frozen=True)
class BagReport:
    """
    What became of the messages of a topic.

    Attributes
    ----------
    path, topic : str
        Where they came from.
    messages : int
        Messages on the topic.
    used : int
        Samples in the recordings.
    rejected : dict
        Reason -> number of messages that could not be used.
    repeats : int
        Messages that repeat a stamp.
    reordered : int
        Messages that came out of order and were put in order.
    restarts : int
        Times the stamps jumped back.
    gaps : tuple of float
        Pauses [s] at which the stream was cut.
    lost : int
        Messages missing between others, by the median period, pauses not counted.
    short : int
        Samples in segments too short to be used.
    without_velocity : int
        Recordings that lost their velocity because some of their messages have none.
    log_spread_s : float or None
        5 to 95 percent range of log time minus header stamp [s].
    uses_log_time : bool
        The header stamps are all zero, so log times stand in.
    first_stamp_ns : int
        Stamp at which `Recording.t` is zero [ns].

    """

    path: str
    topic: str
    messages: int
    used: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    repeats: int = 0
    reordered: int = 0
    restarts: int = 0
    gaps: tuple[float, ...] = ()
    lost: int = 0
    short: int = 0
    without_velocity: int = 0
    log_spread_s: float | None = None
    uses_log_time: bool = False
    first_stamp_ns: int = 0

    def notes(self) -> tuple[str, ...]:
        """Return what a user should know, a line each; empty for a clean bag."""
        lines = [f'{n} messages rejected: {why}' for why, n in self.rejected.items()]
        longest = max(self.gaps, default=0.0)
        for n, text in (
            (self.repeats, '{} messages repeat a stamp: dropped'),
            (self.reordered, '{} messages came out of order: sorted by stamp'),
            (self.restarts, 'the stamps jump back {} times: cut there'),
            (len(self.gaps), f'{{}} gaps, the longest {longest:.3g} s: cut there'),
            (self.lost, 'about {} messages are missing between others'),
            (self.short, f'{{}} samples in segments of fewer than {MIN_SAMPLES}: dropped'),
            (self.without_velocity, '{} recordings lack velocity in some messages: not used'),
            (self.uses_log_time, 'header stamps are all zero: log times are used'),
        ):
            if n:
                lines.append(text.format(n))
        return tuple(f'{self.path}: {line}' for line in lines)


class Bag(NamedTuple):
    """Recordings of a bag and what became of its messages."""

    recordings: RecordingSet
    report: BagReport


def read_bag(
    path: str | Path, topic: str | None = None, robot: Robot | None = None
) -> RecordingSet:
    """Read the joint states of a bag; see :func:`read_bag_with_report`."""
    return read_bag_with_report(path, topic, robot).recordings


def read_bag_with_report(
    path: str | Path,
    topic: str | None = None,
    robot: Robot | None = None,
    default: Robot | None = None,
) -> Bag:
    """
    Read the joint states of a rosbag2 folder or of one of its files.

    Parameters
    ----------
    path : str or Path
        Folder with or without metadata.yaml, .mcap or .db3 file, or one compressed by zstd.
    topic : str or None
        Topic to read; where None, /joint_states or the only topic of that type with messages.
    robot : Robot or None
        Joints to look up by name, and what they mean. Where None, the robot written into the
        bag by :func:`write_bag`; without that `default`; without that the joints of the first
        message, all revolute, effort on the joint side.
    default : Robot or None
        See `robot`.

    Raises
    ------
    FileNotFoundError, ValueError
        One line that says what is wrong with the bag and what to do.

    """
    path = Path(path)
    with contextlib.ExitStack() as stack:
        files = open_files(path, stack)
        topic = choose_topic(path, files, topic)
        custom = custom_data(path, files)
        if robot is None and ROBOT_KEY in custom:
            robot = _parse_robot(path, custom[ROBOT_KEY])
        stream = _read_stream(path, topic, files, robot or default)
    notes = _parse_notes(path, custom.get(RECORDINGS_KEY))
    bag = _segment(path, topic, stream, notes)
    named = _restore_names(bag, notes)
    return Bag(replace(bag.recordings, recordings=named), bag.report)


class _Stream(NamedTuple):
    """Usable messages in file order; velocity and effort NaN where a message has none."""

    robot: Robot
    stamps: np.ndarray
    log: np.ndarray
    q: np.ndarray
    velocity: np.ndarray
    tau: np.ndarray
    messages: int
    rejected: dict[str, int]
    uses_log_time: bool


def _read_stream(path: Path, topic: str, files: Sequence[File], robot: Robot | None) -> _Stream:
    given = robot is not None
    parts = []
    rejected: Counter[str] = Counter()
    seen: dict[str, None] = {}
    messages = 0
    for file, raws, log in read_chunks(topic, files):
        try:
            groups = cdr.parse(raws)
        except ValueError as error:
            raise ValueError(f'{file}: {topic}: {error}') from None
        for group in sorted(groups, key=lambda g: int(g.members[0])):
            seen.update(dict.fromkeys(group.names))
            if robot is None and group.names and not _misfit(group, None):
                robot = _plain_robot(path, group.names)
            reason = _misfit(group, robot)
            if reason:
                rejected[reason] += len(group.members)
                continue
            assert robot is not None
            parts.append(_by_name(group, robot, np.array(log, np.int64)[group.members], messages))
        messages += len(raws)
    if not parts:
        raise ValueError(f'{path}: {topic}: {_why_nothing(rejected, seen, robot, messages)}')
    assert robot is not None
    lacking = [reason for reason in rejected if reason.startswith('lacks')]
    if not given and lacking:
        raise ValueError(
            f'{path}: {topic}: messages hold different sets of joints (the first one has '
            f'{", ".join(robot.joints)}; another one {lacking[0]}); name the robot with --robot'
        )
    number, stamps, log_times, q, velocity, tau = (
        np.concatenate([part[k] for part in parts]) for k in range(6)
    )
    order = np.argsort(number, kind='stable')
    stamps, log_times, q, velocity, tau = (a[order] for a in (stamps, log_times, q, velocity, tau))
    uses_log_time = not stamps.any()
    if uses_log_time:
        stamps = log_times
    keep = np.ones(len(stamps), bool)
    for reason, good in (
        ('the stamp is zero', stamps != 0),
        ('a position is not finite', np.isfinite(q).all(axis=1)),
    ):
        if (~good).any():
            rejected[reason] += int((keep & ~good).sum())
            keep &= good
    return _Stream(
        robot,
        stamps[keep],
        log_times[keep],
        q[keep],
        velocity[keep],
        tau[keep],
        messages,
        dict(rejected),
        uses_log_time,
    )


def _parse_robot(path: Path, text: str) -> Robot:
    where = f'{path}: robot in the metadata'
    try:
        mapping = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError(f'{where}: not valid YAML; name the robot with --robot') from None
    return from_mapping(Robot, mapping, where)


def _plain_robot(path: Path, joints: tuple[str, ...]) -> Robot:
    return Robot(path.name.split('.')[0] or 'robot', joints, ('revolute',) * len(joints))


def _misfit(group: cdr.Group, robot: Robot | None) -> str:
    """Return why the messages of a group cannot be used, '' where they can."""
    n = len(group.names)
    if group.position.shape[1] != n or n == 0:
        return f'{n} names but {group.position.shape[1]} positions'
    for name, array in (('velocities', group.velocity), ('efforts', group.effort)):
        if array.shape[1] not in (0, n):
            return f'{n} names but {array.shape[1]} {name}'
    if len(set(group.names)) != n:
        return 'a joint name appears twice'
    if robot is not None:
        missing = [joint for joint in robot.joints if joint not in group.names]
        if missing:
            return f'lacks {", ".join(missing)}'
    return ''


def _why_nothing(
    rejected: Mapping[str, int], seen: Mapping[str, None], robot: Robot | None, messages: int
) -> str:
    if robot is not None:
        missing = [joint for joint in robot.joints if joint not in seen]
        if missing:
            return (
                f'joints {", ".join(missing)} of robot {robot.name!r} are not in the messages; '
                f'they have {", ".join(seen) or "no names"}'
            )
        if any(reason.startswith('lacks') for reason in rejected):
            return (
                'no message holds all joints of the robot (several publishers, each with a part, '
                'are not merged); ' + '; '.join(f'{n} messages: {r}' for r, n in rejected.items())
            )
    reasons = '; '.join(f'{n} messages: {reason}' for reason, n in rejected.items())
    return f'none of {messages} messages can be used ({reasons})'


def _by_name(
    group: cdr.Group, robot: Robot, log: np.ndarray, offset: int
) -> tuple[np.ndarray, ...]:
    """Return message number, stamp, log time, q, velocity, tau in the robot's joint order."""
    columns = [group.names.index(joint) for joint in robot.joints]
    nothing = np.full((len(group.members), robot.n), np.nan)
    velocity = group.velocity[:, columns] if group.velocity.shape[1] else nothing
    tau = group.effort[:, columns] if group.effort.shape[1] else nothing
    q = group.position[:, columns]
    return group.members + offset, group.stamps, log, q, velocity, tau


def _segment(path: Path, topic: str, stream: _Stream, notes: Sequence[_Note]) -> Bag:
    jumps = _runs(stream.stamps)
    # Recordings that write_bag put into one bag may differ in rate: cut there before anything
    # is judged by the median period.
    starts = np.array(sorted(note.first_ns for note in notes), np.int64)
    label = np.searchsorted(starts, stream.stamps, side='right')
    runs = [
        part for run in jumps for part in np.split(run, np.flatnonzero(np.diff(label[run])) + 1)
    ]
    first = int(stream.stamps.min()) if len(stream.stamps) else 0
    repeats = reordered = short = lost = without_velocity = 0
    gaps: list[float] = []
    recordings: list[Recording] = []
    for run in runs:
        kept, dropped, moved = _in_order(stream.stamps, run)
        repeats += dropped
        reordered += moved
        dt = np.diff(stream.stamps[kept]) * 1e-9
        if not len(dt):
            short += len(kept)
            continue
        period = float(np.median(dt))
        is_gap = dt > max(GAP_PERIODS * period, GAP_S)
        gaps += dt[is_gap].tolist()
        for part in np.split(kept, np.flatnonzero(is_gap) + 1):
            # From the duration: jitter lengthens one step as it shortens the next.
            span = (stream.stamps[part[-1]] - stream.stamps[part[0]]) * 1e-9
            lost += max(0, round(span / period) + 1 - len(part))
            if len(part) < MIN_SAMPLES:
                short += len(part)
                continue
            has_velocity = np.isfinite(stream.velocity[part]).all(axis=1)
            without_velocity += int(has_velocity.any() and not has_velocity.all())
            recordings.append(
                Recording(
                    (stream.stamps[part] - first) * 1e-9,
                    _unwrap(stream.q[part], stream.robot),
                    stream.tau[part],
                    stream.velocity[part] if has_velocity.all() else None,
                    valid=np.isfinite(stream.tau[part]).all(axis=1),
                    name=f'{_stem(path)}#{len(recordings)}',
                )
            )
    if not recordings:
        raise ValueError(
            f'{path}: {topic}: no stretch of {MIN_SAMPLES} samples without a gap in '
            f'{stream.messages} messages'
        )
    delay = (stream.log - stream.stamps) * 1e-9
    spread = None if stream.uses_log_time else float(np.ptp(np.percentile(delay, [5, 95])))
    report = BagReport(
        path=str(path),
        topic=topic,
        messages=stream.messages,
        used=sum(len(r.t) for r in recordings),
        rejected=stream.rejected,
        repeats=repeats,
        reordered=reordered,
        restarts=len(jumps) - 1,
        gaps=tuple(gaps),
        lost=lost,
        short=short,
        without_velocity=without_velocity,
        log_spread_s=spread,
        uses_log_time=stream.uses_log_time,
        first_stamp_ns=first,
    )
    return Bag(RecordingSet(stream.robot, tuple(recordings), str(path)), report)


def _stem(path: Path) -> str:
    name = path.resolve().name
    return name.split('.')[0] if path.is_file() else name


def _runs(stamps: np.ndarray) -> list[np.ndarray]:
    """Return the indices between backward jumps of more than REORDER_S."""
    starts = []
    latest = int(stamps[0]) if len(stamps) else 0
    for k, stamp in enumerate(stamps.tolist()):
        if latest - stamp > REORDER_S * 1e9:
            starts.append(k)
            latest = stamp
        elif stamp > latest:
            latest = stamp
    return np.split(np.arange(len(stamps)), starts)


def _in_order(stamps: np.ndarray, run: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Return the run in order of stamps, how many were dropped and how many were moved."""
    s = stamps[run]
    late = np.zeros(len(run), bool)
    late[1:] = s[1:] <= np.maximum.accumulate(s)[:-1]
    if not late.any():
        return run, 0, 0
    # Stable, so of equal stamps the first to arrive stays.
    order = np.argsort(s, kind='stable')
    order = order[np.diff(s[order], prepend=s[order[0]] - 1) > 0]
    kept, late = run[order], late[order]
    dt = np.diff(stamps[kept])
    close = 0.5 * float(np.median(dt)) if len(dt) else 0.0
    is_close = np.zeros(len(kept), bool)
    is_close[1:] = dt < close
    is_close[:-1] |= dt < close
    drop = late & is_close
    return kept[~drop], len(run) - len(kept) + int(drop.sum()), int((late & ~drop).sum())


def _unwrap(q: np.ndarray, robot: Robot) -> np.ndarray:
    """Return q with the jumps of 2 pi of continuous joints taken out."""
    turning = [k for k, kind in enumerate(robot.kinds) if kind == 'continuous']
    if not turning:
        return q
    q = q.copy()
    q[:, turning] = np.unwrap(q[:, turning], axis=0)
    return q


class _Note(NamedTuple):
    """What write_bag notes of a recording: first and last stamp [ns], and what no message says."""

    first_ns: int
    last_ns: int
    name: str
    group: str
    role: str
    observation_filter: dict[str, Any] | None = None


def _parse_notes(path: Path, text: str | None) -> list[_Note]:
    if text is None:
        return []
    try:
        return [
            _Note(
                int(x['first_ns']),
                int(x['last_ns']),
                str(x['name']),
                str(x['group']),
                str(x['role']),
                x.get('observation_filter'),
            )
            for x in yaml.safe_load(text)
        ]
    except (yaml.YAMLError, KeyError, TypeError, ValueError):
        raise ValueError(f'{path}: {RECORDINGS_KEY} in the metadata is damaged') from None


def _restore_names(bag: Bag, notes: Sequence[_Note]) -> tuple[Recording, ...]:
    """Return the recordings with the names, groups and roles that write_bag noted."""
    first_ns = bag.report.first_stamp_ns
    named: list[Recording] = []
    parts: Counter[str] = Counter()
    for r in bag.recordings.recordings:
        start, end = (first_ns + round(float(t) * 1e9) for t in (r.t[0], r.t[-1]))
        # Half a microsecond for the rounding of t.
        match = [n for n in notes if n.first_ns - 500 <= start and end <= n.last_ns + 500]
        if len(match) == 1:
            note = match[0]
            name = f'{note.name}#{parts[note.name]}' if parts[note.name] else note.name
            parts[note.name] += 1
            r = replace(r, name=name, group=note.group, role=note.role)
            if note.observation_filter is not None:
                r = replace(
                    r,
                    observation_filter=from_mapping(
                        ObservationFilter,
                        note.observation_filter,
                        f'{bag.report.path}: {RECORDINGS_KEY}',
                    ),
                )
        named.append(r)
    return tuple(named)


def write_bag(
    path: str | Path,
    recording_set: RecordingSet,
    topic: str = DEFAULT_TOPIC,
    storage: str = 'mcap',
) -> None:
    """
    Write recordings as joint states into a new rosbag2 folder.

    The recordings follow each other with a gap of at least a second in the stamps, so that
    reading cuts them apart again; a sample that is not valid gets effort NaN. The robot and the
    names, groups and roles of the recordings go into the metadata. The folder appears under its
    name only when it is complete.

    Parameters
    ----------
    path : str or Path
        Folder to make.
    recording_set : RecordingSet
        What to write.
    topic : str
        Topic of the messages.
    storage : str
        'mcap' or 'sqlite3'.

    Raises
    ------
    FileExistsError
        There is something at `path` already.
    ValueError
        Another storage, or a recording that would be cut on reading.

    """
    path = Path(path)
    if storage not in STORAGES:
        raise ValueError(f'storage {storage!r} must be one of {STORAGES}')
    if path.exists():
        raise FileExistsError(f'{path}: exists already; remove it or name another folder')
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f'.{path.name}.') as folder:
        target = Path(folder) / path.name
        _write(target, recording_set, '/' + topic.lstrip('/'), storage)
        target.rename(path)


def open_writer(path: Path, storage: str) -> Any:
    """Return a rosbags writer of a new bag that Humble, Jazzy and later read; not yet open."""
    from rosbags.rosbag2 import StoragePlugin, Writer

    plugin = StoragePlugin.MCAP if storage == 'mcap' else StoragePlugin.SQLITE3
    return Writer(path, version=8, storage_plugin=plugin)


def joint_state_types() -> Any:
    """Return the type store that joint states are written with."""
    from rosbags.typesys import get_typestore, Stores

    return get_typestore(Stores.ROS2_HUMBLE)


def _write(target: Path, recording_set: RecordingSet, topic: str, storage: str) -> None:
    robot = recording_set.robot
    store = joint_state_types()
    stamps = _stamps(recording_set)
    with open_writer(target, storage) as writer:
        writer.set_custom_data(ROBOT_KEY, yaml.safe_dump(to_mapping(robot), sort_keys=False))
        noted = [
            _Note(
                int(s[0]),
                int(s[-1]),
                r.name,
                r.group,
                r.role,
                to_mapping(r.observation_filter),
            )._asdict()
            for r, s in zip(recording_set.recordings, stamps, strict=True)
        ]
        writer.set_custom_data(RECORDINGS_KEY, yaml.safe_dump(noted, sort_keys=False))
        connection = writer.add_connection(topic, JOINT_STATE, typestore=store)
        for r, s in zip(recording_set.recordings, stamps, strict=True):
            velocity = np.empty((len(r.t), 0)) if r.velocity is None else r.velocity
            assert r.valid is not None
            tau = np.where(r.valid[:, None], r.tau, np.nan)
            template = _template(store, robot.joints, velocity.shape[1])
            for stamp, raw in zip(
                s.tolist(), cdr.patch(template, s, (r.q, velocity, tau)), strict=True
            ):
                writer.write(connection, stamp, raw)


def _template(store: Any, joints: tuple[str, ...], velocities: int) -> bytes:
    types = store.types
    header = types['std_msgs/msg/Header'](types['builtin_interfaces/msg/Time'](0, 0), '')
    zeros = np.zeros(len(joints))
    message = types[JOINT_STATE](header, list(joints), zeros, np.zeros(velocities), zeros)
    return bytes(store.serialize_cdr(message, JOINT_STATE))


def _stamps(recording_set: RecordingSet) -> list[np.ndarray]:
    """Return the stamps [ns] of every recording, one recording after the other."""
    stamps = []
    start = FIRST_STAMP_NS
    for r in recording_set.recordings:
        dt = np.diff(r.t)
        cut = max(GAP_PERIODS * float(np.median(dt)), GAP_S)
        if dt.max() > cut:
            raise ValueError(
                f'{r.name}: a gap of {dt.max():.4g} s would be cut on reading '
                f'(more than {cut:.4g} s); cut the recording there first'
            )
        if len(r.t) < MIN_SAMPLES:
            raise ValueError(
                f'{r.name}: {len(r.t)} samples are fewer than the {MIN_SAMPLES} that reading keeps'
            )
        s = start + np.rint((r.t - r.t[0]) * 1e9).astype(np.int64)
        stamps.append(s)
        start = int(s[-1]) + round(1e9 * max(1.0, 2 * cut))
    return stamps
