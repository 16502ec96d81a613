import numpy as np
import pytest

pytest.importorskip('rclpy', reason='ROS 2 is not here')

from builtin_interfaces.msg import Time
from dlnn_ros.nodes.messages import (
    diagnostic_array,
    EffortMessage,
    is_zero,
    StampReader,
)
from dlnn_ros.nodes.params import Setting
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import JointState


def test_stamps_keep_their_resolution():
    reader = StampReader()
    first = reader.seconds(1_700_000_000, 0)
    stamps = [reader.seconds(1_700_000_000 + k // 1000, k % 1000 * 1_000_000) for k in range(3000)]
    # Seconds since 1970 in a float are off by up to 2.4e-7.
    np.testing.assert_allclose(np.diff(stamps), 1e-3, atol=1e-12)
    assert first == 0.0
    assert reader.seconds(1_699_999_999, 500_000_000) == -0.5


def test_effort_message_is_filled_in_place_and_goes_over_the_wire(rng):
    message = EffortMessage(['A2', 'A1'])
    for k in range(3):
        effort = rng.standard_normal(2)
        filled = message.fill(Time(sec=k, nanosec=5), effort)
        received = deserialize_message(serialize_message(filled), JointState)
        assert received.name == ['A2', 'A1']
        np.testing.assert_array_equal(received.effort, effort)
        assert (received.header.stamp.sec, received.header.stamp.nanosec) == (k, 5)
    assert filled is message.message


def test_zero_stamp_is_no_time():
    assert is_zero(Time())
    assert not is_zero(Time(nanosec=1))


def test_diagnostics_are_strings():
    array = diagnostic_array(Time(), 'node: part', 'arm', b'\x01', 'all', {'a': 1.23456, 'n': 3})
    status = array.status[0]
    assert [(v.key, v.value) for v in status.values] == [('a', '1.235'), ('n', '3')]
    assert status.level == b'\x01'


@pytest.mark.parametrize(('given', 'expected'), [(20, 20.0), (0.5, 0.5)])
def test_integers_are_numbers(given, expected):
    value = Setting('cutoff', 1.0, '', lower=0.0, upper=30.0).convert(given)
    assert value == expected
    assert type(value) is float


@pytest.mark.parametrize(
    ('default', 'given', 'match'),
    [
        (1.0, '500', r"parameter p must be a number, got '500' \(a string\)"),
        (1.0, True, 'must be a number, got True'),
        (1.0, None, 'must be a number, got None'),
        (1.0, float('nan'), 'must be finite'),
        (1.0, 31, r'must be in \[0\.0, 30\.0\], got 31'),
        (1, 1.5, 'must be an integer, got 1.5'),
        (False, 'False', "must be true or false, got 'False'"),
        ('a', ['A1'], r"must be a string, got \['A1'\]"),
    ],
)
def test_wrong_values_are_named_with_what_was_expected(default, given, match):
    bounds = {'lower': 0.0, 'upper': 30.0} if isinstance(default, float) else {}
    with pytest.raises((TypeError, ValueError), match=match):
        Setting('p', default, '', **bounds).convert(given)


def test_choices_are_listed():
    with pytest.raises(ValueError, match="must be one of a, b, got 'c'"):
        Setting('p', 'a', '', choices=('a', 'b')).convert('c')
