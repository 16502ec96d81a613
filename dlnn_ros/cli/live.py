"""Serve a model on ROS 2, replay a recording to it, and score what comes back."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from pathlib import Path
import shutil
from typing import Any, NamedTuple

from dlnn_ros.data.efforts import read_efforts
from dlnn_ros.data.trajectory import Dataset, Trajectory
from dlnn_ros.learning import metrics
from dlnn_ros.learning.evaluate import Evaluation, Prediction, score_predictions
from dlnn_ros.learning.report import Line, plot
import numpy as np

from .command import progress
from .processes import NodeProcess, private_environment

START_TIMEOUT_S = 60.0  # torch may have to be read from a cold disk
FEEDFORWARD = '/feedforward_node/feedforward'
JOINT_STATES = '/joint_states'


class Live(NamedTuple):
    """
    What came over ROS.

    index are the samples of the trajectory that were answered, (K,), effort the answers, (K, n).
    """

    received: int
    expected: int
    index: np.ndarray
    effort: np.ndarray
    scores: dict[str, Any]
    latency_ms: dict[str, float]


def serve_and_record(
    model: Path,
    bag: Path,
    topic: str | None,
    trajectory: Trajectory,
    first_stamp_ns: int,
    out: Path,
    rate: float,
) -> Live:
    """
    Run feedforward_node, replay_node and record_node on one trajectory of a bag.

    Raises
    ------
    TimeoutError, ValueError
        One line: which node did not start, what it said, or that nothing was received.

    """
    folder = out / 'nodes'
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    recorded = folder / 'received'
    stamps = first_stamp_ns + np.rint(trajectory.t * 1e9).astype(np.int64)
    duration_s = float(trajectory.t[-1] - trajectory.t[0])
    environment = private_environment(folder)
    with contextlib.ExitStack() as stack:

        def start(node: str, **parameters: Any) -> NodeProcess:
            return stack.enter_context(NodeProcess(node, parameters, folder, environment))

        progress('starting feedforward_node and record_node ...')
        server = start('feedforward_node', model=str(model.resolve()), autostart=True)
        server.wait_for('active:', START_TIMEOUT_S)
        recorder = start(
            'record_node',
            bag=str(recorded.resolve()),
            topics=[FEEDFORWARD, JOINT_STATES],
            idle_timeout_s=2.0,
            wait_timeout_s=START_TIMEOUT_S,
        )
        recorder.wait_for(f'matched: {FEEDFORWARD}', START_TIMEOUT_S)
        progress(f'replaying {duration_s:.0f} s of {trajectory.recording.name} at {rate:g}x ...')
        player = start(
            'replay_node',
            bag=str(bag.resolve()),
            topic=topic or '',
            rate=rate,
            # Half a sample early, so that rounding of seconds does not lose the first one.
            start_s=max(0.0, float(trajectory.t[0]) - 0.5 / trajectory.recording.rate_hz),
            duration_s=duration_s + 1.0 / trajectory.recording.rate_hz,
            wait_subscriptions=2,
        )
        limit_s = START_TIMEOUT_S + duration_s / rate
        if player.wait(limit_s):
            raise ValueError(f'replay_node failed; log: {player.log}')
        if recorder.wait(limit_s):
            raise ValueError(
                f'nothing was received on {FEEDFORWARD}; logs: {recorder.log}, {server.log}'
            )
    joints = _joints(model)
    answers = read_efforts(recorded, FEEDFORWARD, joints)
    states = read_efforts(recorded, JOINT_STATES, joints)
    index, at = _match(stamps, answers.stamps)
    effort = answers.effort[at]
    valid = trajectory.valid[index]
    parts = metrics.split_scores(
        effort[valid], trajectory.tau[index][valid], trajectory.qd[index][valid]
    )
    asked, answered = _match(states.stamps, answers.stamps)
    delay_ms = (answers.log[answered] - states.log[asked]) * 1e-6
    return Live(
        received=len(answers.stamps),
        expected=len(stamps),
        index=index,
        effort=effort,
        scores=metrics.summary(parts, joints),
        latency_ms={f'p{p}': float(np.percentile(delay_ms, p)) for p in (50, 99)},
    )


def rnea_effort(dataset: Dataset) -> Evaluation | None:
    """Score Pinocchio's RNEA on the test part; None, with a line why, where it cannot be had."""
    from dlnn_ros.dynamics.rigid_body import RigidBody

    robot = dataset.robot
    if robot.urdf is None:
        progress('rnea is left out: no URDF is known for this robot (--robot)')
        return None
    try:
        body = RigidBody.from_robot(robot)
    except ImportError as error:
        progress(f'rnea is left out: {error}')
        return None
    predictions = tuple(
        Prediction(t, body.inverse_dynamics(t.q, t.qd, t.qdd) / robot.gear_ratio, {}, None)
        for t in dataset.role('test')
    )
    return Evaluation(predictions, score_predictions(predictions, robot.joints))


def live_plots(
    live: Live, trajectory: Trajectory, prediction: Prediction, joints: Sequence[str], unit: str
) -> list[str]:
    """Plot measured, live and offline effort of each joint."""
    t = trajectory.t
    panels = [
        (
            joint,
            [
                Line('measured', t, trajectory.tau[:, i]),
                Line('live over ROS', t[live.index], live.effort[:, i]),
                Line('offline', t, prediction.effort[:, i]),
            ],
        )
        for i, joint in enumerate(joints)
    ]
    return [plot(panels, f'effort [{unit}]', trajectory.recording.name)]


def _joints(model: Path) -> tuple[str, ...]:
    from dlnn_ros.learning.model_folder import load_description

    return load_description(model).robot.joints


def _match(known: np.ndarray, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of equal stamps in both; each array is increasing."""
    _, a, b = np.intersect1d(known, stamps, return_indices=True)
    return a, b
