"""
The main job from end to end: recording, training, live feed-forward, comparison.

A recording is made (or taken with --bag), a dLNN is trained from it, `feedforward_node` serves
it on ROS 2 while `replay_node` plays the part of the recording that training never saw, and
what arrives on `~/feedforward` is compared with the recorded effort and with Pinocchio's RNEA.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
import shutil
from typing import Any, TYPE_CHECKING

from dlnn_ros.config import load_robot, Robot
from dlnn_ros.learning.model_folder import load_description, ModelDescription

from .command import progress, Result
from .options import tell_notes

if TYPE_CHECKING:
    from dlnn_ros.learning.evaluate import Prediction

    from .live import Live

HELP = 'from a recording to live feed-forward torque, compared and plotted'
MARKER = '.dlnn_demo'
MIN_ANSWERED = 0.95  # share of the joint states
BASELINES = {'mlp': 10.0, 'linear': 1.0}  # training time [s]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('--bag', help='rosbag2 to use in place of a synthetic recording')
    parser.add_argument('--robot', help='name of a file in config/robots, or a YAML file')
    parser.add_argument('--topic', help='topic of the joint states in the bag')
    parser.add_argument('--out', default='demo_out', help='folder for everything that is made')
    parser.add_argument('--time-budget', type=float, default=45.0, help='training time [s]')
    parser.add_argument('--seed', type=int, default=0, help='of recording and training')
    parser.add_argument('--no-train', action='store_true', help='use the model of the last run')
    parser.add_argument('--rate', type=float, default=1.0, help='speed of the replay')
    parser.add_argument(
        '--min-r2',
        type=float,
        help='exit with 1 when the live R2 is below (default 0.8, with --bag 0.5)',
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
    _check_own(out)
    robot = load_robot(args.robot) if args.robot else None
    if args.bag:
        bag = Path(args.bag)
    else:
        bag = out / 'recording'
        if not (args.no_train and bag.exists()):
            _record(bag, args.seed)
    dataset = load_dataset([str(bag)], robot=robot, topic=args.topic)
    tell_notes(dataset)

    from dlnn_ros.learning.checkpoint import load_model
    from dlnn_ros.learning.evaluate import check_joints, evaluate
    from dlnn_ros.learning.traces import share_seen

    from .live import rigid_body, score_rigid_body, serve_and_record

    body = rigid_body(dataset.robot)
    _mark_own(out)
    models = out / 'models'
    if not args.no_train:
        _train(dataset, models, args.time_budget, args.seed)
    description = load_description(models / 'dlnn')
    check_joints(dataset, description.robot)
    trajectory = max(dataset.role('test'), key=lambda t: len(t.t))
    test = replace(dataset, trajectories=(trajectory,))
    if share_seen(test, description.provenance.get('traces', [])):
        raise ValueError(
            f'{models / "dlnn"}: was trained on {trajectory.recording.name}, so it cannot be '
            'judged by it; leave out --no-train'
        )
    offline = {
        kind: evaluate(load_model(models / kind).model, test) for kind in ('dlnn', *BASELINES)
    }
    scores = {kind: evaluation.scores for kind, evaluation in offline.items()}
    if body is not None:
        scores['rnea'] = score_rigid_body(body, trajectory, dataset.robot)
    live = serve_and_record(models / 'dlnn', dataset.robot, trajectory, out, args.rate)
    return make_result(
        out,
        bag,
        dataset.robot,
        offline['dlnn'].predictions[0],
        live,
        scores,
        description,
        args.min_r2,
    )


def _check_own(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise FileExistsError(f'{out}: is a file; choose another --out')
    if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
        raise FileExistsError(f'{out}: exists and was not made by the demo; choose another --out')


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


def _train(dataset, models: Path, time_budget: float, seed: int) -> None:
    from dlnn_ros.learning.train import TrainConfig

    from .train import fit, summary_text

    for kind, budget in {'dlnn': time_budget, **BASELINES}.items():
        config = TrainConfig(model=kind, time_budget_s=budget, seed=seed)
        result = fit(dataset, config, models / kind, None, overwrite=True)
        progress(summary_text(result))


def make_result(
    out: Path,
    bag: Path,
    robot: Robot,
    prediction: Prediction,
    live: Live,
    offline: dict[str, dict[str, Any]],
    description: ModelDescription,
    min_r2: float,
) -> Result:
    """
    Judge the run, write the report, and return table, figures and exit code.

    Parameters
    ----------
    out, bag : Path
        Where the report goes; what was replayed from.
    robot : Robot
        Joints and meaning of effort.
    prediction : Prediction
        The dLNN off line along the replayed trajectory.
    live : Live
        What came over ROS.
    offline : dict
        Scores by kind of model on the replayed trajectory, `dlnn` among them.
    description : ModelDescription
        Of the dLNN.
    min_r2 : float
        Least live R2 of a good fit.

    """
    from dlnn_ros.learning.report import (
        effort_unit,
        format_cell,
        paragraph,
        Table,
        text_table,
        write_report,
    )

    from .live import live_plots

    unit = effort_unit(robot.effort.kind)
    trajectory = prediction.trajectory
    rows: list[list[Any]] = [
        [joint, live.scores['rmse'][joint], live.scores['r2'][joint]]
        + [scores['r2'][joint] for scores in offline.values()]
        for joint in robot.joints
    ]
    means = [scores['r2_mean'] for scores in offline.values()]
    rows.append(['mean', None, live.scores['r2_mean'], *means])
    table = Table(
        f'R2 on {trajectory.recording.name}, unseen in training; {bag}',
        ('joint', f'live RMSE [{unit}]', 'dlnn live', *(f'{k} offline' for k in offline)),
        rows,
    )
    dissipated = offline['dlnn']['dissipated_power_min']
    faults = []
    r2 = live.scores['r2_mean']
    if r2 is None or r2 < min_r2:
        faults.append(f'live R2 {format_cell(r2)} is below {min_r2} (--min-r2)')
    if live.received < MIN_ANSWERED * live.expected:
        faults.append(f'only {live.received} of {live.expected} joint states were answered')
    if dissipated < 0:
        faults.append(f"the model gives energy: qd'd reaches {dissipated:.3g} W")
    p50, p99 = (format_cell(live.latency_ms[k]) for k in ('p50', 'p99'))
    lines = [
        f'received the feed-forward of {live.received} of {live.expected} joint states',
        f'latency p50 {p50} ms, p99 {p99} ms, from joint state to feed-forward as a third '
        'process sees them',
        f'least dissipated power {dissipated:.3g} W',
        *(f'FAILED: {fault}' for fault in faults),
    ]
    about = [
        f'Model {out / "models" / "dlnn"}: {description.kind}, trained on '
        f'{description.provenance["samples"]} samples in {description.provenance["train_s"]} s.',
        f'Offline derivatives: {trajectory.method}. Live derivatives are causal.',
        'rnea: rigid bodies, rotor inertia and counterbalance of the URDF, without friction.',
    ]
    path = write_report(
        out / 'report.html',
        'dLNN feed-forward, live',
        [
            table,
            *(paragraph(line) for line in lines + about),
            *live_plots(live, trajectory, prediction, robot.joints, unit),
        ],
    )
    models: dict[str, dict[str, Any]] = {
        kind: {'r2_mean_offline': scores['r2_mean'], 'r2_mean_live': None}
        for kind, scores in offline.items()
    }
    models['dlnn'] |= {
        'r2_mean_live': r2,
        'r2_live': live.scores['r2'],
        'latency_p50_ms': live.latency_ms['p50'],
        'latency_p99_ms': live.latency_ms['p99'],
        'train_s': description.provenance['train_s'],
        'dissipated_power_min': dissipated,
    }
    data = {
        'received': live.received,
        'expected': live.expected,
        'models': models,
        'good': not faults,
        'faults': faults,
        'bag': str(bag),
        'report': str(path),
    }
    text = '\n'.join([text_table(table), *lines, f'report: {path}'])
    return Result(data, text, 1 if faults else 0)
