"""From what a user names on the command line to recordings and data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
import hashlib
from pathlib import Path
from typing import NamedTuple, TypeVar

from dlnn_ros.config import Robot
from dlnn_ros.data.bags import BagReport, read_bag_with_report
from dlnn_ros.data.benchmarks import KINDS, kuka_inverse, RECORDING_LOADERS
from dlnn_ros.data.derivatives import Derivatives, differentiate
from dlnn_ros.data.observation import ObservationFilter
from dlnn_ros.data.quality import check_effort, check_positions, inspect_trajectories
from dlnn_ros.data.splits import assign_roles
from dlnn_ros.data.trajectory import Dataset, Recording, RecordingSet

Source = TypeVar('Source', RecordingSet, Dataset)


class Loaded(NamedTuple):
    """Recordings, and for every bag among the sources what became of its messages."""

    recordings: RecordingSet
    reports: tuple[BagReport, ...]


def load_recordings(
    specs: Sequence[str], robot: Robot | None = None, topic: str | None = None
) -> RecordingSet:
    """
    Read recordings from rosbag2 folders or files and benchmark files.

    Parameters
    ----------
    specs : sequence of str
        Each a bag, or `KIND:FILE` with a kind of `benchmarks.KINDS`.
    robot : Robot or None
        Joints and meaning of effort; where None, as the source says.
    topic : str or None
        Topic of the joint states in bags; where None, the only one there.

    Raises
    ------
    ValueError
        No spec, an unknown kind, a source that cannot be read, or sources of different robots.

    """
    return load_with_reports(specs, robot, topic).recordings


def load_with_reports(
    specs: Sequence[str], robot: Robot | None = None, topic: str | None = None
) -> Loaded:
    """Read recordings as :func:`load_recordings` does, with the reports of the bags."""
    _check_specs(specs)
    loaded = [_load(spec, robot, topic) for spec in specs]
    sets = [part.recordings for part in loaded]
    merged = _merge(specs, [s.robot for s in sets], [list(s.recordings) for s in sets])
    recordings = RecordingSet(sets[0].robot, tuple(merged), ', '.join(specs))
    return Loaded(recordings, tuple(report for part in loaded for report in part.reports))


def load_dataset(
    specs: Sequence[str],
    robot: Robot | None = None,
    topic: str | None = None,
    derivatives: Derivatives | None = None,
    default: Robot | None = None,
    observation_filter: ObservationFilter | None = None,
) -> Dataset:
    """
    Read recordings, derive velocity and acceleration, and give every trajectory a role.

    The inverse file of the KUKA benchmark brings its own derivatives, which are kept. What was
    dropped from bags is told in `Dataset.notes`.

    Parameters
    ----------
    specs, robot, topic
        As for :func:`load_recordings`.
    derivatives : Derivatives or None
        How to differentiate; the defaults where None.
    default : Robot or None
        Of a bag that does not say, where `robot` is None.
    observation_filter : ObservationFilter or None
        Low-pass that the effort went through, where the source does not say.

    Raises
    ------
    ValueError
        As for :func:`load_recordings`, or an effort that nothing can be learned from.

    """
    _check_specs(specs)
    settings = derivatives or Derivatives()
    parts: list[Dataset] = []
    for spec in specs:
        kind, path = _split(spec)
        if kind == 'kuka-inverse':
            parts.append(_check_robot(spec, kuka_inverse(path), robot))
            continue
        source, reports = _load(spec, robot, topic, default)
        recordings = [note_filter(r, observation_filter, spec) for r in source.recordings]
        trajectories = tuple(differentiate(r, settings) for r in recordings)
        notes = tuple(note for report in reports for note in report.notes())
        parts.append(Dataset(source.robot, trajectories, spec, notes))
    named = _merge(specs, [p.robot for p in parts], [[t.recording for t in p] for p in parts])
    source_name = ', '.join(specs)
    _check_distinct(named)
    check_positions(parts[0].robot, named, source_name)
    check_effort(parts[0].robot, named, source_name)
    trajectories = tuple(
        replace(t, recording=r) for r, t in zip(named, (t for p in parts for t in p), strict=True)
    )
    told = [note for p in parts for note in p.notes]
    told += inspect_trajectories(parts[0].robot, trajectories).warnings
    told += [
        f'{r.name}: {int((~r.valid).sum())} of {len(r.t)} samples lack an effort and are not used'
        for r in named
        if r.valid is not None and not r.valid.all()
    ]
    return assign_roles(Dataset(parts[0].robot, trajectories, source_name, tuple(told)))


def note_filter(
    recording: Recording, observation_filter: ObservationFilter | None, spec: str
) -> Recording:
    """
    Return the recording with the low-pass that its effort went through, where it does not say.

    Raises
    ------
    ValueError
        If the recording says another one, or could not show this one.

    """
    known = recording.observation_filter
    if observation_filter is None or observation_filter == known:
        return recording
    if known is not None:
        raise ValueError(
            f'{spec}: {recording.name} says that its effort went through a '
            f'{known.describe()}, not a {observation_filter.describe()}'
        )
    if observation_filter.cutoff_hz >= recording.rate_hz / 2:
        raise ValueError(
            f'{spec}: a {observation_filter.describe()} leaves no mark on {recording.name}, '
            f'recorded at {recording.rate_hz:.4g} Hz; give the cut-off of the effort'
        )
    return replace(recording, observation_filter=observation_filter)


def _check_distinct(recordings: Sequence[Recording]) -> None:
    """Refuse a recording that is there twice: one copy could be trained on, one scored."""
    seen: dict[bytes, str] = {}
    for r in recordings:
        content = hashlib.sha256(r.t.tobytes() + r.q.tobytes() + r.tau.tobytes()).digest()
        if content in seen:
            raise ValueError(
                f'{r.name} is the same recording as {seen[content]}; give each of them once'
            )
        seen[content] = r.name


def _check_specs(specs: Sequence[str]) -> None:
    if isinstance(specs, str):
        raise TypeError(f'specs must be a list of strings, got {specs!r}')
    if not specs:
        raise ValueError('no data given; name a bag or KIND:FILE')


def _split(spec: str) -> tuple[str, str]:
    """Return kind and path; the kind is '' for a bag."""
    kind, colon, path = spec.partition(':')
    if colon and kind in KINDS:
        return kind, path
    if colon and not Path(spec).exists():
        raise ValueError(f'{spec}: kind {kind!r} is not known; known kinds: {", ".join(KINDS)}')
    return '', spec


def _load(
    spec: str, robot: Robot | None, topic: str | None, default: Robot | None = None
) -> Loaded:
    kind, path = _split(spec)
    if kind == 'kuka-inverse':
        inverse = kuka_inverse(path)
        recordings = tuple(t.recording for t in inverse)
        source = RecordingSet(inverse.robot, recordings, spec)
        return Loaded(_check_robot(spec, source, robot), ())
    if kind:
        return Loaded(_check_robot(spec, RECORDING_LOADERS[kind](path), robot), ())
    bag = read_bag_with_report(path, topic, robot, default)
    return Loaded(bag.recordings, (bag.report,))


def _check_robot(spec: str, source: Source, robot: Robot | None) -> Source:
    """Return the source; a benchmark's robot is known, so another one is refused."""
    if robot is not None and robot.joints != source.robot.joints:
        raise ValueError(
            f'{spec}: is of robot {source.robot.name!r} with joints '
            f'{", ".join(source.robot.joints)}, not of {robot.name!r} with '
            f'{", ".join(robot.joints)}'
        )
    return source if robot is None else replace(source, robot=robot)


def _merge(
    specs: Sequence[str],
    robots: Sequence[Robot],
    recordings: list[list[Recording]],
) -> list[Recording]:
    """Return all recordings, their names and groups made unique over the sources."""
    first = robots[0]
    for spec, robot in zip(specs, robots, strict=True):
        # The name of a robot that a bag does not tell is that of the folder.
        if replace(robot, name=first.name) != first:
            differ = [k for k, v in vars(first).items() if v != getattr(robot, k)]
            raise ValueError(
                f'{spec}: robot {robot.name!r} differs from {first.name!r} of {specs[0]} '
                f'in {", ".join(differ)}; name one with --robot or load them apart'
            )
    counts: dict[str, int] = {}
    for name in (r.name for part in recordings for r in part):
        counts[name] = counts.get(name, 0) + 1
    merged = []
    for k, part in enumerate(recordings):
        for r in part:
            if counts[r.name] > 1:
                r = replace(r, name=f'{k}/{r.name}', group=f'{k}/{r.group}')
            merged.append(r)
    return merged
