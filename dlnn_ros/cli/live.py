"""Serve models on ROS 2, replay a recording to them, and score what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import contextlib
from pathlib import Path
import shutil
from typing import Any, NamedTuple, TYPE_CHECKING

from dlnn_ros.config import Robot
from dlnn_ros.data.bags import write_bag
from dlnn_ros.data.efforts import Efforts, read_efforts
from dlnn_ros.data.trajectory import RecordingSet, Trajectory
from dlnn_ros.learning import metrics
from dlnn_ros.learning.evaluate import Evaluation, Prediction, score_predictions
from dlnn_ros.learning.report import Line, plot
from dlnn_ros.learning.stops import between, find_stop
import numpy as np

from .command import progress
from .processes import NodeProcess, private_environment

if TYPE_CHECKING:
    from dlnn_ros.dynamics.rigid_body import RigidBody

START_TIMEOUT_S = 60.0  # of a node on a busy machine with a cold disk
JOINT_STATES = '/joint_states'


class Live(NamedTuple):
    """
    What came over ROS from one model.

    received of expected samples were answered under their own stamp; index are those samples,
    (K,), effort the answers, (K, n).
    """

    received: int
    expected: int
    index: np.ndarray
    effort: np.ndarray
    scores: dict[str, Any]
    latency_ms: dict[str, float | None]


def serve_and_record(
    models: Mapping[str, Path], robot: Robot, trajectory: Trajectory, out: Path, rate: float
) -> dict[str, Live]:
    """
    Run a feedforward_node per model, replay_node and record_node on one trajectory.

    The trajectory is written to a bag of its own, so that nothing but it is replayed and each
    stamp names one of its samples. All models answer the same joint states side by side; the
    node of each is named feedforward_ and its key.

    Raises
    ------
    TimeoutError, ValueError
        One line: which node did not start, what it said, or that nothing was received.

    """
    folder = out / 'nodes'
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stretch, recorded = folder / 'stretch', folder / 'received'
    write_bag(stretch, RecordingSet(robot, (trajectory.recording,), str(stretch)), JOINT_STATES)
    duration_s = float(trajectory.t[-1] - trajectory.t[0])
    environment = private_environment(folder)
    names = {key: f'feedforward_{key}' for key in models}
    topics = {key: f'/{name}/feedforward' for key, name in names.items()}
    with contextlib.ExitStack() as stack:

        def start(node: str, name: str = '', **parameters: Any) -> NodeProcess:
            return stack.enter_context(NodeProcess(node, parameters, folder, environment, name))

        progress(f'starting {", ".join(names.values())} and record_node ...')
        servers = [
            start('feedforward_node', names[key], model=str(path.resolve()), autostart=True)
            for key, path in models.items()
        ]
        recorder = start(
            'record_node',
            bag=str(recorded.resolve()),
            topics=[*topics.values(), JOINT_STATES],
            idle_timeout_s=2.0,
            wait_timeout_s=2 * START_TIMEOUT_S,
        )
        for server in servers:
            server.wait_for('active:', START_TIMEOUT_S)
        for topic in topics.values():
            recorder.wait_for(f'matched: {topic}', START_TIMEOUT_S)
        progress(f'replaying {duration_s:.0f} s of {trajectory.recording.name} at {rate:g}x ...')
        player = start(
            'replay_node',
            bag=str(stretch.resolve()),
            rate=rate,
            wait_subscriptions=len(models) + 1,
        )
        limit_s = START_TIMEOUT_S + duration_s / rate
        if player.wait(limit_s):
            raise ValueError(f'replay_node failed; log: {player.log}')
        if recorder.wait(limit_s):
            raise ValueError(
                f'nothing was received on {", ".join(topics.values())}; log: {recorder.log}'
            )
    sent = read_efforts(stretch, JOINT_STATES, ()).stamps
    states = read_efforts(recorded, JOINT_STATES, ())
    return {
        key: score_answers(
            trajectory, robot.joints, sent, read_efforts(recorded, topic, robot.joints), states
        )
        for key, topic in topics.items()
    }


def score_answers(
    trajectory: Trajectory,
    joints: tuple[str, ...],
    sent: np.ndarray,
    answers: Efforts,
    states: Efforts,
) -> Live:
    """
    Pair answers with samples by their stamps, and score them.

    Parameters
    ----------
    trajectory : Trajectory
        What was sent.
    joints : tuple of str
        Columns of the efforts.
    sent : array, (N,)
        Stamp of each sample [ns].
    answers, states : Efforts
        Feed-forward and joint states as one process received them.

    Raises
    ------
    ValueError
        If no answer carries the stamp of a sample.

    """
    index, at = match(sent, answers.stamps)
    if not len(index):
        raise ValueError(
            f'none of {len(answers.stamps)} feed-forward messages has the stamp of a joint state'
        )
    effort = answers.effort[at]
    valid = trajectory.valid[index]
    parts = metrics.split_scores(
        effort[valid], trajectory.tau[index][valid], trajectory.qd[index][valid]
    )
    asked, answered = match(states.stamps, answers.stamps)
    delay_ms = (answers.log[answered] - states.log[asked]) * 1e-6
    return Live(
        received=len(index),
        expected=len(sent),
        index=index,
        effort=effort,
        scores=metrics.summary(parts, joints),
        latency_ms={
            f'p{p}': float(np.percentile(delay_ms, p)) if len(delay_ms) else None for p in (50, 99)
        },
    )


def rigid_body(robot: Robot) -> RigidBody | None:
    """Return Pinocchio's model of the robot; None, with a line why, where it cannot be had."""
    from dlnn_ros.dynamics.rigid_body import RigidBody

    if robot.urdf is None:
        progress('rnea is left out: no URDF is known for this robot (--robot)')
        return None
    try:
        return RigidBody.from_robot(robot)
    except ImportError as error:
        progress(f'rnea is left out: {error}')
        return None


def evaluate_rigid_body(body: RigidBody, trajectory: Trajectory, robot: Robot) -> Evaluation:
    """Score RNEA, without friction, on a trajectory."""
    tau = body.inverse_dynamics(trajectory.q, trajectory.qd, trajectory.qdd)
    predictions = (Prediction(trajectory, tau / robot.gear_ratio, {}),)
    return Evaluation(predictions, score_predictions(predictions, robot.joints))


def live_plots(
    live: Mapping[str, Live], trajectory: Trajectory, joints: Sequence[str], unit: str
) -> list[str]:
    """Plot measured and live effort of each joint: around a stop, then all of it."""
    t = trajectory.t
    lines = [
        [
            Line('measured', t, np.where(trajectory.valid, trajectory.tau[:, i], np.nan)),
            *(Line(f'{key} live', t[a.index], a.effort[:, i]) for key, a in live.items()),
        ]
        for i in range(len(joints))
    ]
    name = trajectory.recording.name
    label = f'effort [{unit}]'
    plots = []
    stop = find_stop(trajectory)
    if stop is not None:
        panels = [[between(line, *stop) for line in panel] for panel in lines]
        plots.append(plot(list(zip(joints, panels, strict=True)), label, f'{name}: a stop'))
    return [*plots, plot(list(zip(joints, lines, strict=True)), label, name)]


def match(known: np.ndarray, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of equal stamps in both."""
    _, a, b = np.intersect1d(known, stamps, return_indices=True)
    return a, b
