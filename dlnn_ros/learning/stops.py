"""Where a joint comes to rest, which is where friction with memory shows."""

from __future__ import annotations

from dlnn_ros.config import REST_SPEED
from dlnn_ros.data.trajectory import Trajectory
import numpy as np

from .report import Line

# Around a stop are shown so much before it, of the rest, and after it [s].
BEFORE_S, REST_S, AFTER_S = 2.0, 8.0, 2.0
# A joint that was this fast just before has come from motion [rad/s | m/s].
MOTION_SPEED = 5 * REST_SPEED


def find_stop(trajectory: Trajectory) -> tuple[float, float] | None:
    """
    Return from when to when [s] to look at the longest rest of a joint that came from motion.

    None where no joint stops.
    """
    t, found = trajectory.t, []
    for speed in np.abs(trajectory.qd).T:
        is_rest = speed < REST_SPEED
        begins = np.flatnonzero(~is_rest[:-1] & is_rest[1:]) + 1
        for begin in begins:
            # Noise about the threshold is no motion.
            before = speed[np.searchsorted(t, t[begin] - BEFORE_S) : begin]
            if before.max() > MOTION_SPEED:
                rest = is_rest[begin:]
                end = len(t) - 1 if rest.all() else begin + int(rest.argmin())
                found.append((t[end] - t[begin], t[begin]))
    if not found:
        return None
    rest_s, begin_s = max(found)
    return begin_s - BEFORE_S, begin_s + min(rest_s, REST_S) + AFTER_S


def between(line: Line, begin_s: float, end_s: float) -> Line:
    """Return the part of a line between two times [s]."""
    is_in = (line.t >= begin_s) & (line.t <= end_s)
    return Line(line.label, line.t[is_in], line.y[is_in])
