from types import SimpleNamespace

from dlnn_ros.config import Robot
from dlnn_ros.runtime import estimators, feedforward
from dlnn_ros.runtime.backends.numpy_backend import NumpyPredictor
from dlnn_ros.runtime.estimators import FilteredDifference
from dlnn_ros.runtime.feedforward import FeedForward
import numpy as np
import pytest

import models

JOINTS = tuple(f'A{i}' for i in range(1, 8))
WEIGHT = np.arange(1.0, 8.0)


class WeightedSum:
    """A predictor whose torque shows which value came from which joint."""

    backend = 'test'
    has_memory = False

    def __init__(self, kinds=('revolute',) * 7):
        self.description = SimpleNamespace(
            robot=Robot('arm', JOINTS, kinds), kind='test', position_noise=()
        )
        self.resets = 0

    def reset(self):
        self.resets += 1

    def predict(self, q, qd, qdd, dt):
        del dt
        return WEIGHT * q + 0.1 * qd + 0.001 * qdd


@pytest.fixture
def law():
    return FeedForward(WeightedSum())


def motion(t):
    return np.sin(t + 0.3 * np.arange(7)), np.cos(t + 0.3 * np.arange(7))


def serve(law, t, names=JOINTS, velocity=True):
    """Efforts for samples at t, NaN rows where there is none."""
    rows = []
    for k, stamp in enumerate(t):
        q, qd = motion(stamp)
        chosen = list(names(k) if callable(names) else names)
        place = [JOINTS.index(n) for n in chosen]
        output = law.process(stamp, chosen, q[place], qd[place] if velocity else [], [])
        rows.append(np.full(7, np.nan) if output.effort is None else output.effort.copy())
    return np.array(rows)


T = np.arange(0, 1, 0.004)


def test_order_of_names_does_not_matter(law, rng):
    expected = serve(law, T)
    shuffled = serve(FeedForward(WeightedSum()), T, lambda k: rng.permutation(JOINTS).tolist())
    np.testing.assert_array_equal(shuffled, expected)
    assert np.isfinite(expected[1:]).all()
    assert law.counts == {estimators.STARTING: 1, estimators.OK: len(T) - 1}


def test_a_reader_by_index_would_be_found_out(rng):
    expected = serve(FeedForward(WeightedSum()), T)
    law = FeedForward(WeightedSum())
    rows = []
    for stamp in T:
        output = law.process(stamp, list(JOINTS), rng.permutation(motion(stamp)[0]))
        rows.append(np.zeros(7) if output.effort is None else output.effort.copy())
    assert np.abs(np.array(rows) - expected)[1:].max() > 1


def test_layout_may_change_at_run_time(law):
    extra = ['finger_joint1', 'finger_joint2']
    expected = serve(FeedForward(WeightedSum()), T)
    for k, stamp in enumerate(T):
        q = motion(stamp)[0]
        names = [list(JOINTS), extra + list(JOINTS), [*JOINTS[::-1], *extra]][k * 3 // len(T)]
        value = dict(zip(JOINTS, q, strict=True)) | {extra[0]: 1e9 * stamp, extra[1]: -7.0}
        effort = [np.nan if n in extra else 0.0 for n in names]
        output = law.process(stamp, names, [value[n] for n in names], [], effort)
        if k:
            np.testing.assert_array_equal(output.effort, expected[k])
    assert law.ignored == tuple(extra)


@pytest.mark.parametrize('source', feedforward.VELOCITY_SOURCES)
def test_empty_velocity_and_effort_are_legal(source):
    law = FeedForward(WeightedSum(), velocity_source=source)
    efforts = serve(law, T, velocity=False)
    assert np.isfinite(efforts[1:]).all()
    assert law.messages_without_velocity == (len(T) if source == 'message' else 0)


def test_velocity_source_has_an_effect():
    estimated = serve(FeedForward(WeightedSum(), velocity_source='estimate'), T)
    reported = serve(FeedForward(WeightedSum(), velocity_source='message'), T)
    assert np.abs(estimated - reported)[1:].max() > 1e-4
    with pytest.raises(ValueError, match="velocity_source is 'both'"):
        FeedForward(WeightedSum(), velocity_source='both')


@pytest.mark.parametrize(
    ('names', 'position', 'velocity', 'effort', 'match'),
    [
        (7, 7, 3, 0, '7 names but 7 positions, 3 velocities'),
        (7, 6, 0, 0, '7 names but 6 positions'),
        (0, 7, 0, 0, '0 names but 7 positions'),
        (7, 7, 7, 6, '7 velocities and 6 efforts'),
        (7, 0, 7, 7, '7 names but 0 positions'),
    ],
)
def test_short_arrays_reject_the_message_and_nothing_else(
    law, names, position, velocity, effort, match
):
    serve(law, T)
    output = law.process(1.0, JOINTS[:names], np.ones(position), np.ones(velocity), [0.0] * effort)
    assert output.effort is None
    assert output.outcome == feedforward.ARRAY_LENGTH
    assert match in output.reason
    assert law.counts[feedforward.ARRAY_LENGTH] == 1
    q = motion(1.0)[0]
    assert law.process(1.0, list(JOINTS), q).outcome == estimators.OK


def test_missing_joints_are_named_with_the_seen_ones(law):
    output = law.process(0.0, ['A1', 'A2', 'A3', 'A4'], np.zeros(4))
    assert output.outcome == feedforward.MISSING_JOINTS
    assert output.reason == 'joint state lacks A5, A6, A7; it has A1, A2, A3, A4'
    assert 'no names' in law.process(0.0, [], []).reason


@pytest.mark.parametrize('prefix', ['left_', 'arm_arm_', 'lbr_'])
def test_prefix_is_suggested_and_works(law, prefix):
    names = [prefix + n for n in JOINTS]
    output = law.process(0.0, names, np.zeros(7))
    assert output.outcome == feedforward.MISSING_JOINTS
    assert f'joint_prefix {prefix!r}' in output.reason
    prefixed = FeedForward(WeightedSum(), joint_prefix=prefix)
    assert prefixed.joints == names
    assert prefixed.process(0.0, names, np.zeros(7)).outcome == estimators.STARTING
    assert "joint_prefix ''" in prefixed.process(0.1, list(JOINTS), np.zeros(7)).reason


def test_a_joint_given_twice_is_refused(law):
    output = law.process(0.0, [*JOINTS, 'A3'], np.zeros(8))
    assert output.outcome == feedforward.REPEATED_JOINTS
    assert 'A3' in output.reason


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_non_finite_input_is_rejected_and_leaves_no_trace(bad):
    clean = serve(FeedForward(WeightedSum(), velocity_source='message'), T)
    law = FeedForward(WeightedSum(), velocity_source='message')
    for k, stamp in enumerate(T):
        q, qd = motion(stamp)
        spoilt = q.copy()
        spoilt[2] = bad
        output = law.process(stamp, list(JOINTS), spoilt, qd)
        assert output.outcome == feedforward.NOT_FINITE_POSITION
        assert 'A3' in output.reason
        spoilt = qd.copy()
        spoilt[4] = bad
        output = law.process(stamp, list(JOINTS), q, spoilt)
        assert output.outcome == feedforward.NOT_FINITE_VELOCITY
        output = law.process(stamp, list(JOINTS), q, qd)
        if k:
            np.testing.assert_array_equal(output.effort, clean[k])
    assert law.process(bad, list(JOINTS), q, qd).outcome == feedforward.NOT_FINITE_STAMP


@pytest.mark.parametrize('bad', [np.nan, np.inf])
def test_non_finite_output_never_leaves_and_service_goes_on(law, bad):
    serve(law, T)
    good = law.predictor.predict
    law.predictor.predict = lambda *state: good(*state) * bad
    output = law.process(1.0, list(JOINTS), motion(1.0)[0])
    assert output.effort is None
    assert output.outcome == feedforward.NOT_FINITE_OUTPUT
    assert law.predictor.resets == 1
    law.predictor.predict = good
    efforts = serve(law, T + 1.004)
    assert np.isfinite(efforts[1:]).all()


def test_positions_beyond_reason_do_not_poison_the_state(law):
    serve(law, T)
    assert law.process(1.0, list(JOINTS), np.full(7, 1.7e308)).effort is None
    law.process(1.004, list(JOINTS), np.full(7, -1.7e308))
    efforts = serve(law, T + 1.008)
    assert np.isfinite(efforts[2:]).all()
    assert np.abs(efforts[2:]).max() < 10


def test_a_failing_prediction_is_a_reason_and_not_an_exception(law):
    serve(law, T)

    def fail(*state):
        raise ValueError('singular')

    law.predictor.predict = fail
    output = law.process(1.0, list(JOINTS), motion(1.0)[0])
    assert output.outcome == feedforward.PREDICTION_FAILED
    assert output.reason == 'ValueError: singular'


def test_repeated_sample_repeats_the_effort(law):
    serve(law, T)
    q = motion(T[-1])[0]
    before = law.process(1.0, list(JOINTS), q + 0.01).effort.copy()
    output = law.process(1.004, list(JOINTS), q + 0.01)
    assert output.outcome == estimators.REPEATED_SAMPLE
    np.testing.assert_array_equal(output.effort, before)


def test_clock_jump_resets_the_model_state_too(law):
    serve(law, T)
    output = law.process(-5.0, list(JOINTS), motion(0.0)[0])
    assert output.outcome == estimators.CLOCK_JUMP
    assert 'back' in output.reason
    assert law.predictor.resets == 1
    efforts = serve(law, T - 4.996)
    assert np.isfinite(efforts).all()


def test_continuous_joints_of_the_model_are_unwrapped():
    law = FeedForward(WeightedSum(kinds=('continuous',) * 7))
    first = law.process(0.0, list(JOINTS), np.full(7, np.pi - 1e-4))
    second = law.process(0.001, list(JOINTS), np.full(7, -np.pi + 1e-4))
    assert first.effort is None
    np.testing.assert_allclose(second.effort, WEIGHT * (np.pi + 1e-4) + 0.1 * 0.2, rtol=1e-6)


def test_estimator_must_fit_the_model():
    with pytest.raises(ValueError, match='estimator is for 6 joints, the model has 7'):
        FeedForward(WeightedSum(), FilteredDifference(6))


class Remembering(WeightedSum):
    """A predictor with memory that notes how it was started."""

    has_memory = True

    def __init__(self):
        super().__init__()
        self.starts = []

    def start(self, q, effort):
        self.starts.append((q.copy(), effort.copy()))


HELD = 10.0 * WEIGHT


def stand(law, t, speed=0.0, effort=HELD, names=JOINTS):
    place = [JOINTS.index(n) for n in names]
    for stamp in t:
        law.process(
            stamp, list(names), WEIGHT[place] + speed * stamp, [], [*np.array(effort)[place]]
        )


def test_memory_is_set_once_from_the_effort_of_a_robot_at_rest(rng):
    law = FeedForward(Remembering())
    assert law.memory_start == feedforward.UNBENT
    stand(law, T, names=rng.permutation(JOINTS).tolist())
    ((q, effort),) = law.predictor.starts
    np.testing.assert_array_equal(q, WEIGHT)
    np.testing.assert_array_equal(effort, HELD)
    assert law.memory_start == feedforward.FROM_EFFORT


@pytest.mark.parametrize(
    ('speed', 'effort'),
    [(0.1, HELD), (0.0, np.full(7, np.nan)), (0.0, [*HELD[:6], np.inf]), (0.0, np.zeros(7))],
)
def test_memory_starts_unbent_while_moving_or_without_a_measured_effort(speed, effort):
    law = FeedForward(Remembering())
    stand(law, T, speed, effort)
    assert not law.predictor.starts
    assert law.memory_start == feedforward.UNBENT


def test_memory_is_not_set_long_after_the_start():
    law = FeedForward(Remembering())
    stand(law, T[:125], effort=np.full(7, np.nan))
    stand(law, T[125:])
    assert not law.predictor.starts


def test_memory_starts_anew_after_a_gap_and_says_so():
    law = FeedForward(Remembering())
    stand(law, T)
    stand(law, T + 10.0)
    assert len(law.predictor.starts) == 2
    assert law.resets == 1
    assert law.memory_start == feedforward.FROM_EFFORT
    stand(law, T + 20.0, speed=0.1)
    assert law.resets == 2
    assert law.memory_start == feedforward.UNBENT


@pytest.mark.parametrize('after_s', [0.1, 10.0], ids=['run on', 'gap'])
def test_effort_after_a_gap_is_that_of_a_node_just_started(tmp_path, after_s):
    """With real elements; without a gap they are bent by the motion before, which shows."""
    folder, model = models.save_case(tmp_path / 'm', 'memory')
    names = [f'j{i}' for i in range(model.n)]

    def efforts(law, t):
        rows = []
        for s in t:
            q = 0.02 * np.sin(3 * s + np.arange(model.n))
            output = law.process(s, names, q, [], [])
            rows.append(None if output.effort is None else output.effort.copy())
        return rows

    law = FeedForward(NumpyPredictor(folder))
    efforts(law, T)
    later = T[-1] + after_s + T[:5]
    found = efforts(law, later)[2:]
    fresh = efforts(FeedForward(NumpyPredictor(folder)), later)[2:]
    is_equal = np.abs(np.subtract(found, fresh)).max() < 1e-9 * np.abs(fresh).max()
    assert is_equal == (after_s > 1)
    assert law.resets == is_equal


def test_model_without_memory_is_never_started(law):
    stand(law, T)
    assert law.memory_start == feedforward.NO_MEMORY


NOISE = np.array([0.0, 1e-6, 1e-5, 1e-4, 1e-6, 1e-5, 1e-4])


def noisy_arm():
    predictor = WeightedSum()
    predictor.description.position_noise = tuple(NOISE.tolist())
    return predictor


def test_dead_band_is_in_deviations_of_the_noise_in_training():
    description = noisy_arm().description
    np.testing.assert_allclose(feedforward.dead_band(description), feedforward.DEAD_BAND * NOISE)
    np.testing.assert_allclose(feedforward.dead_band(description, 2.0), 2.0 * NOISE)
    assert not feedforward.dead_band(description, 0.0).any()
    assert feedforward.dead_band(WeightedSum().description) is None


def test_noise_of_the_training_data_does_not_move_a_robot_at_rest(rng):
    noise = np.clip(NOISE * rng.normal(size=(len(T), 7)), -1.7 * NOISE, 1.7 * NOISE)
    moved = []
    for predictor in (noisy_arm(), WeightedSum()):
        law = FeedForward(predictor)
        efforts = []
        for stamp, x in zip(T, noise, strict=True):
            output = law.process(stamp, list(JOINTS), WEIGHT + x)
            efforts.append(np.zeros(7) if output.effort is None else output.effort.copy())
        moved.append(np.ptp(efforts[1:], axis=0))
    assert moved[0].max() == pytest.approx(0, abs=1e-9)
    assert (moved[1][NOISE > 0] > NOISE[NOISE > 0]).all()


def test_memory_is_left_unbent_where_it_is_asked_for():
    law = FeedForward(Remembering(), memory_source='unbent')
    stand(law, T)
    assert not law.predictor.starts
    assert law.memory_start == feedforward.UNBENT
    with pytest.raises(ValueError, match="memory_source is 'x', must be one of"):
        FeedForward(Remembering(), memory_source='x')


@pytest.mark.parametrize('speed', [0.003, 0.03])
def test_slow_motion_within_the_play_is_not_taken_as_rest(speed):
    predictor = Remembering()
    estimator = FilteredDifference(7, dead_band=np.full(7, 2e-5))
    law = FeedForward(predictor, estimator)
    # From sample to sample it moves by less than the play.
    stand(law, np.arange(0, 0.4, 0.0005), speed)
    assert not predictor.starts
    assert law.memory_start == feedforward.UNBENT
