"""The noise of recorded positions, and following a position on a play against it."""

from __future__ import annotations

from collections.abc import Sequence
import math

from dlnn_ros.config import REST_SPEED
from dlnn_ros.data.trajectory import Dataset
import numpy as np

# Of third differences at rest; fewer say too little, then the whole motion is looked at.
MIN_AT_REST = 50
# Of the differences in motion: the slower a recording, the higher the order its motion fades in.
ORDERS = range(3, 9)
# Median of |x| over its standard deviation, for a normal distribution.
MEDIAN = 0.6745


def position_noise(dataset: Dataset) -> np.ndarray:
    """
    Return the standard deviation of each joint's position noise, (n,) [rad | m].

    From differences of the recorded positions, which a smooth motion hardly has: from the third
    where the joint rests, or, where it never does, from their median over the whole motion in
    the order that shows the least.

    """
    n = dataset.robot.n
    differences = [np.diff(t.recording.q, 3, axis=0) for t in dataset]
    rests = [_is_rest(t.qd) for t in dataset]
    noise = np.zeros(n)
    for i in range(n):
        at_rest = np.concatenate([d[r[:, i], i] for d, r in zip(differences, rests, strict=True)])
        if len(at_rest) >= MIN_AT_REST:
            noise[i] = np.sqrt(np.square(at_rest).mean()) / _gain(3)
        else:
            noise[i] = _in_motion([t.recording.q[:, i] for t in dataset])
    return noise


def _gain(order: int) -> float:
    """Return the standard deviation of a difference of white noise over that of the noise."""
    return math.sqrt(math.comb(2 * order, order))


def _in_motion(positions: Sequence[np.ndarray]) -> float:
    """Return the noise of one joint from all differences of its positions, each (N,)."""
    found = []
    for order in ORDERS:
        every = np.abs(np.concatenate([np.diff(q, order) for q in positions]))
        if len(every):
            found.append(float(np.median(every)) / (MEDIAN * _gain(order)))
    return min(found, default=0.0)


def _is_rest(qd: np.ndarray) -> np.ndarray:
    """Return which third differences lie within a rest, (N - 3, n)."""
    slow = np.abs(qd) < REST_SPEED
    return slow[:-3] & slow[1:-2] & slow[2:-1] & slow[3:]


def follow(q: np.ndarray, band: np.ndarray | float) -> np.ndarray:
    """
    Return positions, (N, n), drawn along by q on a play of `band` to each side [rad | m].

    What :class:`~dlnn_ros.runtime.estimators.FilteredDifference` does sample by sample.
    """
    held = np.array(q, float)
    for k in range(1, len(held)):
        held[k] = np.clip(held[k - 1], q[k] - band, q[k] + band)
    return held
