from dlnn_ros.runtime import estimators
from dlnn_ros.runtime.estimators import FilteredDifference
import numpy as np
import pytest

T = 0.014


def smooth(t):
    """Two joints with known derivatives."""
    t = np.asarray(t)
    w = np.array([2.0, 5.0])
    x = t[:, None] * w
    return np.sin(x), w * np.cos(x), -(w**2) * np.sin(x)


def drive(estimator, t, q, velocity=None):
    """Outcome of every sample."""
    outcomes = []
    for k in range(len(t)):
        estimator.update(t[k], q[k], None if velocity is None else velocity[k])
        outcomes.append(estimator.outcome)
    return outcomes


@pytest.mark.parametrize('dt', [0.001, 0.004])
def test_estimate_is_the_delayed_derivative(dt):
    t = np.arange(0, 6, dt)
    estimates = FilteredDifference(2, T).run(t, smooth(t)[0])
    late = t > 0.5
    _, qd, _ = smooth(t - (2 * T - dt / 2))
    _, _, qdd = smooth(t - (4 * T - dt))
    # A low-pass changes the amplitude too: by (w T)^2 per pair of poles, w = 5, that is 0.5 %.
    np.testing.assert_allclose(estimates.qd[late], qd[late], atol=0.01 * 5)
    np.testing.assert_allclose(estimates.qdd[late], qdd[late], atol=0.015 * 25)


def test_without_compensating_the_delay_the_estimate_is_off():
    t = np.arange(0, 6, 0.001)
    _, qd, _ = smooth(t)
    estimates = FilteredDifference(2, T).run(t, smooth(t)[0])
    assert np.abs(estimates.qd - qd)[500:].max() > 0.05 * 5


def test_constant_acceleration_is_found_exactly():
    t = np.arange(0, 2, 0.002)
    q = 0.5 * 3.0 * t[:, None] ** 2
    estimates = FilteredDifference(1, T).run(t, q)
    # The poles have settled after a second: exp(-1 / T) is zero.
    np.testing.assert_allclose(estimates.qdd[t > 1], 3.0, rtol=1e-9)


def test_irregular_stamps_give_the_same_motion(rng):
    t = np.cumsum(rng.uniform(0.002, 0.008, 2000))
    estimates = FilteredDifference(2, T).run(t, smooth(t)[0])
    _, qd, _ = smooth(t - 2 * T)
    # dt / 2 of delay, up to 4 ms, is not compensated here: 4e-3 * 25.
    np.testing.assert_allclose(estimates.qd[100:], qd[100:], atol=0.15)


def test_noise_of_a_coarse_encoder_with_a_wandering_period_is_bounded(rng):
    t = np.cumsum(rng.uniform(0.002, 0.008, 5000))
    resolution = np.radians(0.01)
    w = 2 * np.pi * 0.1
    q = np.round(np.sin(w * t)[:, None] / resolution) * resolution
    estimates = FilteredDifference(1, T).run(t, q)
    error = estimates.qdd[500:, 0] + w**2 * np.sin(w * (t - 4 * T))[500:]
    raw = np.diff(np.diff(q[:, 0]) / np.diff(t)) / np.diff(t)[1:]
    assert np.sqrt((error**2).mean()) < 0.4
    # The plain second difference of the same samples is what the filter is there for.
    assert np.sqrt((raw**2).mean()) > 10 * np.sqrt((error**2).mean())


def test_message_velocity_is_passed_on_and_differentiated():
    t = np.arange(0, 3, 0.001)
    q, velocity, _ = smooth(t)
    estimates = FilteredDifference(2, T).run(t, q, velocity)
    np.testing.assert_array_equal(estimates.qd[1:], velocity[1:])
    _, _, qdd = smooth(t - 2 * T)
    np.testing.assert_allclose(estimates.qdd[500:], qdd[500:], atol=0.01 * 25)


def test_velocity_that_comes_and_goes_makes_no_spike():
    t = np.arange(0, 3, 0.001)
    q, velocity, _ = smooth(t)
    estimator = FilteredDifference(2, T)
    qdd = []
    for k in range(len(t)):
        estimate = estimator.update(t[k], q[k], velocity[k] if k % 700 == 699 else None)
        qdd.append(np.zeros(2) if estimate is None else estimate.qdd.copy())
    assert np.abs(qdd[200:]).max() < 1.05 * 25


def test_repeated_samples_under_a_new_stamp_are_skipped(rng):
    t = np.arange(0, 2, 0.001)
    q, velocity, _ = smooth(t)
    repeated = rng.random(len(t)) < 0.06
    repeated[:2] = False
    stale_q, stale_velocity = q.copy(), velocity.copy()
    for k in np.flatnonzero(repeated):
        stale_q[k], stale_velocity[k] = stale_q[k - 1], stale_velocity[k - 1]
    outcomes = drive(FilteredDifference(2, T), t, stale_q, stale_velocity)
    found = np.array([o == estimators.REPEATED_SAMPLE for o in outcomes])
    np.testing.assert_array_equal(found, repeated)
    kept = FilteredDifference(2, T).run(t[~repeated], q[~repeated], velocity[~repeated])
    skipped = FilteredDifference(2, T).run(t, stale_q, stale_velocity)
    np.testing.assert_array_equal(skipped.qdd[~repeated], kept.qdd)


def test_a_robot_at_rest_is_not_a_repeated_sample_for_ever():
    t = np.arange(0, 1, 0.001)
    q = np.minimum(t, 0.5)[:, None]
    estimator = FilteredDifference(1, T)
    outcomes = drive(estimator, t, q)
    assert outcomes[505] == estimators.REPEATED_SAMPLE
    assert outcomes.count(estimators.OK) > 500
    estimate = FilteredDifference(1, T).run(t, q)
    assert abs(estimate.qd[-1, 0]) < 1e-9
    assert abs(estimate.qdd[-1, 0]) < 1e-6


@pytest.mark.parametrize('is_continuous', [True, False])
def test_continuous_joints_are_unwrapped(is_continuous):
    t = np.arange(0, 10, 0.001)
    angle = 8 * np.sin(t)[:, None] * np.ones(2)
    wrapped = np.mod(angle + np.pi, 2 * np.pi) - np.pi
    estimator = FilteredDifference(2, T, continuous=np.array([is_continuous, False]))
    estimates = estimator.run(t, np.column_stack((wrapped[:, 0], angle[:, 1])))
    if is_continuous:
        np.testing.assert_allclose(estimates.qd[:, 0], estimates.qd[:, 1], atol=1e-8)
        assert np.abs(estimates.qd).max() < 8.1
    else:
        assert (~estimates.valid).sum() > 1


def test_wrap_inside_a_gap_gives_no_velocity_spike():
    estimator = FilteredDifference(1, T, continuous=np.array([True]))
    t = np.concatenate((np.arange(0, 0.5, 0.001), np.arange(0.7, 1.2, 0.001)))
    angle = (t - 0.6)[:, None] * 2 + np.pi
    estimates = estimator.run(t, np.mod(angle + np.pi, 2 * np.pi) - np.pi)
    np.testing.assert_allclose(estimates.qd[estimates.valid], 2.0, rtol=1e-6)


def test_jitter_of_the_stamps_is_bounded(rng):
    true = np.arange(0, 4, 0.004)
    t = true + rng.normal(0, 2e-4, len(true))
    q = 1.0 * true[:, None]
    estimates = FilteredDifference(1, T).run(t, q)
    # One pair of poles would give 1 rad/s^2; see the module's docstring.
    assert estimates.qdd[200:].std() < 0.5


def run_with_stamps(t, q_of):
    return drive(FilteredDifference(2, T), t, smooth(q_of)[0])


def test_small_backward_step_costs_one_sample_and_makes_no_spike():
    true = np.arange(0, 4, 0.005)
    for step in (-0.005, -0.02):
        t = true + np.where(true >= 2, step, 0.0)
        estimator = FilteredDifference(2, T)
        estimates = estimator.run(t, smooth(true)[0])
        outcomes = run_with_stamps(t, true)
        assert len(outcomes) - outcomes.count(estimators.OK) == 2  # first one, dropped one
        assert np.abs(estimates.qd).max() < 5.1
        assert np.abs(estimates.qdd).max() < 25.5


@pytest.mark.parametrize(
    ('step', 'outcome'), [(-0.5, estimators.CLOCK_JUMP), (3.0, estimators.GAP)]
)
def test_large_step_resets_once(step, outcome):
    true = np.arange(0, 4, 0.005)
    t = true + np.where(true >= 2, step, 0.0)
    outcomes = run_with_stamps(t, true)
    assert outcomes.count(outcome) == 1
    assert outcomes.count(estimators.OK) == len(true) - 2
    estimates = FilteredDifference(2, T).run(t, smooth(true)[0])
    assert np.abs(estimates.qd).max() < 5.1


def test_bag_loop_and_stray_future_stamp_do_not_block():
    once = np.arange(0, 3, 0.004)
    t = np.concatenate((once, once, [63.0], once[:500] + 3.004))
    q = np.concatenate((once, once, [3.0], once[:500] + 3.004))
    outcomes = run_with_stamps(t, q)
    assert outcomes[len(once)] == estimators.CLOCK_JUMP
    assert outcomes[2 * len(once)] == estimators.GAP
    # The delay of the filter or ten samples, whichever is longer, and service goes on.
    tail = outcomes[2 * len(once) + 1 :]
    assert tail[0] == estimators.CLOCK_JUMP
    assert set(tail[12:]) == {estimators.OK}


@pytest.mark.parametrize('offset', [0.08, 0.02])
def test_two_sources_with_offset_stamps_are_refused(offset):
    base = np.arange(0, 5, 0.01)
    t = np.column_stack((base, base + offset)).ravel()
    q = np.column_stack((base, base)).ravel() + 0.1
    outcomes = run_with_stamps(t, q)
    # Each would give a velocity that is wrong by a factor; only the first steps may pass.
    assert outcomes[10:].count(estimators.OK) == 0


@pytest.mark.parametrize('rounding', [0.0, 1e-9, -1e-9])
def test_equal_stamps_are_skipped(rounding):
    t = np.repeat(np.arange(0, 1, 0.01), 2)
    t[1::2] += rounding
    outcomes = run_with_stamps(t, t + 1e-5 * np.arange(len(t)))
    assert outcomes[1::2] == [estimators.EQUAL_STAMP] * 100


def test_reset_gives_the_state_of_a_new_estimator():
    t = np.arange(0, 1, 0.002)
    q = smooth(t)[0]
    estimator = FilteredDifference(2, T)
    first = estimator.run(t, q)
    estimator.run(t + 3, 2 * q)
    again = estimator.run(t, q)
    np.testing.assert_array_equal(first.qd, again.qd)
    np.testing.assert_array_equal(first.qdd, again.qdd)


@pytest.mark.parametrize(
    ('kwargs', 'match'),
    [
        ({'n': 0}, 'n is 0'),
        ({'n': 2, 'time_constant_s': 0.0}, r'time_constant_s is 0\.0'),
        ({'n': 2, 'time_constant_s': float('nan')}, 'time_constant_s is nan'),
        ({'n': 2, 'continuous': np.array([True])}, r'shape \(1,\), expected \(2,\)'),
    ],
)
def test_wrong_settings_are_named(kwargs, match):
    with pytest.raises(ValueError, match=match):
        FilteredDifference(**kwargs)


def test_a_position_that_jumps_is_no_velocity():
    """A wrap of a joint that is not declared continuous, and one wild sample."""
    t = np.arange(400) * 0.004
    q = np.column_stack([0.5 * t, np.sin(t)])
    q[200:, 0] -= 2 * np.pi
    q[300, 1] = 1e3
    estimator = FilteredDifference(2)
    outcomes = []
    for k in range(len(t)):
        estimate = estimator.update(t[k], q[k])
        outcomes.append(estimator.outcome)
        if estimate is not None:
            assert np.abs(estimate.qd).max() < 1.5
    assert outcomes[200] == outcomes[300] == outcomes[301] == estimators.POSITION_JUMP
    assert outcomes[-1] == estimators.OK
    # Declared, the wrap is none.
    estimator = FilteredDifference(2, continuous=np.array([True, False]))
    assert estimator.run(t[:300], q[:300]).valid[1:].all()
