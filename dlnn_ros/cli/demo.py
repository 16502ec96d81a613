"""
The main job from end to end: recording, training, live feed-forward, comparison.

A recording is made (or taken with --bag) and a dLNN is trained from it twice, without and with
memory in its friction. A `feedforward_node` for each serves them on ROS 2 side by side while
`replay_node` plays the part of the recording that training never saw, and what arrives on their
`~/feedforward` is compared with the recorded effort, with simpler models and with Pinocchio's
RNEA.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
import shutil
from typing import Any, NamedTuple, TYPE_CHECKING

from dlnn_ros.config import load_robot
from dlnn_ros.learning.model_folder import load_description, ModelDescription

from .command import progress, Result
from .options import tell_notes

if TYPE_CHECKING:
    from dlnn_ros.data.trajectory import Dataset
    from dlnn_ros.learning.evaluate import Evaluation
    from dlnn_ros.learning.report import Table

    from .live import Live

HELP = 'from a recording to live feed-forward torque, compared and plotted'
MARKER = '.dlnn_demo'
MIN_ANSWERED = 0.95  # share of the joint states
SERVED = {'dlnn': 0.4, 'dlnn_memory': 0.6}  # share of the training time
BASELINES = {'mlp': 8.0, 'linear': 1.0, 'linear_memory': 1.0}  # training time [s]
# Of the energy that went through the memory: rounding of its sum over the samples.
SURPLUS_TOLERANCE = 1e-9


class Served(NamedTuple):
    """A model that was served: what came over ROS from it, and what it is."""

    live: Live
    description: ModelDescription


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--bag', help='rosbag2 to use in place of a synthetic recording')
    parser.add_argument('--robot', help='name of a file in config/robots, or a YAML file')
    parser.add_argument('--topic', help='topic of the joint states in the bag')
    parser.add_argument('--out', default='demo_out', help='folder for everything that is made')
    parser.add_argument(
        '--time-budget', type=float, default=60.0, help='training time of both dLNNs together [s]'
    )
    parser.add_argument('--seed', type=int, default=0, help='of recording and training')
    parser.add_argument('--no-train', action='store_true', help='use the models of the last run')
    parser.add_argument('--rate', type=float, default=1.0, help='speed of the replay')
    parser.add_argument(
        '--min-r2',
        type=float,
        help='exit with 1 when a live R2 is below (default 0.8, with --bag 0.5)',
    )


def run(args: argparse.Namespace) -> Result:
    """Run the command."""
    from dlnn_ros.data.sources import load_dataset

    if args.min_r2 is None:
        # A real robot has friction that no function of the state explains.
        args.min_r2 = 0.5 if args.bag else 0.8
    if not 0.01 <= args.rate <= 100:
        raise ValueError(f'--rate is {args.rate}, must be between 0.01 and 100')
    out = Path(args.out)
    models = out / 'models'
    _check_own(out)
    if args.no_train:
        _check_models(models)
    robot = load_robot(args.robot) if args.robot else None
    if args.bag:
        bag = Path(args.bag)
    else:
        bag = out / 'recording'
        if not (args.no_train and bag.exists()):
            _record(bag, args.seed)
    dataset = load_dataset([str(bag)], robot=robot, topic=args.topic)
    tell_notes(dataset)

    from dlnn_ros.learning.evaluate import check_joints
    from dlnn_ros.learning.traces import share_seen

    from .live import evaluate_rigid_body, rigid_body, serve_and_record

    body = rigid_body(dataset.robot)
    _mark_own(out)
    if not args.no_train:
        _train(dataset, models, args.time_budget, args.seed)
    trajectory = max(dataset.role('test'), key=lambda t: len(t.t))
    test = replace(dataset, trajectories=(trajectory,))
    descriptions = {kind: load_description(models / kind) for kind in SERVED}
    for kind, description in descriptions.items():
        check_joints(dataset, description.robot)
        if share_seen(test, description.provenance.get('traces', [])):
            raise ValueError(
                f'{models / kind}: was trained on {trajectory.recording.name}, so it cannot be '
                'judged by it; leave out --no-train'
            )
    offline = _evaluate(models, test)
    if body is not None:
        offline['rnea'] = evaluate_rigid_body(body, trajectory, dataset.robot)
    live = serve_and_record(
        {kind: models / kind for kind in SERVED}, dataset.robot, trajectory, out, args.rate
    )
    served = {kind: Served(live[kind], descriptions[kind]) for kind in SERVED}
    return make_result(out, bag, served, offline, args.min_r2)


def _check_own(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise FileExistsError(f'{out}: is a file; choose another --out')
    if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
        raise FileExistsError(f'{out}: exists and was not made by the demo; choose another --out')


def _check_models(models: Path) -> None:
    missing = [kind for kind in SERVED if not (models / kind).is_dir()]
    if missing:
        raise FileNotFoundError(
            f'{models}: no model {" and ".join(missing)} of a last run; leave out --no-train'
        )


def _mark_own(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()


def _record(path: Path, seed: int) -> None:
    from dlnn_ros.data.bags import write_bag
    from dlnn_ros.data.synthetic import make_recordings, Synthetic

    _mark_own(path.parent)
    shutil.rmtree(path, ignore_errors=True)
    synthetic = Synthetic(seed=seed)
    progress(
        f'recording a simulated KR300: {synthetic.trajectories} motions of '
        f'{synthetic.duration_s:g} s ...'
    )
    recordings = make_recordings(synthetic)
    write_bag(path, recordings)


def _train(dataset: Dataset, models: Path, time_budget: float, seed: int) -> None:
    from dlnn_ros.learning.settings import TrainConfig

    from .train import fit, summary_text

    budgets = {kind: share * time_budget for kind, share in SERVED.items()}
    for kind, budget in {**budgets, **BASELINES}.items():
        # Two threads that wait for each other on a busy machine are slower than one by far.
        config = TrainConfig(model=kind, time_budget_s=budget, seed=seed, threads=1)
        try:
            result = fit(dataset, config, models / kind, None, overwrite=True)
        except ValueError as error:
            if kind in SERVED:
                raise
            shutil.rmtree(models / kind, ignore_errors=True)  # of another run
            progress(f'{kind} is left out: {error}')
        else:
            progress(summary_text(result))


def _evaluate(models: Path, test: Dataset) -> dict[str, Evaluation]:
    """Score all models there as they are served, memory from the torque of the first sample."""
    from dlnn_ros.learning.checkpoint import load_model
    from dlnn_ros.learning.evaluate import evaluate

    return {
        kind: evaluate(load_model(models / kind).model, test, 'served', is_started=True)
        for kind in (*SERVED, *BASELINES)
        if (models / kind).is_dir()
    }


def make_result(
    out: Path,
    bag: Path,
    served: Mapping[str, Served],
    offline: Mapping[str, Evaluation],
    min_r2: float,
) -> Result:
    """
    Judge the run, write the report, and return tables, figures and exit code.

    In the figures `received` of `expected` is that of the served model which answered least.

    Parameters
    ----------
    out, bag : Path
        Where the report goes; what was replayed from.
    served : mapping
        The models served, by kind.
    offline : mapping
        Evaluation by kind on the replayed trajectory, those of `served` among them.
    min_r2 : float
        Least live R2 of a good fit.

    """
    from dlnn_ros.learning.report import effort_unit, paragraph, text_table, write_report

    from .live import live_plots

    robot = next(iter(served.values())).description.robot
    trajectory = next(iter(offline.values())).predictions[0].trajectory
    unit = effort_unit(robot.effort.kind)
    live = {kind: s.live for kind, s in served.items()}
    tables = [
        _live_table(
            live,
            f'Live on {trajectory.recording.name}, unseen in training; RMSE in {unit}; {bag}',
        ),
        _offline_table(offline),
        _serving_table(served, offline),
    ]
    faults = [
        f'{kind}: {fault}'
        for kind in served
        for fault in _faults(live[kind], offline[kind], min_r2)
    ]
    failed = [f'FAILED: {fault}' for fault in faults]
    notes = [
        'Live derivatives are causal. Latency: from joint state to feed-forward as a third '
        'process sees them.',
        f'Offline derivatives: {trajectory.method}. The memory starts from the torque of the '
        'first sample where the robot rests there.',
    ]
    if 'rnea' in offline:
        notes.append(
            'rnea: rigid bodies, rotor inertia and counterbalance of the URDF, without friction.'
        )
    path = write_report(
        out / 'report.html',
        'dLNN feed-forward, live',
        [
            *(paragraph(line) for line in failed),
            *tables,
            *(paragraph(line) for line in notes),
            *live_plots(live, trajectory, robot.joints, unit),
        ],
    )
    least = min(live.values(), key=lambda a: a.received)
    data = {
        'received': least.received,
        'expected': least.expected,
        'models': _figures(served, offline),
        'good': not faults,
        'faults': faults,
        'bag': str(bag),
        'report': str(path),
    }
    text = '\n'.join([*(text_table(t) + '\n' for t in tables), *failed, f'report: {path}'])
    return Result(data, text, 1 if faults else 0)


def _faults(live: Live, offline: Evaluation, min_r2: float) -> list[str]:
    """Return what is wrong with a served model, a line each."""
    from dlnn_ros.learning.report import format_cell

    faults = []
    r2 = live.scores['r2_mean']
    if r2 is None or r2 < min_r2:
        faults.append(f'live R2 {format_cell(r2)} is below {min_r2} (--min-r2)')
    if live.received < MIN_ANSWERED * live.expected:
        faults.append(
            f'only {live.received} of {live.expected} joint states were answered; on a busy '
            'machine, try a slower --rate'
        )
    dissipated = offline.scores['dissipated_power_min']
    if dissipated < 0:
        faults.append(f"the model gives energy: qd'd reaches {dissipated:.3g} W")
    surplus = offline.predictions[0].surplus
    if surplus is not None and surplus.min() < -SURPLUS_TOLERANCE * abs(surplus).max():
        faults.append(f'its memory gives energy: {-surplus.min():.3g} J more than went in')
    return faults


def _live_table(live: Mapping[str, Live], caption: str) -> Table:
    from dlnn_ros.learning.report import Table

    scores = [a.scores for a in live.values()]
    rows: list[list[Any]] = [
        [joint, *(s[key][joint] for key in ('r2', 'rmse') for s in scores)]
        for joint in scores[0]['r2']
    ]
    means = {'mean': 'r2_mean', 'mean moving': 'r2_mean_moving', 'mean at rest': 'r2_mean_rest'}
    for name, key in means.items():
        rows.append([name, *(s[key] for s in scores), *(None for _ in scores)])
    head = [f'{score} {kind}' for score in ('R2', 'RMSE') for kind in live]
    return Table(caption, ('joint', *head), rows)


def _offline_table(offline: Mapping[str, Evaluation]) -> Table:
    from dlnn_ros.learning.report import Table

    scores = [evaluation.scores for evaluation in offline.values()]
    rows = [[joint, *(s['r2'][joint] for s in scores)] for joint in scores[0]['r2']]
    rows.append(['mean', *(s['r2_mean'] for s in scores)])
    return Table('The same offline, R2', ('joint', *offline), rows)


def _serving_table(served: Mapping[str, Served], offline: Mapping[str, Evaluation]) -> Table:
    from dlnn_ros.learning.report import Table

    rows = []
    for kind, (live, description) in served.items():
        scores = offline[kind].scores
        rows.append(
            [
                kind,
                f'{live.received} of {live.expected}',
                *('-' if ms is None else f'{ms:.2f}' for ms in live.latency_ms.values()),
                scores['dissipated_power_min'],
                scores.get('memory_surplus_min'),
                f'{description.provenance["train_s"]:.1f}',
            ]
        )
    head = (
        'model',
        'answered',
        'latency p50 [ms]',
        'p99 [ms]',
        'least dissipated [W]',
        'least memory surplus [J]',
        'trained [s]',
    )
    return Table('Served', head, rows)


def _figures(
    served: Mapping[str, Served], offline: Mapping[str, Evaluation]
) -> dict[str, dict[str, Any]]:
    """Return the figures of each model for scripts."""
    models: dict[str, dict[str, Any]] = {
        kind: {'r2_mean_offline': evaluation.scores['r2_mean'], 'r2_mean_live': None}
        for kind, evaluation in offline.items()
    }
    for kind, (live, description) in served.items():
        scores = offline[kind].scores
        models[kind] |= {
            'r2_mean_live': live.scores['r2_mean'],
            'r2_live': live.scores['r2'],
            'latency_p50_ms': live.latency_ms['p50'],
            'latency_p99_ms': live.latency_ms['p99'],
            'received': live.received,
            'train_s': description.provenance['train_s'],
            'dissipated_power_min': scores['dissipated_power_min'],
        }
        if 'memory_surplus_min' in scores:
            models[kind]['memory_surplus_min'] = scores['memory_surplus_min']
    return models
