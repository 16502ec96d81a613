"""Between ROS messages and plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
import numpy as np
from sensor_msgs.msg import JointState

NANOSECONDS = 1_000_000_000


class StampReader:
    """
    Stamps as float seconds since the second of the first one.

    Seconds since 1970 as a float resolve 0.24 us; the difference of two at 1 kHz would be off by
    as much as 0.02 %, and an acceleration by more.
    """

    def __init__(self) -> None:
        self._origin: int | None = None

    def seconds(self, sec: int, nanosec: int) -> float:
        """Return the stamp in seconds since the origin."""
        if self._origin is None:
            self._origin = sec
        return (sec - self._origin) + nanosec * 1e-9


def is_zero(stamp: Time) -> bool:
    """Return whether a stamp was never filled in."""
    return stamp.sec == 0 and stamp.nanosec == 0


class EffortMessage:
    """
    One JointState that is filled again for every sample.

    Parameters
    ----------
    joints : sequence of str
        Names; their order never changes.

    """

    def __init__(self, joints: Sequence[str]) -> None:
        self.message = JointState()
        self.message.name = list(joints)
        self.message.effort = [0.0] * len(joints)
        # A view of the message's own buffer: no list, no check per number.
        self._effort = np.frombuffer(self.message.effort, dtype=np.float64)

    def fill(self, stamp: Time, effort: np.ndarray) -> JointState:
        """Return the message with this stamp and effort (n,)."""
        self.message.header.stamp = stamp
        self._effort[:] = effort
        return self.message


def diagnostic_array(
    stamp: Time, name: str, hardware_id: str, level: bytes, summary: str, values: Mapping[str, Any]
) -> DiagnosticArray:
    """Return a DiagnosticArray with one status; floats get four digits."""
    status = DiagnosticStatus(level=level, name=name, hardware_id=hardware_id, message=summary)
    status.values = [
        KeyValue(key=key, value=f'{value:.4g}' if isinstance(value, float) else str(value))
        for key, value in values.items()
    ]
    array = DiagnosticArray()
    array.header.stamp = stamp
    array.status = [status]
    return array
