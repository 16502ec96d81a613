"""What a recording shows of the torque: its filter, the path between samples, and the views."""

from dataclasses import replace

from dlnn_ros.config import Effort, Robot
from dlnn_ros.data.bags import read_bag, write_bag
from dlnn_ros.data.derivatives import differentiate
from dlnn_ros.data.observation import (
    FINE_HZ,
    FINE_PER_CUTOFF,
    ObservationFilter,
    observed_path,
    Path,
    sample_path,
)
from dlnn_ros.data.trajectory import Dataset, Recording, RecordingSet, Trajectory
from dlnn_ros.learning.evaluate import (
    can_start,
    default_view,
    evaluate,
    evaluate_views,
    merge_scores,
    predict_trajectory,
)
from dlnn_ros.learning.observation import context_at_samples, look
import numpy as np
import pytest
from scipy.signal import butter, sosfiltfilt
import torch
import yaml

import models

LOW_PASS = ObservationFilter(4.0)
JOINTS = ('a', 'b', 'c')
ROBOT = Robot('three', JOINTS, ('revolute',) * 3, Effort('motor', (100.0, -50.0, 3.0)))
SHARP = [name for name in models.ALL_CASES if name not in ('mlp', 'linear', 'lnn')]
MISSING = (20, 40, 41)  # samples without a position


def stamps(samples=80, period=0.1):
    """Return the times of samples of which some are missing, as in the shifted KUKA file."""
    return period * np.array([k for k in range(samples) if k not in MISSING])


def trajectory(rng, t=None, n=3, size=0.01, **recording):
    """Return sines that stand still at the start, and turn; efforts at random."""
    t = stamps() if t is None else t
    moving = np.maximum(t - t[0] - 1.0, 0.0)[:, None]
    w = rng.uniform(1, 3, n)
    q, qd, qdd = (
        size * w**k * f * (moving > 0) + (k == 0) * rng.normal(size=n)
        for k, f in enumerate((1 - np.cos(w * moving), np.sin(w * moving), np.cos(w * moving)))
    )
    recording.setdefault('observation_filter', LOW_PASS)
    return Trajectory(Recording(t, q, rng.normal(size=q.shape), **recording), q, qd, qdd, 'exact')


def make(name, n=3):
    model = models.make(name)
    assert model.n == n
    return model


# ---- the filter


@pytest.mark.parametrize(('cutoff_hz', 'order'), [(4.0, 2), (1.0, 1), (4.0, 4), (10.0, 8)])
@pytest.mark.parametrize('rate_hz', [50.0, 137.0])
def test_kernel_is_scipys_zero_phase_filter(rng, cutoff_hz, order, rate_hz):
    kernel = ObservationFilter(cutoff_hz, order).kernel(rate_hz)
    x = rng.normal(size=4000)
    sections = butter(order, cutoff_hz, fs=rate_hz, output='sos')
    inside = slice(1000, -1000)  # both ends are far away
    expected = sosfiltfilt(sections, x)[inside]
    found = np.convolve(x, kernel, 'same')[inside]
    # The kernel is cut where it has fallen to 1e-5 of its peak.
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize('order', [1, 2, 5, 8])
def test_kernel_is_symmetric_and_keeps_constants(order):
    kernel = ObservationFilter(3.0, order).kernel(50.0)
    assert len(kernel) % 2 == 1
    np.testing.assert_allclose(kernel, kernel[::-1], atol=1e-15)
    assert kernel.sum() == pytest.approx(1, rel=1e-12)
    assert kernel.argmax() == len(kernel) // 2
    assert abs(kernel[0]) < 1e-3 * kernel.max()


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        ((0.0,), 'cutoff_hz is 0.0, must be finite and > 0'),
        ((1e-3,), 'cutoff_hz is 0.001, must be at least 0.1'),
        ((float('inf'),), 'cutoff_hz is inf, must be finite and > 0'),
        ((float('nan'),), 'cutoff_hz is nan, must be finite and > 0'),
        ((4.0, 0), 'order is 0, must be 1 to 8'),
        ((4.0, 9), 'order is 9, must be 1 to 8'),
    ],
)
def test_filter_out_of_range_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        ObservationFilter(*values)


def test_filter_is_described():
    text = ObservationFilter(4.0, 3).describe()
    assert text == 'zero-phase Butterworth low-pass of order 2 x 3 at 4 Hz'


# ---- the path


def irregular(rng):
    return stamps() + np.append(0, rng.uniform(-0.02, 0.02, len(stamps()) - 1))


@pytest.mark.parametrize('times', ['even', 'missing', 'irregular'])
@pytest.mark.parametrize('offset', [0.0, 1e3])
@pytest.mark.parametrize('cutoff_hz', [1.0, 4.0, 9.0])
def test_path_is_the_cubic_through_the_samples(rng, times, offset, cutoff_hz):
    t = {'even': 0.1 * np.arange(80), 'missing': stamps(), 'irregular': irregular(rng)}[times]
    a = rng.normal(size=(4, 3)) / 8.0 ** np.arange(4)[:, None]
    q = sum(a[k] * t[:, None] ** k for k in range(4))
    qd = sum(k * a[k] * t[:, None] ** (k - 1) for k in range(1, 4))
    recording = Recording(offset + t, q, q, observation_filter=ObservationFilter(cutoff_hz))
    path = observed_path(Trajectory(recording, q, qd, qd))
    step = path.dt[1]
    assert step <= 1 / max(FINE_HZ, FINE_PER_CUTOFF * cutoff_hz) * (1 + 1e-6)
    assert path.dt[0] == 0
    np.testing.assert_array_equal(path.dt[1:], step)
    grid = np.minimum(path.dt.cumsum(), t[-1])[:, None]
    limits = {'rtol': 1e-9, 'atol': 1e-9}  # stamps of 1e3 s are known to 1e-13 s
    np.testing.assert_allclose(path.q, sum(a[k] * grid**k for k in range(4)), **limits)
    slope = sum(k * a[k] * grid ** (k - 1) for k in range(1, 4))
    np.testing.assert_allclose(path.qd, slope, **limits)
    assert ((path.share >= 0) & (path.share < 1)).all()
    assert (np.diff(path.point) > 0).all()
    np.testing.assert_allclose(step * (path.point + path.share)[:-1], t[:-1], **limits)
    assert path.point[-1] == len(path.q) - 1
    assert path.share[-1] == 0
    if times != 'irregular':
        assert not path.share.any()
        np.testing.assert_allclose(path.q[path.point], q, **limits)
        np.testing.assert_allclose(path.qd[path.point], qd, **limits)
    np.testing.assert_array_equal(path.kernel, ObservationFilter(cutoff_hz).kernel(1 / step))


def test_path_without_a_filter_is_the_samples(rng):
    made = trajectory(rng, observation_filter=None)
    for path in (sample_path(made), observed_path(made)):
        np.testing.assert_array_equal(path.q, made.q)
        np.testing.assert_array_equal(path.qd, made.qd)
        np.testing.assert_allclose(path.dt.cumsum(), made.t - made.t[0], atol=1e-12)
        assert path.dt[0] == 0
        np.testing.assert_array_equal(path.point, np.arange(len(made.t)))
        assert not path.share.any()
        assert path.kernel is None


# ---- the look


def test_look_keeps_what_is_constant(rng):
    path = observed_path(trajectory(rng, irregular(rng)))
    values = torch.ones(len(path.q), 3, 4, dtype=torch.float64) * torch.arange(4.0)
    seen = look(values, path)
    assert seen.shape == (len(path.point), 3, 4)
    np.testing.assert_allclose(seen, values[: len(seen)], rtol=1e-12)


def test_look_is_scipys_filter_at_the_samples(rng):
    path = observed_path(trajectory(rng, 0.1 * np.arange(300)))
    values = rng.normal(size=(len(path.q), 2, 3))
    sections = butter(2, 4.0, fs=1 / path.dt[1], output='sos')
    expected = sosfiltfilt(sections, values, axis=0)[path.point]
    seen = look(torch.from_numpy(values), path).numpy()
    inside = slice(50, -50)
    np.testing.assert_allclose(seen[inside], expected[inside], atol=2e-4 * np.abs(expected).max())
    plain = look(torch.from_numpy(values), path._replace(kernel=None)).numpy()
    np.testing.assert_array_equal(plain, values[path.point])


@pytest.mark.parametrize('has_kernel', [False, True])
def test_look_is_exact_on_straight_lines(rng, has_kernel):
    t = irregular(rng)
    path = observed_path(trajectory(rng, t))
    inside = slice(10, -10) if has_kernel else slice(0, -1)  # the ends are held, not drawn on
    if not has_kernel:
        path = path._replace(kernel=None)
    line = torch.from_numpy(path.dt.cumsum())[:, None, None] * torch.arange(1.0, 4.0)
    seen = look(line.expand(-1, 2, -1), path).numpy()
    expected = t[:, None, None] * np.arange(1, 4)
    np.testing.assert_allclose(
        seen[inside], np.broadcast_to(expected, seen.shape)[inside], rtol=1e-9
    )


# ---- what a sample knows


@pytest.mark.parametrize('name', [n for n in SHARP if len(models.ALL_CASES[n][2]) == 3])
@torch.no_grad()
def test_served_context_does_not_know_the_future(rng, name):
    made, model, k = trajectory(rng), make(name), 30
    later = np.arange(len(made.t)) > k
    other = trajectory(rng, size=0.05)
    q, qd = (np.where(later[:, None], b, a) for a, b in ((made.q, other.q), (made.qd, other.qd)))
    changed = Trajectory(made.recording, q, qd, made.qdd)
    served = [context_at_samples(model, sample_path(x)) for x in (made, changed)]
    # The last samples are cut off too: the blocks of the recurrence are others then.
    short = context_at_samples(
        model,
        Path(
            made.q[: k + 1],
            made.qd[: k + 1],
            sample_path(made).dt[: k + 1],
            np.arange(k + 1),
            np.zeros(k + 1),
            None,
        ),
    )
    assert torch.equal(served[0][: k + 1], served[1][: k + 1])
    np.testing.assert_allclose(short, served[0][: k + 1], rtol=1e-12, atol=1e-14)
    assert not torch.equal(served[0][k + 1 :], served[1][k + 1 :])
    recorded = [context_at_samples(model, observed_path(x)) for x in (made, changed)]
    assert not torch.equal(recorded[0][: k + 1], recorded[1][: k + 1])
    # Ten samples before nothing is left of it.
    np.testing.assert_allclose(recorded[0][: k - 10], recorded[1][: k - 10], atol=1e-4)


def test_recorded_view_needs_a_filter(rng):
    made, model = trajectory(rng, observation_filter=None), make('memory')
    a, b = (predict_trajectory(model, made, ROBOT.gear_ratio, view) for view in VIEWS)
    np.testing.assert_array_equal(a.effort, b.effort)


VIEWS = ('served', 'recorded')


def dataset(rng, count=2, **recording):
    return Dataset(ROBOT, tuple(trajectory(rng, **recording) for _ in range(count)), 'made')


@pytest.mark.parametrize('name', ['dlnn', 'dlnn_viscous', 'lnn', 'linear'])
@torch.no_grad()
def test_served_effort_without_memory_is_the_plain_torque(rng, name):
    made, model = trajectory(rng), make(name)
    found = predict_trajectory(model, made, ROBOT.gear_ratio, 'served', is_started=True)
    tau = model.inverse_dynamics(*(torch.tensor(a) for a in (made.q, made.qd, made.qdd)))
    found_tau = found.effort * ROBOT.gear_ratio
    np.testing.assert_allclose(found_tau, tau, rtol=1e-9, atol=1e-10 * float(tau.abs().max()))
    assert found.surplus is None


@pytest.mark.parametrize('name', ['memory', 'memory_weights_of_q', 'linear_memory'])
@torch.no_grad()
def test_served_effort_with_memory_is_the_sequence(rng, name):
    made, model = trajectory(rng), make(name)
    arrays = [torch.tensor(a) for a in (made.q, made.qd, made.qdd)]
    dt = torch.tensor(np.diff(made.t, prepend=made.t[0]))
    for is_started in (False, True):
        found = predict_trajectory(model, made, ROBOT.gear_ratio, 'served', is_started)
        measured = torch.tensor(made.tau[0] * ROBOT.gear_ratio) if is_started else None
        state = model.initial_state(arrays[0][0], measured)
        tau = model.sequence(state, *arrays, dt).tau
        np.testing.assert_allclose(found.effort * ROBOT.gear_ratio, tau, rtol=1e-9, atol=1e-9)
        assert found.surplus.min() >= -1e-12 * float(tau.abs().max())
        assert found.surplus[-1] > 0
        assert found.dissipated.min() >= 0


@pytest.mark.parametrize('name', ['dlnn', 'memory', 'memory_weights_of_q', 'linear_memory'])
def test_recorded_differs_from_served_by_friction_only(rng, name):
    made, model = trajectory(rng), make(name)
    served, recorded = (predict_trajectory(model, made, ROBOT.gear_ratio, v) for v in VIEWS)
    assert served.components.keys() == recorded.components.keys()
    for part in ('inertial', 'coriolis', 'gravity'):
        np.testing.assert_array_equal(served.components[part], recorded.components[part])
    sharp = {'dissipation', 'memory'} & served.components.keys()
    assert sharp == ({'dissipation'} if name == 'dlnn' else {'dissipation', 'memory'})
    for part in sharp:
        difference = np.abs(served.components[part] - recorded.components[part]).max()
        assert difference > 1e-3 * np.abs(served.components[part]).max()
    for prediction in (served, recorded):
        total = sum(prediction.components.values())
        np.testing.assert_allclose(prediction.effort, total, rtol=1e-9, atol=1e-9)
    assert recorded.dissipated is None
    assert recorded.surplus is None


@pytest.mark.parametrize('view', VIEWS)
def test_started_reads_the_first_effort_only_at_rest_and_where_it_is_valid(rng, view):
    model, made = make('memory'), trajectory(rng)
    rest = torch.tensor(made.q[0])
    still = torch.zeros_like(rest)
    unbent = model.step(model.initial_state(rest), rest, still, still, 0.0).tau.detach().numpy()
    tau = made.tau.copy()
    tau[0] = (unbent + 0.1) / ROBOT.gear_ratio

    def effort(moving=0.0, is_valid=True, is_started=True):
        valid = np.ones(len(made.t), bool)
        valid[0] = is_valid
        measured = tau if is_valid else np.where(valid[:, None], tau, np.nan)
        qd = made.qd.copy()
        qd[0] += moving
        recording = replace(made.recording, tau=measured, valid=valid)
        x = Trajectory(recording, made.q, qd, made.qdd)
        assert can_start(x) == (is_valid and moving == 0)
        return predict_trajectory(model, x, ROBOT.gear_ratio, view, is_started).effort

    # The filter also sees how they relax in the next tenths of a second.
    limit = 1e-9 if view == 'served' else 1e-4
    np.testing.assert_allclose(effort()[0], tau[0], rtol=limit)
    np.testing.assert_allclose(effort(is_started=False)[0], unbent / ROBOT.gear_ratio, rtol=1e-9)
    for options in ({'moving': 0.01}, {'is_valid': False}):
        np.testing.assert_array_equal(effort(**options), effort(**options, is_started=False))


STARTED = ('recorded', 'served', 'recorded_started', 'served_started')


@pytest.mark.parametrize(
    ('name', 'recording', 'expected'),
    [
        ('memory', {}, STARTED),
        ('linear_memory', {'observation_filter': None}, ('served', 'served_started')),
        ('dlnn', {}, ('recorded', 'served')),
        ('dlnn', {'observation_filter': None}, ('served',)),
        ('lnn', {}, ('served',)),
        ('linear', {}, ('served',)),
        ('mlp_window', {}, ('served',)),
    ],
)
def test_views_that_differ_are_scored_and_merged(rng, name, recording, expected):
    model, data = make(name), dataset(rng, **recording)
    views = evaluate_views(model, data)
    assert tuple(views) == expected
    assert default_view(model, data) == expected[0]
    scores = merge_scores(views)
    assert scores['view'] == expected[0]
    first = evaluate(model, data).scores
    assert {k: scores[k] for k in first} == first
    has_friction = name not in ('lnn', 'linear', 'mlp_window')
    assert ('memory_surplus_min' in scores) == ('memory' in name)
    assert scores.get('dissipated_power_min', 0.0) >= 0
    assert ('dissipated_power_min' in scores) or not has_friction
    keys = {'r2', 'r2_mean', 'nmse_mean', 'rmse', 'r2_mean_moving', 'r2_mean_rest'}
    for other in expected[1:]:
        assert scores[other].keys() == keys
        assert scores[other]['r2_mean'] == views[other].scores['r2_mean']
    nested = {k for k, v in scores.items() if isinstance(v, dict) and 'r2_mean' in v}
    assert nested == set(expected[1:])


def test_a_filter_of_one_recording_is_enough_for_the_recorded_view(rng):
    plain, low_passed = trajectory(rng, observation_filter=None), trajectory(rng)
    data = Dataset(ROBOT, (plain, low_passed))
    model = make('memory')
    served, recorded = (evaluate(model, data, view).predictions for view in VIEWS)
    np.testing.assert_array_equal(served[0].effort, recorded[0].effort)
    assert not np.array_equal(served[1].effort, recorded[1].effort)


# ---- bags


def low_passed_set(rng):
    t = 0.01 * np.arange(50)
    recordings = tuple(
        Recording(
            t,
            rng.normal(size=(50, 3)),
            rng.normal(size=(50, 3)),
            name=f'r{k}',
            observation_filter=wanted,
        )
        for k, wanted in enumerate((LOW_PASS, None, ObservationFilter(2.5, 4)))
    )
    return RecordingSet(ROBOT, recordings)


def test_bag_keeps_the_filter(rng, tmp_path):
    made = low_passed_set(rng)
    write_bag(tmp_path / 'bag', made)
    found = read_bag(tmp_path / 'bag')
    filters = [r.observation_filter for r in found.recordings]
    assert filters == [r.observation_filter for r in made.recordings]
    kept = differentiate(found.recordings[0])
    assert kept.recording.observation_filter == LOW_PASS


@pytest.mark.parametrize(
    ('damage', 'message'),
    [
        ({'cutoff_hz': -4.0, 'order': 2}, 'cutoff_hz is -4.0, must be finite and > 0'),
        ({'cutoff_hz': 4.0, 'ordre': 2}, "unknown key 'ordre'; did you mean 'order'"),
        ({'order': 2}, "key 'cutoff_hz' is missing"),
        ({'cutoff_hz': 'four'}, "cutoff_hz must be a number, got 'four'"),
        (4.0, 'expected a mapping with keys, got 4.0'),
    ],
)
def test_damaged_filter_in_a_bag_is_named(rng, tmp_path, damage, message):
    path = tmp_path / 'bag'
    write_bag(path, low_passed_set(rng), storage='sqlite3')
    metadata = path / 'metadata.yaml'
    content = yaml.safe_load(metadata.read_text())
    custom = content['rosbag2_bagfile_information']['custom_data']
    notes = yaml.safe_load(custom['dlnn_recordings'])
    notes[0]['observation_filter'] = damage
    custom['dlnn_recordings'] = yaml.safe_dump(notes)
    metadata.write_text(yaml.safe_dump(content))
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        read_bag(path)
    assert str(caught.value).startswith(f'{path}: dlnn_recordings')
    assert '\n' not in str(caught.value)
