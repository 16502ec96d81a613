"""
The main job from end to end: recording, training, live feed-forward, comparison.

A recording is made (or taken with --bag), a dLNN is trained from it, `feedforward_node` serves
it on ROS 2 while `replay_node` plays the part of the recording that training never saw, and
what arrives on `~/feedforward` is compared with the recorded effort and with Pinocchio's RNEA.
"""

from __future__ import annotations

import argparse
from pathlib import Path
import shutil
from typing import Any

from dlnn_ros.config import load_robot

from .command import progress, Result

HELP = 'from a recording to live feed-forward torque, compared and plotted'
MARKER = '.dlnn_demo'
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
        help='exit with 1 when the live R2 is below (default 0.8, with --bag 0.6)',
    )


def run(args: argparse.Namespace) -> Result:
    """Run the command."""
    if args.min_r2 is None:
        # A real robot has friction that no function of the state explains.
        args.min_r2 = 0.6 if args.bag else 0.8
    from dlnn_ros.data.bags import read_bag_with_report
    from dlnn_ros.data.sources import load_dataset

    out = _prepare(Path(args.out))
    bag = Path(args.bag) if args.bag else _record(out / 'recording', args.seed)
    robot = load_robot(args.robot) if args.robot else None
    dataset = load_dataset([str(bag)], robot=robot, topic=args.topic)
    for note in dataset.notes:
        progress(f'note: {note}')
    models = out / 'models'
    if not args.no_train:
        _train(dataset, models, args.time_budget, args.seed)

    from dlnn_ros.learning.checkpoint import load_model
    from dlnn_ros.learning.evaluate import check_joints, evaluate, predict_trajectory

    from .live import rnea_effort, serve_and_record

    trajectory = max(dataset.role('test'), key=lambda t: len(t.t))
    first_stamp_ns = read_bag_with_report(bag, args.topic, robot).report.first_stamp_ns
    model, description = load_model(models / 'dlnn')
    check_joints(dataset, description.robot)
    live = serve_and_record(
        models / 'dlnn', bag, args.topic, trajectory, first_stamp_ns, out, args.rate
    )
    offline = {'dlnn': evaluate(model, dataset.role('test')).scores}
    prediction = predict_trajectory(model, trajectory, dataset.robot.gear_ratio)
    for kind in BASELINES:
        baseline = load_model(models / kind).model
        offline[kind] = evaluate(baseline, dataset.role('test')).scores
    rnea = rnea_effort(dataset)
    if rnea is not None:
        offline['rnea'] = rnea.scores
    return _result(args, out, bag, dataset, trajectory, prediction, live, offline, description)


def _prepare(out: Path) -> Path:
    if out.exists() and any(out.iterdir()) and not (out / MARKER).exists():
        raise FileExistsError(f'{out}: exists and was not made by the demo; choose another --out')
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()
    return out


def _record(path: Path, seed: int) -> Path:
    from dlnn_ros.data.bags import write_bag
    from dlnn_ros.data.synthetic import make_recordings, Synthetic

    shutil.rmtree(path, ignore_errors=True)
    synthetic = Synthetic(seed=seed)
    progress(
        f'recording a simulated KR300: {synthetic.trajectories} motions of '
        f'{synthetic.duration_s:g} s ...'
    )
    recordings = make_recordings(synthetic)
    write_bag(path, recordings)
    return path


def _train(dataset, models: Path, time_budget: float, seed: int) -> None:
    from dlnn_ros.learning.train import TrainConfig

    from .train import fit, summary_text

    for kind, budget in {'dlnn': time_budget, **BASELINES}.items():
        config = TrainConfig(model=kind, time_budget_s=budget, seed=seed)
        result = fit(dataset, config, models / kind, None, overwrite=True)
        progress(summary_text(result))


def _result(
    args, out: Path, bag: Path, dataset, trajectory, prediction, live, offline, description
) -> Result:
    from dlnn_ros.learning.report import effort_unit, paragraph, Table, text_table, write_report

    from .live import live_plots

    joints = dataset.robot.joints
    unit = effort_unit(dataset.robot.effort.kind)
    kinds = list(offline)
    rows: list[list[Any]] = [
        [joint, live.scores['rmse'][joint], live.scores['r2'][joint]]
        + [offline[k]['r2'][joint] for k in kinds]
        for joint in joints
    ]
    rows.append(['mean', None, live.scores['r2_mean'], *(offline[k]['r2_mean'] for k in kinds)])
    table = Table(
        f'R2 on {trajectory.recording.name}, unseen in training; {bag}',
        ('joint', f'live RMSE [{unit}]', 'dlnn live', *(f'{k} offline' for k in kinds)),
        rows,
    )
    dissipated = offline['dlnn']['dissipated_power_min']
    good = live.received > 0 and (live.scores['r2_mean'] or -1.0) >= args.min_r2
    lines = [
        f'received {live.received} feed-forward messages for {live.expected} joint states',
        f'latency p50 {live.latency_ms["p50"]:.2f} ms, p99 {live.latency_ms["p99"]:.2f} ms, '
        f'from joint state to feed-forward as a third process sees them',
        f'least dissipated power {dissipated:.3g} W '
        f'({"passive" if dissipated >= 0 else "NOT PASSIVE"})',
    ]
    if not good:
        lines.append(f'FAILED: live R2 {live.scores["r2_mean"]} is below {args.min_r2} (--min-r2)')
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
            *live_plots(live, trajectory, prediction, joints, unit),
        ],
    )
    models = {
        k: {'r2_mean_offline': s['r2_mean'], 'r2_mean_live': None} for k, s in offline.items()
    }
    models['dlnn'] |= {
        'r2_mean_live': live.scores['r2_mean'],
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
        'good': good,
        'bag': str(bag),
        'report': str(path),
    }
    text = '\n'.join([text_table(table), *lines, f'report: {path}'])
    return Result(data, text, 0 if good else 1)
