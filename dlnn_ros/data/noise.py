"""The noise of recorded positions, and following a position on a play against it."""

from __future__ import annotations

from dlnn_ros.config import REST_SPEED
from dlnn_ros.data.trajectory import Dataset
import numpy as np

# The third difference of white noise has the variance 1 + 9 + 9 + 1 times its own.
THIRD_DIFFERENCE = 20.0
# Fewer differences at rest say too little; then all of them are looked at.
MIN_AT_REST = 50
# Median of |x| over its standard deviation, for a normal distribution.
MEDIAN = 0.6745


def position_noise(dataset: Dataset) -> np.ndarray:
    """
    Return the standard deviation of each joint's position noise, (n,) [rad | m].

    From third differences of the recorded positions, which a smooth motion hardly has: where the
    joint rests, or, where it never does, from their median over the whole motion.
    """
    n = dataset.robot.n
    differences = [np.diff(t.recording.q, 3, axis=0) for t in dataset]
    rests = [_is_rest(t.qd) for t in dataset]
    noise = np.zeros(n)
    for i in range(n):
        at_rest = np.concatenate([d[r[:, i], i] for d, r in zip(differences, rests, strict=True)])
        if len(at_rest) >= MIN_AT_REST:
            noise[i] = np.sqrt(np.square(at_rest).mean() / THIRD_DIFFERENCE)
        else:
            every = np.abs(np.concatenate([d[:, i] for d in differences]))
            noise[i] = np.median(every) / (MEDIAN * np.sqrt(THIRD_DIFFERENCE)) if len(every) else 0
    return noise


def _is_rest(qd: np.ndarray) -> np.ndarray:
    """Return which third differences lie within a rest, (N - 3, n)."""
    slow = np.abs(qd) < REST_SPEED
    return slow[:-3] & slow[1:-2] & slow[2:-1] & slow[3:]


def follow(q: np.ndarray, band: np.ndarray | float) -> np.ndarray:
    """Return positions, (N, n), drawn along by q on a play of `band` to each side [rad | m]."""
    held = np.array(q, float)
    for k in range(1, len(held)):
        held[k] = np.clip(held[k - 1], q[k] - band, q[k] + band)
    return held
