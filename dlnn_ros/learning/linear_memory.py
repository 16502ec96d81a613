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
from .linear_fit import accumulate, assign, held_out_loss, LinearProblem, Motion
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
    torques = np.split(tau, np.cumsum([t.valid.sum() for t in train])[:-1])
    deviation = tau.std(0)
    best: tuple[float, LagrangianModel, ModelDescription, LinearProblem, float] | None = None
    for degrees in _candidates(config):
        chosen = replace(config, mass_degree=degrees[0], potential_degree=degrees[1])
        told = replace(description, config=to_mapping(chosen))
        model = build_model(told, 'linear_memory').double()
        assert isinstance(model, LagrangianModel)
        groups = _problems(model, train, torques, deviation)
        whole = sum(groups[1:], groups[0])
        ridges = RIDGES if config.ridge is None else (config.ridge,)
        if len(groups) == 1:
            gear = dataset.robot.gear_ratio
            measured = [t.tau[t.valid] * gear for t in validation]
            held_out = _problems(model, validation, measured, deviation)
            judge = sum(held_out[1:], held_out[0])
        for ridge in ridges:
            if len(groups) == 1:
                loss = judge.loss(whole.solve(ridge))
            else:
                loss = held_out_loss(groups, ridge)
            if best is None or loss < best[0]:
                told = replace(told, config=to_mapping(replace(chosen, ridge=ridge)))
                best = (loss, model, told, whole, ridge)
    assert best is not None
    _, model, told, whole, ridge = best
    assign(model, whole.solve(ridge))
    return FittedLinear(model, told)


def _candidates(config: LinearMemoryConfig) -> Sequence[tuple[int, int]]:
    given = config.mass_degree, config.potential_degree
    pairs = [tuple(b if a is None else a for a, b in zip(given, p, strict=True)) for p in DEGREES]
    return list(dict.fromkeys((m, v) for m, v in pairs))


def _problems(
    model: LagrangianModel,
    part: Dataset,
    torques: Sequence[np.ndarray],
    deviation: np.ndarray,
) -> list[LinearProblem]:
    """Return the normal equations of each group of trajectories."""
    problems: dict[str, LinearProblem] = {}
    for trajectory, tau in zip(part, torques, strict=True):
        if not trajectory.valid.any():
            continue
        problem = _problem(model, replace(part, trajectories=(trajectory,)), tau, deviation)
        group = trajectory.recording.group
        problems[group] = problems[group] + problem if group in problems else problem
    return list(problems.values())


def _problem(
    model: LagrangianModel, part: Dataset, tau: np.ndarray, deviation: np.ndarray
) -> LinearProblem:
    (trajectory,) = part.trajectories
    valid = trajectory.valid
    with torch.no_grad():
        context = Contexts(part, 'cpu', torch.float64).values(model)
    arrays = (trajectory.q, trajectory.qd, trajectory.qdd)
    q, qd, qdd = (torch.from_numpy(np.ascontiguousarray(a[valid])) for a in arrays)
    weight = np.broadcast_to(model.torque_scale / deviation, tau.shape)
    if model.memory is not None:
        weight = weight * has_moved(trajectory)[valid]
    motion = Motion(q, qd, qdd, context, torch.from_numpy(np.ascontiguousarray(tau)))
    return accumulate(model, motion, weight)


def has_moved(trajectory: Trajectory) -> np.ndarray:
    """Return which samples, (N, n), follow the first motion of their joint: its state is known."""
    way = np.abs(trajectory.q - trajectory.q[0])
    return np.maximum.accumulate(way > FIRST_MOTION, axis=0)
