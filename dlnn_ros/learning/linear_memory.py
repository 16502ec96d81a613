"""
Fit the model that is linear in its parameters, and choose what is left open.

Degrees and ridge are chosen by the recordings themselves: each group of repeats is predicted from
the others, all from sums of the same normal equations.  A part cut out of a recording would not
do: its neighbours tell too much about it, and M and V of high degree look good until they leave
the motions they were fitted to.  Only where there is one group does the validation part choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dlnn_ros.config import to_mapping
from dlnn_ros.data.trajectory import Dataset, Trajectory
from dlnn_ros.dynamics.architecture import LinearMemoryConfig, make_config
from dlnn_ros.dynamics.dlnn import LagrangianModel
import numpy as np
import torch

from .checkpoint import build_model
from .linear_fit import accumulate, assign, held_out_losses, LinearProblem, Motion, total
from .model_folder import ModelDescription
from .observation import Contexts

# Pairs of degrees of M and V, from few coefficients to many, and penalties.
DEGREES = ((0, 2), (1, 3))
RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
# Beyond this way the elements of a joint have forgotten where they started [rad | m].
FIRST_MOTION = 3e-3


class FittedLinear(NamedTuple):
    """The fitted model, and its description with what was chosen."""

    model: LagrangianModel
    description: ModelDescription


def fit_linear_memory(
    dataset: Dataset, tau: np.ndarray, description: ModelDescription
) -> FittedLinear:
    """
    Fit on the training part.

    Parameters
    ----------
    dataset : Dataset
        Every trajectory with a role.
    tau : array, (N, n)
        Torque of the valid training samples [N m | N].
    description : ModelDescription
        Of the model; degrees and ridge that it leaves open are chosen.

    """
    config = make_config(description.kind, description.config, 'config')
    assert isinstance(config, LinearMemoryConfig)
    train, validation = dataset.role('train'), dataset.role('validation')
    gear = dataset.robot.gear_ratio
    deviation = tau.std(0)
    torques = np.split(tau, np.cumsum([t.valid.sum() for t in train])[:-1])
    ridges = RIDGES if config.ridge is None else (config.ridge,)
    candidates = [_open(description, config, degrees) for degrees in _candidates(config)]
    # The memory is the same for all degrees, and so are the samples.
    first = candidates[0].model
    lessons = _lessons(first, train, torques, deviation)
    exams: list[_Lesson] = []
    if len({lesson.group for lesson in lessons}) == 1:
        measured = [t.tau[t.valid] * gear for t in validation]
        exams = _lessons(first, validation, measured, deviation)
    best_loss, best = np.inf, None
    for model, config in candidates:
        groups = _problems(model, lessons)
        whole = total(groups)
        if exams:
            judge = total(_problems(model, exams))
            losses = [judge.loss(whole.solve(ridge)) for ridge in ridges]
        else:
            losses = held_out_losses(groups, ridges)
        k = int(np.argmin(losses))
        if losses[k] < best_loss:
            best_loss = losses[k]
            best = model, replace(config, ridge=ridges[k]), whole
    assert best is not None
    model, config, whole = best
    assert config.ridge is not None
    assign(model, whole.solve(config.ridge))
    return FittedLinear(model, replace(description, config=to_mapping(config)))


class _Candidate(NamedTuple):
    model: LagrangianModel
    config: LinearMemoryConfig


def _open(
    description: ModelDescription, config: LinearMemoryConfig, degrees: tuple[int, int]
) -> _Candidate:
    config = replace(config, mass_degree=degrees[0], potential_degree=degrees[1])
    described = replace(description, config=to_mapping(config))
    model = build_model(described, 'linear_memory').double()
    assert isinstance(model, LagrangianModel)
    return _Candidate(model, config)


def _candidates(config: LinearMemoryConfig) -> list[tuple[int, int]]:
    """Return the pairs of degrees to try, with those that are given."""
    mass, potential = config.mass_degree, config.potential_degree
    pairs = [
        (m if mass is None else mass, v if potential is None else potential) for m, v in DEGREES
    ]
    return list(dict.fromkeys(pairs))


class _Lesson(NamedTuple):
    """The valid samples of one trajectory, and what their errors count, (N, n)."""

    group: str
    motion: Motion
    weight: np.ndarray


def _lessons(
    model: LagrangianModel, part: Dataset, torques: Sequence[np.ndarray], deviation: np.ndarray
) -> list[_Lesson]:
    lessons = []
    # A joint that is parked in all recordings is known by nothing else.
    is_parked = ~np.any([has_moved(t)[t.valid].any(0) for t in part], 0)
    for trajectory, tau in zip(part, torques, strict=True):
        valid = trajectory.valid
        if not valid.any():
            continue
        alone = replace(part, trajectories=(trajectory,))
        with torch.no_grad():
            context = Contexts(alone, 'cpu', torch.float64).values(model)
        weight = np.broadcast_to(model.torque_scale / deviation, tau.shape)
        if model.memory is not None:
            weight = weight * (has_moved(trajectory) | is_parked)[valid]
        arrays = (trajectory.q[valid], trajectory.qd[valid], trajectory.qdd[valid], tau)
        q, qd, qdd, tau_ = (torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)
        motion = Motion(q, qd, qdd, context, tau_)
        lessons.append(_Lesson(trajectory.recording.group, motion, weight))
    return lessons


def _problems(model: LagrangianModel, lessons: Sequence[_Lesson]) -> list[LinearProblem]:
    """Return the normal equations of each group of trajectories."""
    problems: dict[str, LinearProblem] = {}
    for group, motion, weight in lessons:
        problem = accumulate(model, motion, weight)
        problems[group] = problems[group] + problem if group in problems else problem
    return list(problems.values())


def has_moved(trajectory: Trajectory) -> np.ndarray:
    """Return which samples, (N, n), follow the first motion of their joint: its state is known."""
    way = np.abs(trajectory.q - trajectory.q[0])
    return np.maximum.accumulate(way > FIRST_MOTION, axis=0)
