from dlnn_ros.runtime.latency import LatencyRecorder, RateMeter
import numpy as np
import pytest


def test_percentiles_are_those_of_the_samples(rng):
    seconds = rng.uniform(1e-5, 1e-3, 1000)
    recorder = LatencyRecorder(1000)
    for value in seconds:
        recorder.add(value)
    summary = recorder.summary()
    assert summary.samples == 1000
    assert summary.p50_us == pytest.approx(1e6 * np.median(seconds))
    assert summary.p99_us == pytest.approx(1e6 * np.percentile(seconds, 99))
    assert summary.max_us == pytest.approx(1e6 * seconds.max())


def test_only_the_latest_samples_count():
    recorder = LatencyRecorder(10)
    for value in [1.0] * 10 + [1e-6] * 10:
        recorder.add(value)
    assert recorder.summary().max_us == pytest.approx(1.0)
    assert recorder.summary().samples == 20


def test_no_sample_is_nan_and_not_zero():
    recorder = LatencyRecorder()
    recorder.add(1.0)
    recorder.clear()
    assert recorder.summary().samples == 0
    assert np.isnan(recorder.summary().p50_us)


def test_rate_is_per_reading_and_survives_a_restart_of_the_count():
    meter = RateMeter()
    assert meter.update(100, 10.0) == 0.0
    assert meter.update(350, 11.0) == pytest.approx(250.0)
    assert meter.update(400, 13.0) == pytest.approx(25.0)
    assert meter.update(5, 14.0) == 0.0
    assert meter.update(5, 14.0) == 0.0
