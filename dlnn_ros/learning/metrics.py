"""Scores of predicted against measured torque, per joint."""

from __future__ import annotations

from typing import Any, NamedTuple

from dlnn_ros.config import REST_SPEED
import numpy as np


class Scores(NamedTuple):
    """
    Scores per joint, each an array (n,); NaN where a score is not defined.

    r2 is the standard coefficient of determination, 1 - SSE / SST with SST about the mean of
    the measurement; nmse is SSE / SST; rmse is in units of effort.
    """

    r2: np.ndarray
    nmse: np.ndarray
    rmse: np.ndarray


def score(predicted: np.ndarray, measured: np.ndarray) -> Scores:
    """Score predictions (N, n) of measurements (N, n)."""
    if predicted.shape != measured.shape:
        raise ValueError(f'predicted {predicted.shape} and measured {measured.shape} differ')
    if len(measured) == 0:
        nan = np.full(measured.shape[1], np.nan)
        return Scores(nan, nan, nan)
    sse = ((predicted - measured) ** 2).sum(0)
    sst = ((measured - measured.mean(0)) ** 2).sum(0)
    nmse = np.full(sse.shape, np.nan)
    np.divide(sse, sst, out=nmse, where=sst > 0)
    return Scores(1.0 - nmse, nmse, np.sqrt(sse / len(measured)))


def split_scores(predicted: np.ndarray, measured: np.ndarray, qd: np.ndarray) -> dict[str, Scores]:
    """Score all samples, and per joint those where the joint moves and where it rests."""
    moving = np.abs(qd) >= REST_SPEED
    parts = {'all': score(predicted, measured)}
    for name, mask in (('moving', moving), ('rest', ~moving)):
        columns = [
            score(predicted[mask[:, i], i : i + 1], measured[mask[:, i], i : i + 1])
            for i in range(measured.shape[1])
        ]
        parts[name] = Scores(*(np.concatenate(c) for c in zip(*columns, strict=True)))
    return parts


def mean(values: np.ndarray) -> float | None:
    """Mean over the joints where the score is defined; None where it is nowhere."""
    defined = values[np.isfinite(values)]
    return float(defined.mean()) if len(defined) else None


def summary(parts: dict[str, Scores], joints: tuple[str, ...]) -> dict[str, Any]:
    """Return the scores under the keys that scripts rely on."""

    def by_joint(values: np.ndarray) -> dict[str, float | None]:
        return {
            j: float(v) if np.isfinite(v) else None for j, v in zip(joints, values, strict=True)
        }

    scores = parts['all']
    return {
        'r2': by_joint(scores.r2),
        'r2_mean': mean(scores.r2),
        'nmse': by_joint(scores.nmse),
        'nmse_mean': mean(scores.nmse),
        'rmse': by_joint(scores.rmse),
        'r2_moving': by_joint(parts['moving'].r2),
        'r2_rest': by_joint(parts['rest'].r2),
        'r2_mean_moving': mean(parts['moving'].r2),
        'r2_mean_rest': mean(parts['rest'].r2),
    }
