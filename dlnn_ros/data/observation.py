"""
What a recording shows of the torque, and the path of the joints between its samples.

Recorded effort is often low-passed and decimated.  A torque that jumps, as friction does where a
joint stops or turns, is then smeared over several samples.  A model that is fitted to such a
recording has to be looked at through the same filter; what it serves later is not filtered.
"""

from __future__ import annotations

from dataclasses import dataclass
import math
from typing import NamedTuple, TYPE_CHECKING

import numpy as np
from scipy.interpolate import CubicHermiteSpline
from scipy.signal import butter, sosfilt

if TYPE_CHECKING:
    from dlnn_ros.data.trajectory import Trajectory

# The path between samples is looked at this often [Hz], and at a multiple of the cut-off.
FINE_HZ = 50.0
FINE_PER_CUTOFF = 12.5
# The kernel is cut where it has fallen to this part of its peak.
KERNEL_END = 1e-5
# No motion is left in an effort below; the kernel would be minutes long.
LOWEST_HZ = 0.1


@dataclass(frozen=True)
class ObservationFilter:
    """
    Zero-phase Butterworth low-pass, run forward and backward.

    Attributes
    ----------
    cutoff_hz : float
        Cut-off frequency of one run [Hz], at least `LOWEST_HZ`.
    order : int
        Order of one run, 1 to 8.

    """

    cutoff_hz: float
    order: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.cutoff_hz < math.inf:
            raise ValueError(f'cutoff_hz is {self.cutoff_hz}, must be finite and > 0')
        if self.cutoff_hz < LOWEST_HZ:
            raise ValueError(f'cutoff_hz is {self.cutoff_hz}, must be at least {LOWEST_HZ}')
        if not 1 <= self.order <= 8:
            raise ValueError(f'order is {self.order}, must be 1 to 8')

    def kernel(self, rate_hz: float) -> np.ndarray:
        """Return the symmetric impulse response at a sample rate, (2 L + 1,), of sum 1."""
        sections = butter(self.order, self.cutoff_hz, fs=rate_hz, output='sos')
        impulse = np.zeros(math.ceil(6.0 * self.order * rate_hz / self.cutoff_hz))
        impulse[0] = 1.0
        forward = sosfilt(sections, impulse)
        both = np.correlate(forward, forward, 'full')
        middle = len(both) // 2
        far = np.flatnonzero(np.abs(both) > KERNEL_END * both[middle])[-1] - middle
        kernel = both[middle - far : middle + far + 1]
        return kernel / kernel.sum()

    def describe(self) -> str:
        """Return the filter in one line."""
        return (
            f'zero-phase Butterworth low-pass of order 2 x {self.order} at {self.cutoff_hz:g} Hz'
        )


class Path(NamedTuple):
    """
    Motion of the joints at the points where a model's context is computed.

    Attributes
    ----------
    q, qd : array, (M, n)
        Position and velocity [rad | m, /s].
    dt : array, (M,)
        Time since the point before [s]; 0 for the first.
    point : array of int, (N,)
        For each sample of the recording the last point that is not after it.
    share : array, (N,)
        How far the sample is on the way to the next point, in [0, 1).
    kernel : array or None
        Symmetric filter over the points, which are evenly spaced then.

    """

    q: np.ndarray
    qd: np.ndarray
    dt: np.ndarray
    point: np.ndarray
    share: np.ndarray
    kernel: np.ndarray | None


def sample_path(trajectory: Trajectory) -> Path:
    """Return the path through the samples alone, as a node sees it."""
    count = len(trajectory.t)
    dt = np.diff(trajectory.t, prepend=trajectory.t[0])
    return Path(trajectory.q, trajectory.qd, dt, np.arange(count), np.zeros(count), None)


def observed_path(trajectory: Trajectory) -> Path:
    """
    Return the path on a fine, even grid with the filter of the recording's effort.

    Between two samples it is the cubic with their positions and velocities.  A recording without
    a filter is taken at its samples.

    """
    wanted = trajectory.recording.observation_filter
    if wanted is None:
        return sample_path(trajectory)
    t = trajectory.t - trajectory.t[0]
    period = float(np.median(np.diff(t)))
    rate = max(FINE_HZ, FINE_PER_CUTOFF * wanted.cutoff_hz)
    step = period / max(1, math.ceil(rate * period - 1e-6))
    points = math.ceil(t[-1] / step - 1e-6) + 1
    grid = step * np.arange(points)
    spline = CubicHermiteSpline(t, trajectory.q, trajectory.qd, axis=0)
    inside = np.minimum(grid, t[-1])
    place = t / step
    place[-1] = points - 1  # the path ends there, between two points or not
    index = (place + 1e-6).astype(int)
    share = place - index
    share[share < 1e-6] = 0.0  # at a point, to rounding
    dt = np.full(points, step)
    dt[0] = 0.0
    return Path(spline(inside), spline(inside, 1), dt, index, share, wanted.kernel(1.0 / step))
