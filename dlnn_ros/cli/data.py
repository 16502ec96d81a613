"""
Look at recordings, convert them to a rosbag2, or make synthetic ones.

A SPEC is a rosbag2 folder or file, or a KUKA benchmark file with its kind in front:
kuka-forward:F.mat, kuka-inverse:F.mat, kuka-shifted:F.mat, kuka-250hz:F.mat.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dlnn_ros.cli import command
from dlnn_ros.config import load_robot, Robot, to_mapping

HELP = 'look at recordings, convert them to a rosbag2, or make synthetic ones'


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands info, convert and synth."""
    from dlnn_ros.cli.main import add_json

    subparsers = parser.add_subparsers(dest='action', required=True, metavar='ACTION')

    info = subparsers.add_parser('info', help='print rate, gaps, ranges and what looks wrong')
    _add_source(info)
    info.set_defaults(run=run_info)

    convert = subparsers.add_parser('convert', help='write recordings into a new rosbag2')
    _add_source(convert)
    _add_target(convert)
    convert.set_defaults(run=run_convert)

    synth = subparsers.add_parser('synth', help='record a simulated arm into a new rosbag2')
    synth.add_argument('--robot', default='kr300', help='robot file by name or path')
    synth.add_argument('--trajectories', type=int, default=12, metavar='N', help='recordings')
    synth.add_argument(
        '--duration', type=float, default=20.0, metavar='S', help='length of each recording [s]'
    )
    synth.add_argument('--rate', type=float, default=250.0, metavar='HZ', help='sample rate [Hz]')
    synth.add_argument('--seed', type=int, default=0, help='same seed, same recordings')
    _add_target(synth)
    synth.set_defaults(run=run_synth)

    for sub in (info, convert, synth):
        add_json(sub)
    parser.set_defaults(run=run_info)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('specs', nargs='+', metavar='SPEC', help='bag, or KIND:FILE')
    parser.add_argument('--robot', help='robot file by name or path; default: as the source says')
    parser.add_argument('--topic', help='JointState topic in bags; default: /joint_states')


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--out', required=True, metavar='DIR', help='folder to make')
    parser.add_argument('--storage', choices=('mcap', 'sqlite3'), default='mcap')


def _robot(args: argparse.Namespace) -> Robot | None:
    return None if args.robot is None else load_robot(args.robot)


def run_info(args: argparse.Namespace) -> command.Result:
    """Measure recordings."""
    from dlnn_ros.data.quality import inspect
    from dlnn_ros.data.sources import load_with_reports

    loaded = load_with_reports(args.specs, _robot(args), args.topic)
    quality = to_mapping(inspect(loaded.recordings))
    bags = [to_mapping(report) for report in loaded.reports]
    notes = [note for report in loaded.reports for note in report.notes()]
    data = {'source': loaded.recordings.source, **quality, 'bags': bags, 'notes': notes}
    return command.Result(data, _table(data))


def _table(data: dict[str, Any]) -> str:
    kinds = {
        'joint': 'joint side',
        'motor': 'motor side',
        'no_gravity': 'joint side, without gravity',
    }
    lines = [
        data['source'],
        f'robot {data["robot"]}, effort: {kinds[data["effort_kind"]]}',
        '',
        f'{"recording":<24}{"role":<12}{"samples":>8}{"effort":>8}{"s":>9}{"Hz":>8}'
        f'{"jitter ms":>11}{"max ms":>9}{"repeated":>10}  velocity',
    ]
    for r in data['recordings']:
        lines.append(
            f'{r["name"]:<24}{r["role"] or "-":<12}{r["samples"]:>8}{r["valid"]:>8}'
            f'{r["duration_s"]:>9.1f}{r["rate_hz"]:>8.1f}{r["jitter_ms"]:>11.3f}'
            f'{r["longest_period_ms"]:>9.2f}{r["repeated_share"]:>10.1%}'
            f'  {"yes" if r["has_velocity"] else "no"}'
        )
    for bag in data['bags']:
        spread = bag['log_spread_s']
        known = '' if spread is None else f', log time spreads {spread * 1e3:.2f} ms around stamps'
        lines.append(f'{bag["path"]}: {bag["messages"]} messages on {bag["topic"]}{known}')
    lines += [
        '',
        f'{"joint":<16}{"q":>20}{"qd":>20}{"qdd":>20}{"effort":>20}{"at rest":>9}',
    ]
    for name, j in data['joints'].items():
        ranges = ''.join(f'{_span(j[key]):>20}' for key in ('q', 'qd', 'qdd', 'tau'))
        state = '' if j['effort'] == 'ok' else f'  effort {j["effort"]}'
        lines.append(f'{name:<16}{ranges}{j["rest_share"]:>9.0%}{state}')
    lines += [
        f'all joints at rest {data["rest_share"]:.0%} of the time; derivatives: '
        f'{data["derivatives"]}',
    ]
    lines += [f'note: {note}' for note in data['notes']]
    lines += [f'warning: {warning}' for warning in data['warnings']]
    return '\n'.join(lines)


def _span(bounds: list[float] | None) -> str:
    return '-' if bounds is None else f'{bounds[0]:.3g} .. {bounds[1]:.3g}'


def run_convert(args: argparse.Namespace) -> command.Result:
    """Write recordings into a rosbag2."""
    from dlnn_ros.data.bags import write_bag
    from dlnn_ros.data.sources import load_with_reports

    _refuse_existing(args.out)
    loaded = load_with_reports(args.specs, _robot(args), args.topic)
    write_bag(args.out, loaded.recordings, storage=args.storage)
    for report in loaded.reports:
        for note in report.notes():
            command.progress(f'note: {note}')
    return _written(args, loaded.recordings)


def run_synth(args: argparse.Namespace) -> command.Result:
    """Record a simulated arm."""
    from dlnn_ros.data.bags import write_bag
    from dlnn_ros.data.synthetic import make_recordings, Synthetic

    _refuse_existing(args.out)
    synthetic = Synthetic(
        robot=args.robot,
        trajectories=args.trajectories,
        duration_s=args.duration,
        rate_hz=args.rate,
        seed=args.seed,
    )
    recordings = make_recordings(synthetic, progress=command.progress)
    write_bag(args.out, recordings, storage=args.storage)
    return _written(args, recordings)


def _refuse_existing(out: str) -> None:
    # Before minutes of work, not after them.
    if Path(out).exists():
        raise FileExistsError(f'{out}: exists already; remove it or name another folder')


def _written(args: argparse.Namespace, recordings: Any) -> command.Result:
    samples = sum(len(r.t) for r in recordings.recordings)
    data = {
        'out': args.out,
        'storage': args.storage,
        'robot': recordings.robot.name,
        'joints': list(recordings.robot.joints),
        'recordings': [
            {'name': r.name, 'role': r.role, 'samples': len(r.t)} for r in recordings.recordings
        ],
        'samples': samples,
    }
    text = f'{args.out}: {len(recordings.recordings)} recordings, {samples} messages'
    return command.Result(data, text)
