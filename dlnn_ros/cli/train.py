"""Fit a model to recorded motion and write it to a model folder."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
import json
from pathlib import Path
from typing import Any

from dlnn_ros.config import from_mapping, load_yaml
from dlnn_ros.dynamics.architecture import CONFIGS
from dlnn_ros.learning.model_folder import check_destination

from .command import progress, Result
from .options import add_data, read_data

HELP = 'fit a model to recorded motion'
POOR_R2 = 0.3


@dataclass(frozen=True)
class TrainFile:
    """
    A training file: what `dlnn train CONFIG` reads.

    Attributes
    ----------
    data : tuple of str
        As --data.
    out : str
        As --out.
    robot, topic : str or None
        As --robot and --topic.
    teacher : str or None
        As --teacher.
    derivatives : dict
        Fields of :class:`dlnn_ros.data.derivatives.Derivatives`.
    observation_filter : dict
        Fields of :class:`dlnn_ros.data.observation.ObservationFilter`: what the recorded effort
        went through, where the data do not say.
    train : dict
        Fields of :class:`dlnn_ros.learning.settings.TrainConfig`.

    """

    data: tuple[str, ...] = ()
    out: str | None = None
    robot: str | None = None
    topic: str | None = None
    teacher: str | None = None
    derivatives: dict[str, Any] = field(default_factory=dict)
    observation_filter: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options; those left out are taken from CONFIG, then from the defaults."""
    parser.add_argument('config', nargs='?', metavar='CONFIG', help='YAML file, see config/train')
    add_data(parser, required=False)
    parser.add_argument('--out', help='model folder to write')
    parser.add_argument('--model', help=', '.join(kind for kind in CONFIGS if kind != 'ensemble'))
    parser.add_argument('--time-budget', type=float, metavar='S', help='training time [s]')
    parser.add_argument('--epochs', type=int, help='passes through the data, in place of time')
    parser.add_argument('--restarts', type=int, help='random starts that share the budget')
    parser.add_argument(
        '--ensemble', type=int, metavar='K', help='keep K random starts and average them'
    )
    parser.add_argument(
        '--teacher', metavar='MODEL', help='fit the torque of this model, not the measured one'
    )
    parser.add_argument('--seed', type=int, help='seed of the first start')
    parser.add_argument('--threads', type=int, help='torch threads, 0 for all cores')
    parser.add_argument('--device', choices=('cpu', 'cuda'), help='where to train')
    parser.add_argument(
        '--set',
        nargs='+',
        default=[],
        metavar='KEY=VALUE',
        help='any field of the training settings, or options.KEY[.KEY] of the model',
    )
    parser.add_argument('--resume', action='store_true', help='go on with an interrupted run')
    parser.add_argument('--overwrite', action='store_true', help='replace a model that is there')


def run(args: argparse.Namespace) -> Result:
    """Run the command."""
    settings, out, args = _settings(args)
    check_destination(out, args.overwrite)
    from dlnn_ros.learning.settings import TrainConfig
    from dlnn_ros.learning.train import resume_file  # torch takes 2 s to import

    config = from_mapping(TrainConfig, settings, args.config or 'training settings')
    resume = resume_file(out)
    if resume.path.exists() and not args.resume:
        raise FileExistsError(
            f'{resume.path}: state of an interrupted run; pass --resume to go on with it, '
            'or delete it'
        )
    with resume.lock():
        dataset = read_data(args)
        result = fit(dataset, config, out, resume, args.overwrite, args.teacher)
    return Result(result, summary_text(result))


def fit(
    dataset, config, out: Path, resume, overwrite: bool, teacher: str | None = None
) -> dict[str, Any]:
    """Train with a progress bar, score, and write the model folder; return the result."""
    from dlnn_ros.learning.checkpoint import model_tensors
    from dlnn_ros.learning.evaluate import evaluate, evaluate_views, merge_scores
    from dlnn_ros.learning.train import train

    from .progress_bar import TrainingBar

    with TrainingBar(config.model) as bar:
        try:
            fitted = train(dataset, config, resume, bar.update, teacher)
        except KeyboardInterrupt:
            if resume is not None and resume.path.exists():
                progress(f'state kept in {resume.path}; go on with --resume')
            raise
    scores = {}
    model = fitted.model.double()
    for role in ('train', 'validation', 'test'):
        part = dataset.role(role)
        if len(part) and role == 'train':
            scores[role] = evaluate(model, part, has_parts=False).scores
        elif len(part):
            scores[role] = merge_scores(evaluate_views(model, part))
    description = replace(fitted.description, metrics=scores)
    from dlnn_ros.learning.model_folder import CURVE_FILE, save_model

    curve = ''.join(
        f'{v.restart},{v.step},{v.time_s:.2f},{v.loss:.6g},{v.score:.6f}\n' for v in fitted.curve
    )
    extra = {CURVE_FILE: ('restart,step,time_s,loss,validation_score\n' + curve).encode()}
    save_model(out, description, model_tensors(fitted.model), overwrite, extra)
    if resume is not None:
        resume.delete()
    poor = scores['validation']['r2_mean']
    if poor is None or poor < POOR_R2:
        progress(
            f'warning: R2 on the validation part is {poor if poor is None else round(poor, 3)}; '
            'look at `dlnn data info`: units, meaning of effort, length and variety of the motion'
        )
    return {
        'model': str(out),
        'kind': description.kind,
        'train_s': description.provenance['train_s'],
        'steps': fitted.curve[-1].step if fitted.curve else 0,
        'r2_mean': {role: s['r2_mean'] for role, s in scores.items()},
        'scores': scores,
    }


def summary_text(result: dict[str, Any]) -> str:
    """Return the result for a person."""
    parts = ', '.join(
        f'{role} {r2:.4f}' for role, r2 in result['r2_mean'].items() if r2 is not None
    )
    view = result['scores']['validation']['view']
    fitted = f'{result["model"]}: {result["kind"]} fitted in {result["train_s"]} s'
    return f'{fitted}; R2 as {view}: {parts}'


def _settings(args: argparse.Namespace) -> tuple[dict[str, Any], Path, argparse.Namespace]:
    """Merge CONFIG and command line; the command line wins."""
    file = TrainFile()
    if args.config:
        file = from_mapping(TrainFile, load_yaml(args.config), args.config)
    merged = argparse.Namespace(**vars(args))
    for name in ('data', 'robot', 'topic', 'out', 'teacher'):
        if getattr(args, name) in (None, []):
            setattr(merged, name, getattr(file, name))
    merged.derivative_settings = file.derivatives
    merged.observation_settings = file.observation_filter
    if not merged.data:
        raise ValueError('no data: give --data, or a CONFIG file with the key data')
    if not merged.out:
        raise ValueError('no destination: give --out, or a CONFIG file with the key out')
    settings = dict(file.train)
    options = dict(settings.get('options', {}))
    flags = {
        'model': args.model,
        'time_budget_s': args.time_budget,
        'epochs': args.epochs,
        'restarts': args.restarts,
        'seed': args.seed,
        'threads': args.threads,
        'device': args.device,
    }
    settings.update({k: v for k, v in flags.items() if v is not None})
    if args.ensemble is not None:
        if args.restarts is not None:
            raise ValueError('--ensemble K is K restarts; leave --restarts out')
        settings.update(restarts=args.ensemble, combine='average')
    if args.time_budget is not None and args.epochs is None:
        settings['epochs'] = 0  # a budget asked for here outweighs epochs in CONFIG
    for item in args.set:
        key, equals, value = item.partition('=')
        if not equals:
            raise ValueError(f'--set {item}: expected KEY=VALUE')
        try:
            parsed = json.loads(value)
        except json.JSONDecodeError:
            parsed = value
        if key.startswith('options.'):
            _set_nested(options, key.removeprefix('options.').split('.'), parsed)
        elif key == 'options':
            options = parsed
        else:
            settings[key] = parsed
    settings['options'] = options
    return settings, Path(merged.out).expanduser(), merged


def _set_nested(mapping: dict[str, Any], keys: list[str], value: Any) -> None:
    *path, last = keys
    for key in path:
        inner = mapping.get(key, {})
        mapping[key] = dict(inner) if isinstance(inner, dict) else {}
        mapping = mapping[key]
    mapping[last] = value
