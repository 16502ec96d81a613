"""
What position noise costs a model with memory, and what keeps it.

At rest every noisy sample bends the elements a little, and in time they forget what they held.
Elements that follow only a way beyond the noise (`dead_band`) keep it longer; elements driven by
the reference, which has no noise, keep it whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dlnn_ros.config import to_mapping
from dlnn_ros.data.observation import sample_path
from dlnn_ros.data.trajectory import Dataset
from dlnn_ros.dynamics.architecture import make_config
from dlnn_ros.dynamics.model import InverseDynamicsModel
from dlnn_ros.learning.checkpoint import build_model, LoadedModel
from dlnn_ros.learning.evaluate import predict, Prediction, score_predictions
from dlnn_ros.learning.observation import context_at_samples
import numpy as np
import torch

NOISES = (0.0, 1e-6, 1e-5, 1e-4)
DEAD_BAND = 4.0  # standard deviations of the noise


class Case(NamedTuple):
    """
    Mean R2 under position noise of one standard deviation [rad | m].

    The elements see the noise as they are; behind a dead band; not at all.
    """

    noise: float
    plain: float | None
    dead_band: float | None
    reference: float | None


def with_dead_band(loaded: LoadedModel, dead_band: float) -> InverseDynamicsModel:
    """
    Return the model with elements that follow only a way beyond `dead_band` [rad | m].

    Raises
    ------
    ValueError
        If the model has no memory.

    """
    description = loaded.description
    config = make_config(description.kind, description.config, 'config')
    memory = getattr(config, 'memory', None)
    if memory is None:
        raise ValueError(
            f'a {description.kind} without memory does not feel noise of the past; '
            'give a dlnn_memory or linear_memory model'
        )
    config = replace(config, memory=replace(memory, dead_band=dead_band))
    model = build_model(replace(description, config=to_mapping(config)), 'noise')
    model.load_state_dict(loaded.model.state_dict())
    return model.double().eval()


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

    """
    plain = with_dead_band(loaded, 0.0)
    reference = score(plain, dataset, 0.0, seed)
    found = []
    for noise in noises:
        banded = with_dead_band(loaded, DEAD_BAND * noise)
        as_is, held = (score(model, dataset, noise, seed) for model in (plain, banded))
        found.append(Case(noise, as_is, held, reference))
    return found


@torch.no_grad()
def score(model: InverseDynamicsModel, dataset: Dataset, noise: float, seed: int) -> float | None:
    """Return the mean R2 as served with noise on the positions that drive the elements."""
    rng = np.random.default_rng(seed)
    predictions = []
    for t in dataset:
        path = sample_path(t)
        noisy = path._replace(q=path.q + noise * rng.standard_normal(path.q.shape))
        q, qd, qdd = (torch.tensor(a) for a in (t.q, t.qd, t.qdd))
        context = context_at_samples(model, noisy).to(q.dtype)
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
