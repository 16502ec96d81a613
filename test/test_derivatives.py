from dlnn_ros.data.derivatives import Derivatives, differentiate, METHODS
from dlnn_ros.data.trajectory import Recording
import numpy as np
import pytest

ALL = [m for m in METHODS if m != 'auto']


def signal(t, hz=0.7):
    w = 2 * np.pi * hz
    q = np.stack([np.sin(w * t) + 0.3 * t, np.cos(0.5 * w * t) + 0.1 * t**2], axis=1)
    qd = np.stack([w * np.cos(w * t) + 0.3, -0.5 * w * np.sin(0.5 * w * t) + 0.2 * t], axis=1)
    qdd = np.stack([-(w**2) * np.sin(w * t), -((0.5 * w) ** 2) * np.cos(0.5 * w * t) + 0.2], 1)
    return q, qd, qdd


def record(t, q, **more):
    return Recording(t, q, np.zeros_like(q), **more)


def inner_error(trajectory, qd, qdd, margin_s=1.0):
    t = trajectory.t
    inner = (t > t[0] + margin_s) & (t < t[-1] - margin_s)
    return (
        np.abs(trajectory.qd - qd)[inner].max(),
        np.abs(trajectory.qdd - qdd)[inner].max(),
    )


def wandering(rng, n, low, high):
    return np.cumsum(rng.uniform(low, high, n))


@pytest.mark.parametrize('method', ALL)
@pytest.mark.parametrize('is_regular', [True, False])
def test_derivatives_of_a_smooth_motion(method, is_regular, rng):
    t = np.arange(2000) * 0.005 if is_regular else wandering(rng, 2000, 0.003, 0.007)
    q, qd, qdd = signal(t)
    trajectory = differentiate(record(t, q), Derivatives(method))
    error_d, error_dd = inner_error(trajectory, qd, qdd)
    # Central differences on wandering stamps are the worst: first order in qdd, dt = 4 ms.
    assert error_d < 2e-3
    assert error_dd < (0.15 if method == 'central' else 2e-2)
    np.testing.assert_allclose(trajectory.q, q, atol=2e-3)
    assert np.abs(trajectory.qd + qd).max() > 1  # the sign matters to the check


@pytest.mark.parametrize(
    ('method', 'order_d', 'order_dd'),
    [('central', 2, 2), ('savgol', 4, 2), ('spline', 4, 2)],
)
def test_order_of_convergence(method, order_d, order_dd):
    periods = np.array([0.04, 0.02, 0.01])
    errors = []
    for dt in periods:
        t = np.arange(0, 10, dt)
        q, qd, qdd = signal(t)
        errors.append(inner_error(differentiate(record(t, q), Derivatives(method)), qd, qdd))
    slopes = np.polyfit(np.log(periods), np.log(errors), 1)[0]
    # Asymptotic orders; 0.3 is the distance from the asymptote at these periods.
    np.testing.assert_allclose(slopes, [order_d, order_dd], atol=0.3)


def test_spline_of_degree_five_converges_faster():
    t = np.arange(0, 10, 0.04)
    q, qd, qdd = signal(t)
    _, third = inner_error(differentiate(record(t, q), Derivatives('spline')), qd, qdd)
    _, fifth = inner_error(differentiate(record(t, q), Derivatives('spline', order=5)), qd, qdd)
    assert fifth < 0.1 * third


def test_spectral_is_more_accurate_than_central_away_from_the_ends():
    t = np.arange(0, 10, 0.02)
    q, qd, qdd = signal(t)
    spectral = inner_error(differentiate(record(t, q), Derivatives('spectral')), qd, qdd)
    central = inner_error(differentiate(record(t, q), Derivatives('central')), qd, qdd)
    assert spectral[0] < 0.1 * central[0]
    assert spectral[1] < 0.1 * central[1]


@pytest.mark.parametrize('method', ['lowpass', 'spectral'])
def test_cutoff_takes_out_what_is_above_it_and_keeps_what_is_below(method):
    t = np.arange(0, 10, 0.004)
    slow, qd, _ = signal(t, 0.5)
    fast = 0.01 * np.sin(2 * np.pi * 40 * t)[:, None]
    trajectory = differentiate(record(t, slow + fast), Derivatives(method, cutoff_hz=10))
    error_d, _ = inner_error(trajectory, qd, qd)
    assert error_d < 1e-2
    unfiltered = differentiate(record(t, slow + fast), Derivatives('central'))
    assert inner_error(unfiltered, qd, qd)[0] > 1


@pytest.mark.parametrize('method', ALL)
def test_filters_have_no_delay(method, rng):
    t = np.arange(0, 10, 0.004)
    q, qd, _ = signal(t, 1.0)
    trajectory = differentiate(record(t, q + 1e-5 * rng.normal(size=q.shape)), Derivatives(method))
    inner = slice(250, -250)
    x = trajectory.qd[inner, 0] - trajectory.qd[inner, 0].mean()
    lags = range(-5, 6)
    match = [np.dot(x, np.roll(qd[:, 0], k)[inner]) for k in lags]
    assert lags[int(np.argmax(match))] == 0


def test_low_pass_of_a_coarse_encoder_with_wandering_period(rng):
    # Field case D1: 0.01 deg at about 200 Hz, slow sine; the true qdd is at most 0.4 rad/s^2.
    t = wandering(rng, 4000, 0.002, 0.008)
    q = np.sin(2 * np.pi * 0.1 * t)[:, None]
    step = np.radians(0.01)
    coarse = np.round(q / step) * step
    qdd = -((2 * np.pi * 0.1) ** 2) * q
    low = differentiate(record(t, coarse), Derivatives('lowpass', cutoff_hz=3))
    raw = differentiate(record(t, coarse), Derivatives('central'))
    rms = [np.sqrt(np.mean((x.qdd - qdd)[200:-200] ** 2)) for x in (low, raw)]
    assert rms[0] < 0.02
    assert rms[1] > 1


@pytest.mark.parametrize(('rate_hz', 'expected'), [(10, 'spline'), (50, 'spline'), (250, 'low')])
def test_auto_chooses_by_rate(rate_hz, expected):
    t = np.arange(200) / rate_hz
    trajectory = differentiate(record(t, signal(t, 0.2)[0]))
    assert expected in trajectory.method


@pytest.mark.parametrize(
    ('method', 'change', 'text'),
    [
        ('lowpass', {'cutoff_hz': 5.0}, '5 Hz'),
        ('spectral', {'cutoff_hz': 5.0}, '5 Hz'),
        ('savgol', {'window_s': 0.2}, '0.2'),
        ('savgol', {'order': 5}, 'degree 5'),
        ('spline', {'order': 5}, 'degree 5'),
        ('spline', {'use_velocity': True}, 'message velocity'),
    ],
)
def test_every_option_changes_the_result_and_is_told(method, change, text, rng):
    t = np.arange(500) * 0.004
    q = signal(t)[0] + 1e-3 * rng.normal(size=(500, 2))
    recording = record(t, q, velocity=signal(t)[1])
    plain = differentiate(recording, Derivatives(method))
    other = differentiate(recording, Derivatives(method, **change))
    assert np.abs(plain.qdd - other.qdd).max() > 1e-6
    assert text in other.method
    assert text not in plain.method


def test_velocity_of_the_messages_gives_the_better_acceleration_where_position_is_coarse():
    t = np.arange(0, 10, 0.001)
    q, qd, qdd = signal(t)
    coarse = np.round(q, 3)
    recording = record(t, coarse, velocity=qd)
    use = differentiate(recording, Derivatives(use_velocity=True))
    assert inner_error(use, qd, qdd)[1] < 0.02
    assert inner_error(differentiate(recording), qd, qdd)[1] > 0.5


def test_velocity_must_be_there_to_be_used():
    t = np.arange(100) * 0.004
    with pytest.raises(ValueError, match='has no velocity'):
        differentiate(record(t, signal(t)[0], name='r'), Derivatives(use_velocity=True))


@pytest.mark.parametrize('method', ALL)
def test_too_short_recordings_are_refused(method):
    t = np.arange(3) * 0.1
    with pytest.raises(ValueError, match='3 samples are too few'):
        differentiate(record(t, signal(t)[0]), Derivatives(method))


@pytest.mark.parametrize('method', ALL)
@pytest.mark.parametrize('n', range(8, 14))
def test_short_recordings_work(method, n):
    t = np.arange(n) * 0.004
    trajectory = differentiate(record(t, signal(t)[0]), Derivatives(method))
    assert trajectory.qdd.shape == (n, 2)


def test_cutoff_above_half_the_rate_is_refused():
    t = np.arange(100) * 0.1
    with pytest.raises(ValueError, match=r'cut-off 10 Hz .* 10 Hz'):
        differentiate(record(t, signal(t)[0]), Derivatives('lowpass', cutoff_hz=10))


def test_mostly_empty_recordings_are_refused():
    t = np.concatenate([np.arange(50) * 0.001, 100 + np.arange(50) * 0.001])
    with pytest.raises(ValueError, match='cut the recording at its gaps'):
        differentiate(record(t, signal(t)[0]), Derivatives('lowpass'))


@pytest.mark.parametrize(
    ('change', 'match'),
    [
        ({'method': 'magic'}, "'magic' must be one of"),
        ({'cutoff_hz': 0.0}, 'cutoff_hz must be positive'),
        ({'window_s': -1.0}, 'window_s must be positive'),
        ({'order': 1}, 'order must be between'),
        ({'method': 'spline', 'order': 4}, 'must be odd'),
    ],
)
def test_settings_are_checked(change, match):
    with pytest.raises(ValueError, match=match):
        Derivatives(**change)


def test_window_must_hold_the_degree():
    t = np.arange(100) * 0.004
    with pytest.raises(ValueError, match='holds 2 samples'):
        differentiate(record(t, signal(t)[0]), Derivatives('savgol', window_s=0.008))
