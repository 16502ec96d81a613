"""The linear model with memory: which samples count, and what is chosen by the recordings."""

from dataclasses import replace

import datasets
from dlnn_ros.data.trajectory import Trajectory
from dlnn_ros.learning import linear_memory
from dlnn_ros.learning.evaluate import evaluate
from dlnn_ros.learning.linear_memory import DEGREES, has_moved, RIDGES
from dlnn_ros.learning.settings import TrainConfig
from dlnn_ros.learning.train import train
import numpy as np
import pytest

MEMORY = {'elements': [{'zeta': 1e-3}]}
GIVEN = {'mass_degree': 0, 'potential_degree': 1, 'ridge': 1e-4}


@pytest.fixture
def pendulums(rng):
    return datasets.two_pendulums(rng, trajectories=4, samples=200)


def fit(dataset, **options):
    return train(dataset, TrainConfig('linear_memory', {'memory': MEMORY, **options}, threads=1))


def parked(trajectory, joint, angle):
    """Return a trajectory with one joint standing at an angle, under its weight and noise."""
    q, qd, qdd, tau = (
        x.copy() for x in (trajectory.q, trajectory.qd, trajectory.qdd, trajectory.tau)
    )
    q[:, joint], qd[:, joint], qdd[:, joint] = angle, 0.0, 0.0
    tau[:, joint] = datasets.GRAVITY[joint] * np.sin(angle)
    tau[:, joint] += 1e-3 * np.cos(np.arange(len(q)))
    return Trajectory(replace(trajectory.recording, q=q, tau=tau), q, qd, qdd, 'exact')


def with_trajectories(dataset, made):
    return replace(dataset, trajectories=tuple(made))


def test_samples_count_from_the_first_motion_of_their_joint_on(pendulums):
    t = parked(pendulums.trajectories[0], 1, 0.4)
    way = np.abs(t.q - t.q[0])
    moved = has_moved(t)
    first = int(moved[:, 0].argmax())
    assert (way[:first, 0] <= linear_memory.FIRST_MOTION).all()
    assert way[first, 0] > linear_memory.FIRST_MOTION
    assert moved[first:, 0].all()
    assert not moved[:, 1].any()


def test_joint_that_is_parked_in_all_recordings_is_fitted(pendulums):
    """Or its torque would be anything."""
    data = with_trajectories(pendulums, [parked(t, 1, 0.4) for t in pendulums])
    model = fit(data, **GIVEN).model
    (prediction,) = evaluate(model.double(), data.role('test')).predictions
    expected = datasets.GRAVITY[1] * np.sin(0.4)
    np.testing.assert_allclose(prediction.effort[:, 1], expected, rtol=0.02)


def test_recording_in_which_a_joint_is_parked_does_not_count_for_it(pendulums):
    """What the joint holds there is not known: a torque off by far changes nothing."""
    train_parts = [k for k, t in enumerate(pendulums) if t.recording.role == 'train']
    made = list(pendulums)
    made[train_parts[0]] = parked(made[train_parts[0]], 1, 0.4)
    spoilt = list(made)
    recording = spoilt[train_parts[0]].recording
    tau = recording.tau + [0.0, 5.0]
    spoilt[train_parts[0]] = replace(made[train_parts[0]], recording=replace(recording, tau=tau))
    efforts = [
        evaluate(
            fit(with_trajectories(pendulums, parts), **GIVEN).model.double(),
            pendulums.role('test'),
        )
        .predictions[0]
        .effort
        for parts in (made, spoilt)
    ]
    # The unit of torque and the weights of the errors know of it.
    np.testing.assert_allclose(*efforts, rtol=1e-2, atol=1e-2)


def test_what_is_left_open_is_chosen_and_what_is_given_is_kept(pendulums):
    config = fit(pendulums).description.config
    assert (config['mass_degree'], config['potential_degree']) in DEGREES
    assert config['ridge'] in RIDGES
    config = fit(pendulums, **GIVEN).description.config
    assert {k: config[k] for k in GIVEN} == GIVEN


@pytest.mark.parametrize('groups', [1, 2])
def test_other_groups_choose_or_with_one_group_the_validation_part(pendulums, groups):
    """Validation efforts that are noise ask for the largest ridge, where they are asked."""
    noise = np.random.default_rng(0).normal(size=pendulums.trajectories[0].q.shape)
    made, number = [], 0
    for t in pendulums:
        recording = replace(t.recording, group=f'g{number % groups}')
        number += recording.role == 'train'
        if recording.role == 'validation':
            recording = replace(recording, tau=noise)
        made.append(replace(t, recording=recording))
    ridge = fit(with_trajectories(pendulums, made)).description.config['ridge']
    assert (ridge == max(RIDGES)) == (groups == 1)
