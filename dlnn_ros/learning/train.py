"""Fit a model to the torque of a data set: by gradients, or in one linear solve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
import hashlib
import json
from pathlib import Path
import time
from typing import Any, NamedTuple

from dlnn_ros import __version__
from dlnn_ros.config import to_mapping
from dlnn_ros.data.noise import position_noise
from dlnn_ros.data.trajectory import Dataset, Samples
from dlnn_ros.dynamics.architecture import make_config, Scales
from dlnn_ros.dynamics.baselines import LinearModel
from dlnn_ros.dynamics.model import InverseDynamicsModel
import numpy as np
import torch
from torch import Tensor

from .checkpoint import build_model, load_model
from .evaluate import check_joints, predict
from .linear_memory import fit_linear_memory
from .model_folder import ModelDescription, Range, TrainingRange
from .observation import Contexts
from .resume import ResumeFile
from .settings import SOLVED, TrainConfig
from .traces import traces
from .trainer import Progress, Trainer, Validation


class Fitted(NamedTuple):
    """A fitted model, ready to be saved."""

    model: InverseDynamicsModel
    description: ModelDescription
    curve: tuple[Validation, ...]


def train(
    dataset: Dataset,
    config: TrainConfig,
    resume: ResumeFile | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    teacher: Path | str | None = None,
) -> Fitted:
    """
    Fit a model on the trajectories with role 'train', chosen by those with 'validation'.

    Parameters
    ----------
    dataset : Dataset
        Every trajectory with a role.
    config : TrainConfig
        How.
    resume : ResumeFile, optional
        Where the state is kept and, if it holds one, taken from.
    on_progress : callable, optional
        Called after every validation.
    teacher : path, optional
        Model folder; its torque along the training part is fitted in place of the measured one.
        Validation and the units of the model stay with the measured torque.

    Raises
    ------
    ValueError
        If there is nothing to learn from, the loss diverges, the kept state is of another run,
        the teacher is of another robot, or CUDA is asked for and not there.

    """
    if config.device == 'cuda' and not torch.cuda.is_available():
        raise ValueError('device cuda: torch finds no CUDA device here; use device cpu')
    if config.threads:
        torch.set_num_threads(config.threads)
    samples = dataset.role('train').samples()
    _check_torque(samples, dataset)
    description = describe(dataset, config, samples)
    if teacher is not None:
        lesson = teach(teacher, dataset)
        samples = samples._replace(tau=lesson.tau)
        provenance = {**description.provenance, 'teacher': lesson.provenance}
        # What the teacher was trained on, its pupil has seen too.
        provenance['traces'] = list(dict.fromkeys([*provenance['traces'], *lesson.traces]))
        description = replace(description, provenance=provenance)
    if config.model in SOLVED:
        started = time.monotonic()
        model: InverseDynamicsModel
        if config.model == 'linear':
            model = _fit_linear(dataset, samples, description)
        else:
            model, description = fit_linear_memory(dataset, samples.tau, description)
        elapsed = time.monotonic() - started
        curve: tuple[Validation, ...] = ()
    else:
        trainer = Trainer(description, config, dataset, samples.tau, resume, on_progress)
        states, curve = trainer.run()
        (state,) = states if config.combine == 'best' else (join(states),)
        if config.combine == 'average':
            description = describe_ensemble(description, config.restarts)
        model = build_model(description, config.model)
        model.load_state_dict(state)
        # Without validations and interruptions.
        elapsed = sum({v.restart: v.time_s for v in curve}.values())
    provenance = {**description.provenance, 'train_s': round(elapsed, 2)}
    return Fitted(model.eval(), replace(description, provenance=provenance), curve)


def join(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the parameters of an ensemble from those of its members."""
    return {f'members.{k}.{name}': v for k, s in enumerate(states) for name, v in s.items()}


def describe_ensemble(member: ModelDescription, members: int) -> ModelDescription:
    """Describe the ensemble of some models of one description."""
    config = {'kind': member.kind, 'members': members, 'options': member.config}
    return replace(member, kind='ensemble', config=config)


class Lesson(NamedTuple):
    """Torque of a teacher at the valid samples, (N, n) [N m | N], and where it is from."""

    tau: np.ndarray
    provenance: dict[str, Any]
    traces: list[str]


def teach(folder: Path | str, dataset: Dataset) -> Lesson:
    """
    Return the torque of a model along the training part, as the recordings would show it.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        If the model cannot be loaded or is of another robot.

    """
    model, description = load_model(folder)
    check_joints(dataset, description.robot)
    part = dataset.role('train')
    q, qd, qdd, _ = (torch.tensor(np.ascontiguousarray(a)) for a in part.samples())
    with torch.no_grad():
        context = Contexts(part, 'cpu', torch.float64).values(model)
    provenance = {
        'model': str(folder),
        'kind': description.kind,
        'sha256': description.sha256,
        'source': description.provenance.get('source'),
    }
    seen = description.provenance.get('traces', [])
    return Lesson(predict(model, q, qd, qdd, context), provenance, seen)


def _fit_linear(
    dataset: Dataset, samples: Samples, description: ModelDescription
) -> InverseDynamicsModel:
    robot = dataset.robot
    pairs = zip(robot.joints, robot.kinds, strict=True)
    endless = [joint for joint, kind in pairs if kind == 'continuous']
    if endless:
        raise ValueError(
            f'model linear takes positions as they are, and those of {", ".join(endless)} '
            '(continuous) mean the same after a turn; choose another model'
        )
    model = build_model(description, 'linear').double()
    assert isinstance(model, LinearModel)
    model.fit(*(torch.from_numpy(np.ascontiguousarray(a)) for a in samples))
    return model


def _filters(dataset: Dataset) -> list[str]:
    """Return what the efforts went through, each once, in words."""
    filters = [t.recording.observation_filter for t in dataset]
    return list(dict.fromkeys(f.describe() for f in filters if f is not None))


def _check_torque(samples: Samples, dataset: Dataset) -> None:
    constant = [
        joint
        for joint, column in zip(dataset.robot.joints, samples.tau.T, strict=True)
        if np.ptp(column) == 0
    ]
    if constant:
        raise ValueError(
            f'{dataset.source}: the effort of {", ".join(constant)} never changes in the '
            'training part; a constant carries no information to learn from'
        )


def fingerprint(dataset: Dataset, roles: Sequence[str]) -> str:
    """Return a checksum by which the data of a run are known again."""
    digest = hashlib.sha256(json.dumps(to_mapping(dataset.robot), sort_keys=True).encode())
    for role in roles:
        part = dataset.role(role)
        for array in part.samples():
            digest.update(array.tobytes())
        for t in part:
            # The whole path, which memory follows, and what the effort was seen through.
            seen_through = to_mapping(t.recording.observation_filter)
            digest.update(json.dumps(seen_through, sort_keys=True).encode())
            digest.update(t.t.tobytes())
            digest.update(t.q.tobytes())
    return digest.hexdigest()


def describe(dataset: Dataset, config: TrainConfig, samples: Samples) -> ModelDescription:
    """Describe the model that `config` will give on this data set, of which it fits `samples`."""

    def spread(array: np.ndarray) -> tuple[float, ...]:
        return tuple(float(s) if s > 1e-6 else 1.0 for s in array.std(0))

    def extent(array: np.ndarray) -> Range:
        return Range(tuple(array.min(0).tolist()), tuple(array.max(0).tolist()))

    scales = Scales(
        torque=float(samples.tau.std(0).mean()),
        velocity=spread(samples.qd),
        acceleration=spread(samples.qdd),
        position=spread(samples.q),
    )
    return ModelDescription(
        kind=config.model,
        config=to_mapping(make_config(config.model, config.options, 'options')),
        scales=to_mapping(scales),
        robot=dataset.robot,
        rate_hz=float(np.median([t.recording.rate_hz for t in dataset])),
        derivatives=dataset.trajectories[0].method,
        training_range=TrainingRange(
            extent(samples.q),
            extent(samples.qd),
            extent(samples.qdd),
            extent(samples.tau / dataset.robot.gear_ratio),
        ),
        position_noise=tuple(position_noise(dataset.role('train')).tolist()),
        provenance={
            'source': dataset.source,
            'samples': len(samples.q),
            'samples_sha256': fingerprint(dataset, ('train', 'validation')),
            'trajectories': {
                role: [t.recording.name for t in dataset.role(role)]
                for role in ('train', 'validation', 'test')
            },
            'training': to_mapping(config),
            'observation_filter': _filters(dataset),
            'traces': traces(dataset.role('train')),
        },
        versions={
            'dlnn_ros': __version__,
            'torch': str(torch.__version__),
            'numpy': np.__version__,
        },
    )


def resume_file(out: Path) -> ResumeFile:
    """Return the file beside the destination that keeps the state of a run."""
    return ResumeFile(out.parent / f'.{out.name}.training')
