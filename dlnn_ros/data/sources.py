"""From what a user names on the command line to recordings and data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlnn_ros.config import Robot
from dlnn_ros.data.benchmarks import KINDS, kuka_inverse, RECORDING_LOADERS
from dlnn_ros.data.derivatives import Derivatives, differentiate
from dlnn_ros.data.splits import assign_roles
from dlnn_ros.data.trajectory import Dataset, Recording, RecordingSet, Trajectory


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
    sets = [_load(spec, robot, topic) for spec in specs]
    recordings = _merge(specs, sets, [list(s.recordings) for s in sets])
    return RecordingSet(sets[0].robot, tuple(recordings), ', '.join(specs))


def load_dataset(
    specs: Sequence[str],
    robot: Robot | None = None,
    topic: str | None = None,
    derivatives: Derivatives | None = None,
) -> Dataset:
    """
    Read recordings, derive velocity and acceleration, and give every trajectory a role.

    The inverse file of the KUKA benchmark brings its own derivatives, which are kept.

    Parameters
    ----------
    specs, robot, topic
        As for :func:`load_recordings`.
    derivatives : Derivatives or None
        How to differentiate; the defaults where None.

    """
    settings = derivatives or Derivatives()
    parts: list[Dataset] = []
    for spec in specs:
        kind, path = _split(spec)
        if kind == 'kuka-inverse':
            parts.append(_check_robot(spec, kuka_inverse(path), robot))
            continue
        source = _load(spec, robot, topic)
        trajectories = tuple(differentiate(r, settings) for r in source.recordings)
        parts.append(Dataset(source.robot, trajectories, spec))
    named = _merge(specs, parts, [[t.recording for t in p] for p in parts])
    trajectories = tuple(
        Trajectory(r, t.q, t.qd, t.qdd, t.method)
        for r, t in zip(named, (t for p in parts for t in p), strict=True)
    )
    return assign_roles(Dataset(parts[0].robot, trajectories, ', '.join(specs)))


def _split(spec: str) -> tuple[str, str]:
    """Return kind and path; the kind is '' for a bag."""
    kind, colon, path = spec.partition(':')
    if colon and kind in KINDS:
        return kind, path
    if colon and not Path(spec).exists():
        raise ValueError(f'{spec}: kind {kind!r} is not known; known kinds: {", ".join(KINDS)}')
    return '', spec


def _load(spec: str, robot: Robot | None, topic: str | None) -> RecordingSet:
    kind, path = _split(spec)
    if kind == 'kuka-inverse':
        inverse = kuka_inverse(path)
        recordings = tuple(t.recording for t in inverse)
        return _check_robot(spec, RecordingSet(inverse.robot, recordings, spec), robot)
    if kind:
        return _check_robot(spec, RECORDING_LOADERS[kind](path), robot)
    from dlnn_ros.data.bags import read_bag

    return read_bag(path, topic=topic, robot=robot)


def _check_robot(spec, source, robot: Robot | None):
    """Return the source; a benchmark's robot is known, so another one is refused."""
    if robot is not None and robot.joints != source.robot.joints:
        raise ValueError(
            f'{spec}: is of robot {source.robot.name!r} with joints '
            f'{", ".join(source.robot.joints)}, not of {robot.name!r} with '
            f'{", ".join(robot.joints)}'
        )
    return source if robot is None else replace(source, robot=robot)


def _merge(specs: Sequence[str], parts, recordings: list[list[Recording]]) -> list[Recording]:
    """Return all recordings, their names and groups made unique over the sources."""
    if not specs:
        raise ValueError('no data given; name a bag or KIND:FILE')
    first = parts[0].robot
    for spec, part in zip(specs, parts, strict=True):
        if part.robot != first:
            differ = [k for k, v in vars(first).items() if v != getattr(part.robot, k)]
            raise ValueError(
                f'{spec}: robot {part.robot.name!r} differs from {first.name!r} of {specs[0]} '
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
