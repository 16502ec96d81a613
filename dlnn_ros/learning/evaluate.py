"""Run a model over trajectories and score it in the units of the recorded effort."""

from __future__ import annotations

from typing import Any, NamedTuple

from dlnn_ros.config import Robot
from dlnn_ros.data.trajectory import Dataset, Trajectory
from dlnn_ros.dynamics.dlnn import LagrangianModel
from dlnn_ros.dynamics.model import InverseDynamicsModel
import numpy as np
import torch
from torch import Tensor

from . import metrics

CHUNK = 4096  # samples at a time; more costs memory and is not faster
COMPONENTS = ('inertial', 'coriolis', 'gravity', 'dissipation')


class Prediction(NamedTuple):
    """
    A model along one trajectory.

    effort is (N, n) in recorded units; components maps a name of `COMPONENTS` to the same,
    empty for models without structure; dissipated is qd'd [W], (N,), or None.
    """

    trajectory: Trajectory
    effort: np.ndarray
    components: dict[str, np.ndarray]
    dissipated: np.ndarray | None


class Evaluation(NamedTuple):
    """Predictions along each trajectory, and the scores over all valid samples."""

    predictions: tuple[Prediction, ...]
    scores: dict[str, Any]


def check_joints(dataset: Dataset, robot: Robot) -> None:
    """
    Check that a data set is of the robot that a model was made for.

    Raises
    ------
    ValueError
        Names what differs: joints or their order, kinds, meaning of effort, gravity.

    """
    for name in ('joints', 'kinds', 'effort', 'gravity'):
        given, expected = getattr(dataset.robot, name), getattr(robot, name)
        if given != expected:
            raise ValueError(
                f'{dataset.source}: {name} {given} do not match {expected} of the model'
            )


@torch.no_grad()
def predict(model: InverseDynamicsModel, q: Tensor, qd: Tensor, qdd: Tensor) -> np.ndarray:
    """Return tau, (N, n), of a model without memory on many samples, in bounded memory."""
    chunks = zip(*(a.split(CHUNK) for a in (q, qd, qdd)), strict=True)
    return torch.cat([model.inverse_dynamics(*chunk).cpu() for chunk in chunks]).numpy()


@torch.no_grad()
def predict_trajectory(
    model: InverseDynamicsModel, trajectory: Trajectory, gear_ratio: np.ndarray
) -> Prediction:
    """Run a float64 model along one trajectory."""
    q, qd, qdd = (torch.tensor(a) for a in (trajectory.q, trajectory.qd, trajectory.qdd))
    if model.state_size == 0:
        tau = predict(model, q, qd, qdd)
    else:
        dt = torch.tensor(np.diff(trajectory.t, prepend=trajectory.t[0]))
        tau = model.sequence(model.initial_state(q[0]), q, qd, qdd, dt).tau.numpy()
    components: dict[str, np.ndarray] = {}
    dissipated = None
    if isinstance(model, LagrangianModel):
        parts = [
            _components(model, *chunk)
            for chunk in zip(*(a.split(CHUNK) for a in (q, qd, qdd)), strict=True)
        ]
        joined = [torch.cat(part).numpy() for part in zip(*parts, strict=True)]
        components = {
            name: part / gear_ratio for name, part in zip(COMPONENTS, joined, strict=True)
        }
        dissipated = (trajectory.qd * joined[-1]).sum(-1)
    return Prediction(trajectory, tau / gear_ratio, components, dissipated)


def _components(
    model: LagrangianModel, q: Tensor, qd: Tensor, qdd: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the torques that `COMPONENTS` names, each (N, n)."""
    M, c, g, d = model.terms(q, qd)
    return (M @ qdd.unsqueeze(-1)).squeeze(-1), c, g, d


def evaluate(model: InverseDynamicsModel, dataset: Dataset) -> Evaluation:
    """Score a float64 model on all valid samples of a data set."""
    gear_ratio = dataset.robot.gear_ratio
    predictions = tuple(predict_trajectory(model, t, gear_ratio) for t in dataset)
    return Evaluation(predictions, score_predictions(predictions, dataset.robot.joints))


def score_predictions(
    predictions: tuple[Prediction, ...], joints: tuple[str, ...]
) -> dict[str, Any]:
    """Score predictions over all valid samples of their trajectories."""
    if not predictions:
        raise ValueError('there is no trajectory to score')
    valid = [p.trajectory.valid for p in predictions]
    pairs = list(zip(predictions, valid, strict=True))
    parts = metrics.split_scores(
        np.concatenate([p.effort[v] for p, v in pairs]),
        np.concatenate([p.trajectory.tau[v] for p, v in pairs]),
        np.concatenate([p.trajectory.qd[v] for p, v in pairs]),
    )
    scores = metrics.summary(parts, joints)
    scores['samples'] = int(sum(v.sum() for v in valid))
    dissipated = [p.dissipated.min() for p in predictions if p.dissipated is not None]
    if dissipated:
        scores['dissipated_power_min'] = float(min(dissipated))
    return scores
