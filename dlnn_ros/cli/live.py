"""Serve a model on ROS 2, replay a recording to it, and score what comes back."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from pathlib import Path
import shutil
from typing import Any, NamedTuple, TYPE_CHECKING

from dlnn_ros.config import Robot
from dlnn_ros.data.bags import write_bag
from dlnn_ros.data.efforts import Efforts, read_efforts
from dlnn_ros.data.trajectory import RecordingSet, Trajectory
from dlnn_ros.learning import metrics
from dlnn_ros.learning.evaluate import Prediction, score_predictions
from dlnn_ros.learning.report import Line, plot
import numpy as np

from .command import progress
from .processes import NodeProcess, private_environment

if TYPE_CHECKING:
    from dlnn_ros.dynamics.rigid_body import RigidBody

START_TIMEOUT_S = 60.0  # of a node on a busy machine with a cold disk
FEEDFORWARD = '/feedforward_node/feedforward'
JOINT_STATES = '/joint_states'


class Live(NamedTuple):
    """
    What came over ROS.

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
    model: Path, robot: Robot, trajectory: Trajectory, out: Path, rate: float
) -> Live:
    """
    Run feedforward_node, replay_node and record_node on one trajectory.

    The trajectory is written to a bag of its own, so that nothing but it is replayed and each
    stamp names one of its samples.

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
        player = start('replay_node', bag=str(stretch.resolve()), rate=rate, wait_subscriptions=2)
        limit_s = START_TIMEOUT_S + duration_s / rate
        if player.wait(limit_s):
            raise ValueError(f'replay_node failed; log: {player.log}')
        if recorder.wait(limit_s):
            raise ValueError(f'nothing was received on {FEEDFORWARD}; log: {recorder.log}')
    sent = read_efforts(stretch, JOINT_STATES, ()).stamps
    answers = read_efforts(recorded, FEEDFORWARD, robot.joints)
    states = read_efforts(recorded, JOINT_STATES, ())
    return score_answers(trajectory, robot.joints, sent, answers, states)


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


def score_rigid_body(body: RigidBody, trajectory: Trajectory, robot: Robot) -> dict[str, Any]:
    """Score RNEA, without friction, on a trajectory."""
    tau = body.inverse_dynamics(trajectory.q, trajectory.qd, trajectory.qdd)
    prediction = Prediction(trajectory, tau / robot.gear_ratio, {}, None)
    return score_predictions((prediction,), robot.joints)


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


def match(known: np.ndarray, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of equal stamps in both."""
    _, a, b = np.intersect1d(known, stamps, return_indices=True)
    return a, b
