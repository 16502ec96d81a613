"""Latency percentiles and event rates over the latest samples, without allocation per sample."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class LatencySummary(NamedTuple):
    """Percentiles of the kept samples [us]; NaN where there is none. `samples` counts all."""

    samples: int
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float


class LatencyRecorder:
    """
    The latest `capacity` durations.

    Parameters
    ----------
    capacity : int
        Samples kept; percentiles are over these.

    Attributes
    ----------
    count : int
        Samples added since the start.

    """

    def __init__(self, capacity: int = 8192) -> None:
        if capacity < 1:
            raise ValueError(f'capacity is {capacity}, must be at least 1')
        self.count = 0
        self._seconds = np.zeros(capacity)

    def add(self, seconds: float) -> None:
        """Add one duration [s]."""
        self._seconds[self.count % len(self._seconds)] = seconds
        self.count += 1

    def clear(self) -> None:
        """Forget all samples."""
        self.count = 0

    def summary(self) -> LatencySummary:
        """Return the percentiles of the samples kept."""
        kept = self._seconds[: min(self.count, len(self._seconds))]
        if len(kept) == 0:
            nan = float('nan')
            return LatencySummary(0, nan, nan, nan, nan)
        us = 1e6 * np.percentile(kept, (50.0, 99.0, 99.9, 100.0))
        return LatencySummary(self.count, *us.tolist())


class RateMeter:
    """Rate of a running count between two readings of a steady clock."""

    def __init__(self) -> None:
        self._count = 0
        self._time_s: float | None = None

    def update(self, count: int, time_s: float) -> float:
        """
        Return the rate [1/s] since the reading before; 0 at the first one.

        Parameters
        ----------
        count : int
            Events so far; a count below the one before (a restart) starts anew.
        time_s : float
            Steady clock [s].

        """
        rate = 0.0
        if self._time_s is not None and count >= self._count and time_s > self._time_s:
            rate = (count - self._count) / (time_s - self._time_s)
        self._count, self._time_s = count, time_s
        return rate
