"""
What position noise costs a model with memory, and what keeps it.

At rest every noisy sample bends the elements a little, and in time they forget what they held.
Positions followed on a play of the size of the noise, as the node follows them, keep it longer;
elements driven by the reference, which has no noise, keep it whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlnn_ros.data.noise import follow
from dlnn_ros.data.observation import sample_path
from dlnn_ros.data.trajectory import Dataset
from dlnn_ros.dynamics.model import InverseDynamicsModel
from dlnn_ros.learning.checkpoint import LoadedModel
from dlnn_ros.learning.evaluate import predict, Prediction, score_predictions
from dlnn_ros.learning.observation import context_at_samples
from dlnn_ros.runtime.feedforward import DEAD_BAND
import numpy as np
import torch


class Case(NamedTuple):
    """
    Mean R2 under position noise of one standard deviation [rad | m].

    The elements follow the noisy positions as they are; on a play; or do not see the noise.
    """

    noise: float
    plain: float | None
    dead_band: float | None
    reference: float | None


def measure(
    loaded: LoadedModel, dataset: Dataset, noises: Sequence[float], seed: int
) -> list[Case]:
    """
    Score a model with memory as it is served, with noise on what drives its elements.

    Parameters
    ----------
    loaded : LoadedModel
        The model.
    dataset : Dataset
        The part to score.
    noises : sequence of float
        Standard deviations of white noise on the positions [rad | m], >= 0.
    seed : int
        Of the noise.

    Raises
    ------
    ValueError
        If the model has no memory.

    """
    model, description = loaded
    if getattr(model, 'memory', None) is None:
        raise ValueError(
            f'a {description.kind} without memory does not feel noise of the past; '
            'give a dlnn_memory or linear_memory model'
        )
    reference = score(model, dataset, 0.0, 0.0, seed)
    return [
        Case(
            noise,
            score(model, dataset, noise, 0.0, seed),
            score(model, dataset, noise, DEAD_BAND * noise, seed),
            reference,
        )
        for noise in noises
    ]


@torch.no_grad()
def score(
    model: InverseDynamicsModel, dataset: Dataset, noise: float, band: float, seed: int
) -> float | None:
    """Return the mean R2 as served with noise on the positions that drive the elements."""
    rng = np.random.default_rng(seed)
    predictions = []
    for t in dataset:
        path = sample_path(t)
        noisy = path.q + noise * rng.standard_normal(path.q.shape)
        path = path._replace(q=follow(noisy, band) if band else noisy)
        q, qd, qdd = (torch.tensor(a) for a in (t.q, t.qd, t.qdd))
        context = context_at_samples(model, path).to(q.dtype)
        effort = predict(model, q, qd, qdd, context) / dataset.robot.gear_ratio
        predictions.append(Prediction(t, effort, {}))
    return score_predictions(tuple(predictions), dataset.robot.joints)['r2_mean']


def table(cases: Sequence[Case]) -> str:
    """Return the cases for a person."""
    lines = [f'{"noise":>8}{"R2 plain":>10}{"dead band":>11}{"reference":>11}']
    for noise, *scores in cases:
        plain, dead_band, reference = ('-' if x is None else f'{x:.4f}' for x in scores)
        lines.append(f'{noise:8.0e}{plain:>10}{dead_band:>11}{reference:>11}')
    return '\n'.join(lines)
