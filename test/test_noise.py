from dlnn_ros.config import Robot
from dlnn_ros.data.derivatives import differentiate
from dlnn_ros.data.noise import follow, position_noise
from dlnn_ros.data.trajectory import Dataset, Recording, Trajectory
from dlnn_ros.dynamics.architecture import Element, MemoryConfig
from dlnn_ros.dynamics.memory import FrictionMemory
from dlnn_ros.runtime.estimators import FilteredDifference
import numpy as np
import pytest
import torch

SIGMA = np.array([2e-6, 5e-5])


def noisy(rng, q, period=0.004):
    """Return a data set of one recording of q, (N, 2), with noise of SIGMA."""
    t = period * np.arange(len(q))
    robot = Robot('two', ('a', 'b'), ('revolute', 'prismatic'))
    recording = Recording(t, q + SIGMA * rng.normal(size=q.shape), np.zeros_like(q))
    return Dataset(robot, (differentiate(recording),), 'noisy')


def test_noise_is_measured_where_a_joint_rests(rng):
    q = np.zeros((2000, 2))
    q[1000:] = (1 - np.cos(0.004 * np.arange(1000)))[:, None]
    np.testing.assert_allclose(position_noise(noisy(rng, q)), SIGMA, rtol=0.15)


@pytest.mark.parametrize('period', [0.004, 0.02, 0.1])
def test_noise_is_measured_in_motion_too(rng, period):
    t = period * np.arange(2000)
    q = np.stack([np.sin(t), 0.3 * np.cos(2 * t)], 1) + t[:, None]
    np.testing.assert_allclose(position_noise(noisy(rng, q, period)), SIGMA, rtol=0.15)


def test_noise_of_a_few_samples_is_none():
    robot = Robot('two', ('a', 'b'), ('revolute', 'prismatic'))
    for samples in (2, 4, 7):
        q = np.cumsum(np.ones((samples, 2)), 0)
        recording = Recording(0.1 * np.arange(samples), q, np.zeros_like(q))
        moving = Trajectory(recording, q, np.ones_like(q), 0 * q)
        np.testing.assert_array_equal(position_noise(Dataset(robot, (moving,), 'few')), 0.0)


def test_position_on_a_play_is_drawn_along():
    q = np.array([0.0, 0.9, -0.9, 1.0, 1.1, 2.05, 2.15, 0.2, 0.2])[:, None]
    expected = np.array([0.0, 0.0, 0.0, 0.0, 0.1, 1.05, 1.15, 1.15, 1.15])[:, None]
    np.testing.assert_allclose(follow(q, 1.0), expected, atol=1e-12)
    np.testing.assert_array_equal(follow(q, 0.0), q)


def test_estimator_follows_positions_on_the_play(rng):
    q = np.cumsum(rng.normal(size=(300, 2)), 0) * 1e-4
    band = np.array([3e-4, 0.0])
    found = []
    estimator = FilteredDifference(2, dead_band=band)
    for k, row in enumerate(q):
        e = estimator.update(0.004 * k, row)
        found.append(q[0] if e is None else e.q.copy())
    np.testing.assert_allclose(found, follow(q, band), atol=1e-15)


def test_play_and_turns_of_a_continuous_joint_go_together(rng):
    q = np.cumsum(rng.uniform(-0.1, 0.3, (300, 1)), 0)
    wrapped = np.mod(q + np.pi, 2 * np.pi) - np.pi
    estimator = FilteredDifference(1, continuous=np.array([True]), dead_band=np.array([0.05]))
    found = []
    for k, row in enumerate(wrapped):
        e = estimator.update(0.004 * k, row)
        found.append(wrapped[0] if e is None else e.q.copy())
    expected = follow(q, 0.05)
    np.testing.assert_allclose(np.array(found) - found[0], expected - expected[0], atol=1e-9)


@pytest.mark.parametrize('speed', [0.5, -0.5])
def test_joint_found_in_motion_does_not_seem_to_speed_up(speed):
    t = 1e-3 * np.arange(100)
    # A step takes it beyond the play; without the exception for the first, qdd reaches 7.
    found = FilteredDifference(1, dead_band=np.array([4e-4])).run(t, speed * t[:, None])
    np.testing.assert_allclose(found.qd[1:], speed, rtol=1e-9)
    np.testing.assert_allclose(found.qdd[1:], 0.0, atol=1e-9)


def test_velocity_of_a_resting_joint_keeps_its_sign_on_the_play(rng):
    t = 0.004 * np.arange(1500)
    q = np.where(t < 2, np.sin(np.pi * t / 4), 1.0)[:, None] + 1e-6 * rng.normal(size=(1500, 1))
    turns = {}
    for band in (0.0, 3.5e-6):
        estimator = FilteredDifference(1, dead_band=np.array([band]))
        signs = np.sign(estimator.run(t, q).qd[520:, 0])
        turns[band] = int((np.diff(signs) != 0).sum())
    assert turns[0.0] > 50
    assert turns[3.5e-6] < 10


@pytest.mark.parametrize('band', [[-1e-6, 0.0], [np.nan, 0.0], [1e-6]])
def test_bad_band_is_refused(band):
    with pytest.raises(ValueError, match=r'dead_band is .*, must be 2 numbers >= 0'):
        FilteredDifference(2, dead_band=np.array(band))


@torch.no_grad()
def test_play_keeps_what_noise_would_forget_and_stays_passive_along_its_path(rng):
    memory = FrictionMemory(MemoryConfig((Element(1e-4),)), [True], (1.0,)).double()
    q = rng.normal(0, 1e-5, (500, 1))
    dt = torch.full((500,), 0.01, dtype=torch.float64)
    left = {}
    for band in (0.0, 6e-5):
        held = torch.from_numpy(follow(q, band))
        start = torch.tensor([[0.7, held[0, 0]]], dtype=torch.float64)
        run = memory.run(start, held, 0 * held, dt)
        left[band] = float(run.state[0, 0])
        way = torch.diff(held, dim=0, prepend=held[:1])
        stored = memory.stored(held, run.y)
        before = memory.stored(held[:1], start[None, :, :1])
        surplus = (memory.force(held, run.y) * way).sum(-1).cumsum(0) - (stored - before)
        assert float(surplus.min()) >= -1e-18
    assert left[6e-5] == pytest.approx(0.7)
    assert abs(left[0.0]) < 0.2
