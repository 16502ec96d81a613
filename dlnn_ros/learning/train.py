"""
Fit a model to the torque of a data set.

Adam with an exponentially falling learning rate over a budget of time or epochs; the weights
are averaged on the way (exponential moving average), the average is scored on the validation
part at fixed intervals, and the best one is kept.  The score is that of the weighted objective,
one minus the mean squared error over the variance in training, so that it means the same for a
validation part that hardly moves.  The whole state is written at those
intervals beside the destination, so that an interrupted or killed run goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
import hashlib
import json
import math
from pathlib import Path
import time
from typing import Any, NamedTuple

from dlnn_ros import __version__
from dlnn_ros.config import Robot, to_mapping
from dlnn_ros.data.trajectory import Dataset, Samples
from dlnn_ros.dynamics.architecture import make_config, Scales
from dlnn_ros.dynamics.baselines import LinearModel
from dlnn_ros.dynamics.model import InverseDynamicsModel
import numpy as np
import torch
from torch import Tensor

from .checkpoint import build_model
from .evaluate import predict
from .model_folder import ModelDescription, Range, TrainingRange
from .objectives import torque_objective
from .resume import ResumeFile
from .traces import traces


@dataclass(frozen=True)
class TrainConfig:
    """
    How a model is fitted.

    Attributes
    ----------
    model : str
        Kind of model: 'dlnn', 'lnn', 'mlp', 'linear'.
    options : dict
        Options of that kind, see its configuration class.
    time_budget_s : float
        Training time of all restarts together [s]; used where `epochs` is 0.
    epochs : int
        Number of passes through the data per restart; 0 for the time budget. Reproducible.
    restarts : int
        Number of random starts, each with its share of the budget; validation chooses.
    seed : int
        Of the first start; the k-th has seed + k.
    batch_size : int
        Samples per step.
    learning_rate, final_learning_rate : float
        At the start and at the end of the budget.
    clip_norm : float
        Largest norm of a gradient.
    huber_delta : float
        See :func:`~.objectives.torque_objective`.
    average : float
        Weight of the past in the moving average of the parameters, in [0, 1).
    validation_interval_s : float
        Time between two validations [s]; with `epochs` a validation follows every epoch.
    patience : int
        Stop a start after so many validations without a better one; 0 for never.
    threads : int
        Torch threads; 0 for all cores.
    device : str
        'cpu' or 'cuda'.

    """

    model: str = 'dlnn'
    options: dict[str, Any] = field(default_factory=dict)
    time_budget_s: float = 60.0
    epochs: int = 0
    restarts: int = 1
    seed: int = 0
    batch_size: int = 1024
    learning_rate: float = 1e-2
    final_learning_rate: float = 2e-4
    clip_norm: float = 1.0
    huber_delta: float = 0.0
    average: float = 0.99
    validation_interval_s: float = 2.0
    patience: int = 0
    threads: int = 0
    device: str = 'cpu'

    def __post_init__(self) -> None:
        make_config(self.model, self.options, 'options')
        for name in ('time_budget_s', 'validation_interval_s', 'clip_norm'):
            if not getattr(self, name) > 0:
                raise ValueError(f'{name} is {getattr(self, name)}, must be > 0')
        if not 0 < self.final_learning_rate <= self.learning_rate:
            raise ValueError(
                f'learning rates {self.learning_rate} to {self.final_learning_rate} '
                'must fall and be > 0'
            )
        for name in ('restarts', 'batch_size'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} is {getattr(self, name)}, must be at least 1')
        for name in ('epochs', 'patience', 'threads', 'huber_delta'):
            if getattr(self, name) < 0:
                raise ValueError(f'{name} is {getattr(self, name)}, must be >= 0')
        if not 0 <= self.average < 1:
            raise ValueError(f'average is {self.average}, must be in [0, 1)')
        if self.device not in ('cpu', 'cuda'):
            raise ValueError(f"device is {self.device!r}, must be 'cpu' or 'cuda'")


class Validation(NamedTuple):
    """One point of the training curve."""

    restart: int
    step: int
    time_s: float
    loss: float
    score: float


class Progress(NamedTuple):
    """Given to the caller after every validation."""

    fraction: float
    restart: int
    validation: Validation
    best_score: float


class Fitted(NamedTuple):
    """A fitted model, ready to be saved."""

    model: InverseDynamicsModel
    description: ModelDescription
    curve: tuple[Validation, ...]


class _Batch(NamedTuple):
    q: Tensor
    qd: Tensor
    qdd: Tensor
    tau: Tensor


def train(
    dataset: Dataset,
    config: TrainConfig,
    resume: ResumeFile | None = None,
    on_progress: Callable[[Progress], None] | None = None,
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

    Raises
    ------
    ValueError
        If there is nothing to learn from, the loss diverges, the kept state is of another run,
        or CUDA is asked for and not there.

    """
    if config.device == 'cuda' and not torch.cuda.is_available():
        raise ValueError('device cuda: torch finds no CUDA device here; use device cpu')
    if config.threads:
        torch.set_num_threads(config.threads)
    samples = dataset.role('train').samples()
    held_out = dataset.role('validation').samples()
    _check_torque(samples, dataset)
    description = describe(dataset, config, samples, held_out)
    if config.model == 'linear':
        endless = [
            j
            for j, k in zip(dataset.robot.joints, dataset.robot.kinds, strict=True)
            if k == 'continuous'
        ]
        if endless:
            raise ValueError(
                f'model linear takes positions as they are, and those of {", ".join(endless)} '
                '(continuous) mean the same after a turn; choose another model'
            )
        model = build_model(description, 'linear')
        assert isinstance(model, LinearModel)
        started = time.monotonic()
        model.double().fit(*(torch.from_numpy(np.ascontiguousarray(a)) for a in samples))
        elapsed = time.monotonic() - started
        curve: tuple[Validation, ...] = ()
    else:
        trainer = _Trainer(description, config, samples, held_out, resume, on_progress)
        model, curve = trainer.run()
        # Without validations and interruptions.
        elapsed = sum({v.restart: v.time_s for v in curve}.values())
    provenance = {**description.provenance, 'train_s': round(elapsed, 2)}
    return Fitted(model.eval(), replace(description, provenance=provenance), curve)


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


def fingerprint(robot: Robot, *parts: Samples) -> str:
    """Return a checksum by which the data of a run are known again."""
    digest = hashlib.sha256(json.dumps(to_mapping(robot), sort_keys=True).encode())
    for part in parts:
        for array in part:
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def describe(
    dataset: Dataset, config: TrainConfig, samples: Samples, held_out: Samples
) -> ModelDescription:
    """Describe the model that `config` will give on this data set."""

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
        provenance={
            'source': dataset.source,
            'samples': len(samples.q),
            'samples_sha256': fingerprint(dataset.robot, samples, held_out),
            'trajectories': {
                role: [t.recording.name for t in dataset.role(role)]
                for role in ('train', 'validation', 'test')
            },
            'training': to_mapping(config),
            'traces': traces(dataset.role('train')),
        },
        versions={
            'dlnn_ros': __version__,
            'torch': str(torch.__version__),
            'numpy': np.__version__,
        },
    )


class _Trainer:
    """State of a run, and its loop; everything that a resumed run needs is in `state`."""

    def __init__(
        self,
        description: ModelDescription,
        config: TrainConfig,
        samples: Samples,
        held_out: Samples,
        resume: ResumeFile | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.description = description
        self.config = config
        self.train_batch = self._tensors(samples)
        self.held_out = self._tensors(held_out)
        self.weight = 1.0 / self.train_batch.tau.std(0)
        self.resume = resume
        self.on_progress = on_progress
        self.batch_size = min(config.batch_size, len(samples.q))
        self.curve: list[Validation] = []
        self.best_score = -math.inf
        self.best: dict[str, Tensor] = {}
        self.restart = 0
        self.step = 0
        self.elapsed = 0.0
        self.stale = 0
        self.total_steps = 0

    def run(self) -> tuple[InverseDynamicsModel, tuple[Validation, ...]]:
        saved = self.resume.load() if self.resume else None
        while self.restart < self.config.restarts:
            self._make()
            if saved is not None:
                self._restore(saved)
                saved = None
                if self.restart >= self.config.restarts:
                    break
            self._run_restart()
            self.restart += 1
            self.step, self.elapsed, self.stale = 0, 0.0, 0
        model = build_model(self.description, self.config.model)
        model.load_state_dict(self.best)
        return model, tuple(self.curve)

    def _tensors(self, samples: Samples) -> _Batch:
        # A copy in C order: gathering a random batch from it is what every step starts with.
        return _Batch(
            *(
                torch.tensor(np.ascontiguousarray(a), dtype=torch.float32).to(self.config.device)
                for a in samples
            )
        )

    def _make(self) -> None:
        self.rng = torch.Generator().manual_seed(self.config.seed + self.restart)
        torch.manual_seed(self.config.seed + self.restart)  # initial weights and dropout
        self.model = build_model(self.description, self.config.model).to(self.config.device)
        self.average = build_model(self.description, self.config.model).to(self.config.device)
        self.average.load_state_dict(self.model.state_dict())
        self.average.eval()
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.Adam(
            self.parameters, lr=self.config.learning_rate, fused=True
        )

    def _run_restart(self) -> None:
        config = self.config
        n = len(self.train_batch.q)
        steps_per_epoch = math.ceil(n / self.batch_size)
        self.total_steps = config.epochs * steps_per_epoch
        next_validation = self.elapsed + config.validation_interval_s
        self.model.train()
        last = time.monotonic()
        while not self._is_finished():
            order = torch.randperm(n, generator=self.rng)
            for k, index in enumerate(order.split(self.batch_size)):
                loss = self._step(index)
                now = time.monotonic()
                self.elapsed += now - last
                last = now
                is_last = self._is_finished()
                is_due = (
                    k + 1 == steps_per_epoch if config.epochs else self.elapsed >= next_validation
                )
                if is_last or is_due:
                    self._validate(loss)
                    next_validation = self.elapsed + config.validation_interval_s
                    last = time.monotonic()  # validation is not training time
                if is_last:
                    break

    def _fraction(self) -> float:
        """Return the part of this start's budget that is used."""
        if self.total_steps:
            return self.step / self.total_steps
        return self.elapsed / (self.config.time_budget_s / self.config.restarts)

    def _is_finished(self) -> bool:
        patience = self.config.patience
        return self._fraction() >= 1 or bool(patience and self.stale >= patience)

    def _step(self, index: Tensor) -> Tensor:
        config = self.config
        decay = config.final_learning_rate / config.learning_rate
        warm_up = min(1.0, (self.step + 1) / 20)
        rate = config.learning_rate * decay ** self._fraction() * warm_up
        for group in self.optimizer.param_groups:
            group['lr'] = rate
        q, qd, qdd, tau = (a[index] for a in self.train_batch)
        predicted = self.model.inverse_dynamics(q, qd, qdd)
        loss = torque_objective(predicted, tau, self.weight, config.huber_delta)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, config.clip_norm)
        self.optimizer.step()
        self.step += 1
        # A young average forgets faster, so that the first validations mean something.
        past = min(config.average, (self.step - 1) / (self.step + 9))
        with torch.no_grad():
            for slow, fast in zip(self.average.parameters(), self.parameters, strict=True):
                slow.lerp_(fast, 1 - past)
        return loss.detach()

    def _validate(self, loss: Tensor) -> None:
        value = float(loss)
        if not math.isfinite(value):
            if self.resume:
                self.resume.delete()  # nothing to go on with
            raise ValueError(
                f'the training loss became {value} at step {self.step}; '
                f'lower learning_rate (now {self.config.learning_rate})'
            )
        held_out = self.held_out
        predicted = predict(self.average, held_out.q, held_out.qd, held_out.qdd)
        error = (predicted - held_out.tau.cpu().numpy()) * self.weight.cpu().numpy()
        score = 1.0 - float(np.square(error, dtype=float).mean())
        point = Validation(self.restart, self.step, self.elapsed, value, score)
        self.curve.append(point)
        self.stale += 1
        if point.score > self.best_score:
            self.best_score = point.score
            self.stale = 0
            state = self.average.state_dict()
            self.best = {k: v.detach().cpu().clone() for k, v in state.items()}
        if self.resume:
            self.resume.save(self._snapshot())
        if self.on_progress:
            overall = (self.restart + min(1.0, self._fraction())) / self.config.restarts
            self.on_progress(Progress(overall, self.restart, point, self.best_score))

    def _snapshot(self) -> dict[str, Any]:
        return {
            'tensors': {
                'model': self.model.state_dict(),
                'average': self.average.state_dict(),
                'best': self.best,
                'optimizer': {
                    f'{i}.{name}': value
                    for i, state in self.optimizer.state_dict()['state'].items()
                    for name, value in state.items()
                },
                'rng': {'batches': self.rng.get_state(), 'dropout': torch.get_rng_state()},
            },
            'values': {
                'config': to_mapping(self.config),
                'data': self.description.provenance['samples_sha256'],
                'restart': self.restart,
                'step': self.step,
                'elapsed': self.elapsed,
                'stale': self.stale,
                'best_score': self.best_score,
                'curve': [list(v) for v in self.curve],
            },
        }

    def _restore(self, saved: dict[str, Any]) -> None:
        values, tensors = saved['values'], saved['tensors']
        old, new = values['config'], to_mapping(self.config)
        changed = [f'{k} {old.get(k)!r} -> {new[k]!r}' for k in new if old.get(k) != new[k]]
        if values['data'] != self.description.provenance['samples_sha256']:
            changed.append('other data or derivatives')
        if changed:
            assert self.resume is not None
            raise ValueError(
                f'{self.resume.path}: belongs to a run with other settings '
                f'({"; ".join(changed)}); give the same ones or delete it'
            )
        self.restart = values['restart']
        self._make()
        for name in ('step', 'elapsed', 'stale', 'best_score'):
            setattr(self, name, values[name])
        self.curve = [Validation(*v) for v in values['curve']]
        self.model.load_state_dict(tensors['model'])
        self.average.load_state_dict(tensors['average'])
        self.best = tensors['best']
        self.rng.set_state(tensors['rng']['batches'])
        torch.set_rng_state(tensors['rng']['dropout'])
        states: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors['optimizer'].items():
            i, name = key.split('.', 1)
            states.setdefault(int(i), {})[name] = value
        whole = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**whole, 'state': states})


def resume_file(out: Path) -> ResumeFile:
    """Return the file beside the destination that keeps the state of a run."""
    return ResumeFile(out.parent / f'.{out.name}.training')
