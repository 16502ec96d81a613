"""Options that several sub-commands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from dlnn_ros.config import from_mapping, load_robot, Robot

from .command import progress

if TYPE_CHECKING:
    from dlnn_ros.data.trajectory import Dataset


def add_data(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add --data and what says how to read it."""
    parser.add_argument(
        '--data',
        nargs='+',
        required=required,
        metavar='D',
        help='rosbag2 folders or files, or KIND:FILE with KIND one of kuka-shifted, '
        'kuka-forward, kuka-inverse, kuka-250hz',
    )
    parser.add_argument('--robot', help='name of a file in config/robots, or a YAML file')
    parser.add_argument('--topic', help='topic of the joint states in a bag')
    parser.add_argument(
        '--derivatives',
        metavar='METHOD',
        help='offline derivatives: auto (default), central, savgol, spline, spectral or lowpass',
    )
    parser.add_argument('--cutoff-hz', type=float, help='cut-off of the low-pass derivatives')
    parser.add_argument(
        '--use-velocity',
        action='store_true',
        default=None,
        help='derive from the velocity in the messages, where positions are coarse',
    )
    parser.add_argument(
        '--observation-cutoff-hz',
        type=float,
        metavar='F',
        help='the recorded effort went through a zero-phase low-pass with this cut-off '
        '(Butterworth of order 2, forward and backward); benchmark files know theirs',
    )


def read_data(args: argparse.Namespace, default: Robot | None = None) -> Dataset:
    """Read what the options of :func:`add_data` name; `default` is for bags that do not say."""
    from dlnn_ros.data.derivatives import Derivatives  # scipy and rosbags take a second to import
    from dlnn_ros.data.observation import ObservationFilter
    from dlnn_ros.data.sources import load_dataset

    robot = load_robot(args.robot) if args.robot else None
    settings = dict(getattr(args, 'derivative_settings', {}))
    flags = {
        'method': args.derivatives,
        'cutoff_hz': args.cutoff_hz,
        'use_velocity': args.use_velocity,
    }
    settings.update({name: value for name, value in flags.items() if value is not None})
    derivatives = from_mapping(Derivatives, settings, 'derivatives')
    through = dict(getattr(args, 'observation_settings', {}))
    if args.observation_cutoff_hz is not None:
        through = {'cutoff_hz': args.observation_cutoff_hz}
    seen = from_mapping(ObservationFilter, through, 'observation_filter') if through else None
    dataset = load_dataset(args.data, robot, args.topic, derivatives, default, seen)
    tell_notes(dataset)
    return dataset


def take_role(dataset: Dataset, role: str) -> Dataset:
    """Return the part with a role, which must be there; 'all' is every part."""
    part = dataset if role == 'all' else dataset.role(role)
    if not len(part):
        raise ValueError(f'{dataset.source}: no trajectory has the role {role!r}')
    return part


def tell_notes(dataset: Dataset) -> None:
    """Print what was dropped from the data and what looks wrong in them."""
    for note in dataset.notes:
        progress(f'note: {note}')
