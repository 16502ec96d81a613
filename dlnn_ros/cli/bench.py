"""Measure: training throughput, models side by side, what noise costs."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path

from .command import progress, Result
from .options import add_data, read_data, take_role, tell_notes

HELP = 'measure speed and accuracy'


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the benchmarks and their options."""
    from .main import add_json

    benchmarks = parser.add_subparsers(dest='benchmark', required=True, metavar='BENCHMARK')
    training = benchmarks.add_parser(
        'training', help='training steps of the dLNN, against functional autodiff'
    )
    training.add_argument('--batch', type=int, default=2048, help='samples per step')
    training.add_argument(
        '--threads', type=int, default=os.cpu_count() or 1, help='torch threads (default: cores)'
    )
    training.add_argument('--steps', type=int, default=20, help='timed steps per case')
    training.add_argument('--models', default='128x3,256x4', help='network shapes')
    training.add_argument('--methods', default='ours,functional', help='ours, functional')
    training.set_defaults(run=run_training)

    kuka = benchmarks.add_parser(
        'kuka', help='models side by side on the roles the data prescribe, as the benchmark does'
    )
    _add_comparison(kuka)
    kuka.set_defaults(run=run_compare, hold_out='roles')

    compare = benchmarks.add_parser('compare', help='models side by side on any recordings')
    _add_comparison(compare)
    compare.add_argument(
        '--hold-out',
        choices=('roles', 'turn', 'tail'),
        default='roles',
        help='for the test: as the data say; each recording in turn; the end of each recording',
    )
    compare.set_defaults(run=run_compare)

    noise = benchmarks.add_parser(
        'noise', help='R2 of a model with memory against position noise, and what keeps it'
    )
    noise.add_argument('model', help='model folder')
    add_data(noise)
    noise.add_argument(
        '--noise', default='0,1e-6,1e-5,1e-4', help='standard deviations [rad | m], from 0'
    )
    noise.add_argument('--seed', type=int, default=0, help='of the noise')
    noise.set_defaults(run=run_noise)

    stop = benchmarks.add_parser('stop', help='draw what models say around a stop')
    stop.add_argument('models', nargs='+', metavar='MODEL', help='model folders')
    add_data(stop)
    stop.add_argument('--joints', default='', metavar='A,B', help='panels (default: all joints)')
    stop.add_argument('--view', choices=('recorded', 'served'), default='recorded')
    stop.add_argument('--out', required=True, metavar='FILE', help='SVG file to write')
    stop.set_defaults(run=run_stop)

    for sub in (training, kuka, compare, noise, stop):
        add_json(sub)
    parser.set_defaults(run=run_training)


def _add_comparison(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--models',
        default='dlnn,dlnn_memory,linear_memory,mlp,mlp_window',
        metavar='A,B',
        help='dlnn, dlnn_memory, lnn, linear_memory, linear_trig, mlp, mlp_window, linear; '
        'options after a colon: mlp_window:window=16',
    )
    parser.add_argument('--seeds', type=int, default=1, metavar='N', help='seeds of each model')
    parser.add_argument(
        '--time-budget', type=float, default=60.0, metavar='S', help='training time of each [s]'
    )
    parser.add_argument(
        '--epochs', type=int, default=0, help='passes through the data, in place of time'
    )
    parser.add_argument('--threads', type=int, default=1, help='torch threads (default 1)')
    parser.add_argument(
        '--out', metavar='FILE', help='JSON file written after each case; what is in it is kept'
    )
    add_data(parser)


def run_compare(args: argparse.Namespace) -> Result:
    """Run `dlnn bench kuka` or `dlnn bench compare`."""
    from dlnn_ros.bench.compare import compare, Comparison, load_folds, table
    from dlnn_ros.config import from_mapping, load_robot
    from dlnn_ros.data.derivatives import Derivatives
    from dlnn_ros.data.observation import ObservationFilter

    comparison = Comparison(
        models=tuple(args.models.split(',')),
        seeds=args.seeds,
        time_budget_s=args.time_budget,
        epochs=args.epochs,
        hold_out=args.hold_out,
        threads=args.threads,
    )
    flags = {
        'method': args.derivatives,
        'cutoff_hz': args.cutoff_hz,
        'use_velocity': args.use_velocity,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    derivatives = from_mapping(Derivatives, given, 'derivatives')
    robot = load_robot(args.robot) if args.robot else None
    cutoff = args.observation_cutoff_hz
    seen = None if cutoff is None else ObservationFilter(cutoff)
    folds = load_folds(args.data, args.hold_out, robot, args.topic, derivatives, seen)
    tell_notes(folds[0].dataset)
    out = Path(args.out).expanduser() if args.out else None
    data = {'data': args.data, **compare(comparison, folds, out, progress)}
    return Result(data, table(data))


def run_noise(args: argparse.Namespace) -> Result:
    """Run `dlnn bench noise`."""
    from dlnn_ros.bench.noise import measure, table
    from dlnn_ros.learning.checkpoint import load_model
    from dlnn_ros.learning.evaluate import check_joints

    try:
        noises = [float(text) for text in args.noise.split(',')]
    except ValueError as error:
        raise ValueError(f'--noise {args.noise}: must be numbers, comma between them') from error
    if not all(0 <= x < math.inf for x in noises):
        raise ValueError(f'--noise {args.noise}: must be finite and >= 0')
    loaded = load_model(args.model)
    dataset = read_data(args, default=loaded.description.robot)
    check_joints(dataset, loaded.description.robot)
    cases = measure(loaded, take_role(dataset, 'test'), noises, args.seed)
    return Result({'model': args.model, 'cases': [c._asdict() for c in cases]}, table(cases))


def run_training(args: argparse.Namespace) -> Result:
    """Run `dlnn bench training`."""
    from dlnn_ros.bench.training import METHODS, run, SHAPES

    shapes, methods = args.models.split(','), args.methods.split(',')
    for value, known in [(s, SHAPES) for s in shapes] + [(m, METHODS) for m in methods]:
        if value not in known:
            raise ValueError(f'{value!r} must be one of {", ".join(known)}')
    for name in ('batch', 'threads', 'steps'):
        if getattr(args, name) < 1:
            raise ValueError(f'--{name} is {getattr(args, name)}, must be at least 1')
    data = run(shapes, methods, args.batch, args.threads, args.steps)
    lines = [
        f'{c["model"]:12s} {c["method"]:11s} batch {c["batch"]}, {c["threads"]} threads: '
        f'{c["samples_per_s"]:9.0f} samples/s'
        for c in data['cases']
    ]
    return Result(data, '\n'.join(lines))


def run_stop(args: argparse.Namespace) -> Result:
    """Run `dlnn bench stop`."""
    from dlnn_ros.bench.stop import stop_figure
    from dlnn_ros.learning.model_folder import load_description
    from dlnn_ros.learning.report import write_text

    dataset = read_data(args, default=load_description(args.models[0]).robot)
    part = take_role(dataset, 'test')
    joints = [j for j in args.joints.split(',') if j]
    path = write_text(Path(args.out), stop_figure(args.models, part, joints, args.view))
    return Result({'figure': str(path)}, f'figure: {path}')
