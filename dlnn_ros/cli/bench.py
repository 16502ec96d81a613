"""Measure: training throughput."""

from __future__ import annotations

import argparse
import os

from .command import Result

HELP = 'measure speed'


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
    add_json(training)
    training.set_defaults(run=run_training)
    parser.set_defaults(run=run_training)


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
