"""Compiled steps, in place and without allocation; numba, cached on disk."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(inline='always', fastmath=True)
def _decay(x: float) -> float:
    """
    Return exp(-x) for x >= 0, to 3e-14 of itself up to 40 and below 5e-18 beyond.

    A polynomial of exp(-x / 128), squared seven times: the compiler can do several at once, which
    it cannot for a library call.
    """
    r = min(x, 40.0) * (-1.0 / 128.0)
    p = 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    for _ in range(7):
        p = p * p
    return p


@numba.njit(cache=True, fastmath=True, error_model='numpy')
def memory_step(
    y: np.ndarray,
    anchor: np.ndarray,
    q: np.ndarray,
    qd: np.ndarray,
    dt: float,
    stiffness: np.ndarray,
    slowness: np.ndarray,
    relaxing: np.ndarray,
    rate: np.ndarray,
    weight: np.ndarray,
    force: np.ndarray,
) -> None:
    """
    Advance the elements of Eq. (19) by one sample and give their force.

    Parameters
    ----------
    y : array, (n, J)
        States; changed.
    anchor : array, (n,)
        Positions they belong to; changed.
    q, qd : array, (n,)
        The sample.
    dt : float
        Time since the last one [s].
    stiffness, slowness : array, (n, J)
        1 / zeta and 1 / vs.
    relaxing : array of int, (R,)
        Elements with a relaxation time.
    rate : array, (n, R)
        Their 1 / T.
    weight : array, (n, J)
    force : array, (n,)
        Filled with d_mem.

    """
    n, J = y.shape
    for i in range(n):
        dq = q[i] - anchor[i]
        way = abs(dq)
        if way > 0.0:
            anchor[i] = q[i]
            sign = 1.0 if dq > 0.0 else -1.0
            speed = abs(qd[i])
            for j in range(J):
                slow = 1.0 + speed * slowness[i, j]
                limit = sign / slow
                y[i, j] = limit + (y[i, j] - limit) * _decay(way * stiffness[i, j] * slow)
        for k in range(len(relaxing)):
            y[i, relaxing[k]] *= _decay(dt * rate[i, k])
        total = 0.0
        for j in range(J):
            total += weight[i, j] * y[i, j]
        force[i] = total
