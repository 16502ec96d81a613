"""
Run a model over trajectories and score it in the units of the recorded effort.

A recording is scored in one of two views.  *Served*: the model runs from sample to sample as a
node would run it, without knowledge of the future and unfiltered; but velocity and acceleration
are those of the data set, which are of zero phase.  *Recorded*: what the recording would show of
the model's torque, where its effort was low-passed; only friction that jumps is changed by that.
A model with memory starts each recording with unbent elements, or *started* from the torque
measured at its first sample, where the robot rests there; as that reads a torque which is then
scored, it is reported apart.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dlnn_ros.config import REST_SPEED, Robot
from dlnn_ros.data.observation import observed_path, sample_path
from dlnn_ros.data.trajectory import Dataset, Trajectory
from dlnn_ros.dynamics.dlnn import LagrangianModel
from dlnn_ros.dynamics.model import InverseDynamicsModel
import numpy as np
import torch
from torch import Tensor

from . import metrics
from .observation import context_at_samples

CHUNK = 4096  # samples at a time; more costs memory and is not faster
PATHS = {'served': sample_path, 'recorded': observed_path}


class Prediction(NamedTuple):
    """
    A model along one trajectory.

    Attributes
    ----------
    trajectory : Trajectory
        What was run over.
    effort : array, (N, n)
        In recorded units.
    components : dict
        Inertial, coriolis, gravity, dissipation and, where there is one, memory: the same, by
        name; empty for models without structure.
    dissipated : array, (N,), or None
        qd'd of the friction without memory [W].
    surplus : array, (N,), or None
        Energy put into the memory less what it stores since the start [J], Eq. (19).

    """

    trajectory: Trajectory
    effort: np.ndarray
    components: dict[str, np.ndarray]
    dissipated: np.ndarray | None = None
    surplus: np.ndarray | None = None


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
def predict(
    model: InverseDynamicsModel, q: Tensor, qd: Tensor, qdd: Tensor, context: Tensor
) -> np.ndarray:
    """Return tau, (N, n), of many samples with their context, in bounded memory."""
    chunks = zip(*(a.split(CHUNK) for a in (q, qd, qdd, context)), strict=True)
    return torch.cat([model.torque(*chunk).cpu() for chunk in chunks]).numpy()


@torch.no_grad()
def predict_trajectory(
    model: InverseDynamicsModel,
    trajectory: Trajectory,
    gear_ratio: np.ndarray,
    view: str = 'served',
    is_started: bool = False,
    has_parts: bool = True,
) -> Prediction:
    """
    Run a float64 model along one trajectory in one of the views `PATHS` names.

    `has_parts` asks for components and powers, where the model has structure.
    """
    q, qd, qdd = (torch.tensor(a) for a in (trajectory.q, trajectory.qd, trajectory.qdd))
    state = None
    if is_started and can_start(trajectory):
        state = model.initial_state(q[0], torch.tensor(trajectory.tau[0] * gear_ratio))
    context = context_at_samples(model, PATHS[view](trajectory), state).to(q.dtype)
    if not (has_parts and isinstance(model, LagrangianModel)):
        return Prediction(trajectory, predict(model, q, qd, qdd, context) / gear_ratio, {})
    chunks = zip(*(a.split(CHUNK) for a in (q, qd, qdd, context)), strict=True)
    parts = [_components(model, *chunk) for chunk in chunks]
    joined = {name: np.concatenate([part[name].numpy() for part in parts]) for name in parts[0]}
    components = {name: tau / gear_ratio for name, tau in joined.items()}
    prediction = Prediction(trajectory, np.sum(list(components.values()), 0), components)
    if view != 'served':
        return prediction  # a filtered friction has a power of its own
    dissipated = (trajectory.qd * joined['dissipation']).sum(-1)
    surplus = None
    if model.memory is not None:
        way = np.diff(trajectory.q, axis=0, prepend=trajectory.q[:1])
        stored = model.stored_energy(q, context).numpy()
        before = 0.0 if state is None else _stored_before(model, q[0], state)
        surplus = np.cumsum((joined['memory'] * way).sum(-1)) - (stored - before)
    return prediction._replace(dissipated=dissipated, surplus=surplus)


def can_start(trajectory: Trajectory) -> bool:
    """Return whether the effort of the first sample was measured with the robot at rest."""
    return bool(trajectory.valid[0] and np.abs(trajectory.qd[0]).max() < REST_SPEED)


def _stored_before(model: LagrangianModel, q: Tensor, state: Tensor) -> float:
    context = torch.cat([torch.zeros_like(state[:, :1]), state[:, :-1]], -1)
    return float(model.stored_energy(q, context))


def _components(
    model: LagrangianModel, q: Tensor, qd: Tensor, qdd: Tensor, context: Tensor
) -> dict[str, Tensor]:
    """Return the parts of the torque, each (N, n)."""
    M, c, g, d = model.terms(q, qd, context=context)
    parts = {
        'inertial': (M @ qdd.unsqueeze(-1)).squeeze(-1),
        'coriolis': c,
        'gravity': g,
        'dissipation': d,
    }
    if model.memory is not None:
        parts['memory'] = model.memory_torque(q, context)
        parts['dissipation'] = d - parts['memory']
    return parts


def default_view(model: InverseDynamicsModel, dataset: Dataset) -> str:
    """Return 'recorded' where that differs from 'served'."""
    is_filtered = any(t.recording.observation_filter is not None for t in dataset)
    return 'recorded' if model.is_sharp and is_filtered else 'served'


def evaluate(
    model: InverseDynamicsModel,
    dataset: Dataset,
    view: str | None = None,
    is_started: bool = False,
    has_parts: bool = True,
) -> Evaluation:
    """Score a float64 model on all valid samples of a data set, in its default view where None."""
    gear_ratio = dataset.robot.gear_ratio
    view = view or default_view(model, dataset)
    predictions = tuple(
        predict_trajectory(model, t, gear_ratio, view, is_started, has_parts) for t in dataset
    )
    scores = {'view': view, **score_predictions(predictions, dataset.robot.joints)}
    return Evaluation(predictions, scores)


def evaluate_views(model: InverseDynamicsModel, dataset: Dataset) -> dict[str, Evaluation]:
    """
    Score a float64 model in every view that differs, the default one first.

    Keys are 'recorded', 'served' and, for a model with memory where a recording starts at rest,
    'recorded_started' and 'served_started'.
    """
    first = default_view(model, dataset)
    views = dict.fromkeys((first, 'served'))
    starts = [False]
    has_memory = isinstance(model, LagrangianModel) and model.memory is not None
    if has_memory and any(can_start(t) for t in dataset):
        starts.append(True)
    return {
        f'{view}_started' if is_started else view: evaluate(
            model, dataset, view, is_started, has_parts=not is_started
        )
        for is_started in starts
        for view in views
    }


def merge_scores(views: dict[str, Evaluation]) -> dict[str, Any]:
    """Return the scores of the first view, with what the others differ in under their names."""
    first, *others = views
    scores = dict(views[first].scores)
    for key in ('dissipated_power_min', 'memory_surplus_min'):
        if key in views['served'].scores:
            scores[key] = views['served'].scores[key]
    keys = ('r2', 'r2_mean', 'nmse_mean', 'rmse', 'r2_mean_moving', 'r2_mean_rest')
    for name in others:
        scores[name] = {k: views[name].scores[k] for k in keys}
    return scores


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
    for key, powers in (
        ('dissipated_power_min', [p.dissipated for p in predictions]),
        ('memory_surplus_min', [p.surplus for p in predictions]),
    ):
        found = [float(x.min()) for x in powers if x is not None]
        if found:
            scores[key] = min(found)
    return scores
