"""
Fit a network by gradients.

Adam with an exponentially falling learning rate over a budget of time or epochs; the weights
are averaged on the way (exponential moving average), the average is scored on the validation
part at fixed intervals, and the best one is kept, of all random starts or of each.  The score is
that of the weighted objective, one minus the mean squared error over the variance in training, so
that it means the same for a validation part that hardly moves.  The whole state is written at
those intervals beside the destination, so that an interrupted or killed run goes on from there.

A batch takes samples from anywhere; what they inherit from the past is computed along the whole
recordings beforehand, or, for elements that are learned, every few steps.
"""

from __future__ import annotations

from collections.abc import Callable
import math
import time
from typing import Any, NamedTuple

from dlnn_ros.config import to_mapping
from dlnn_ros.data.trajectory import Dataset, Samples
from dlnn_ros.dynamics.memory import FrictionMemory
import numpy as np
import torch
from torch import Tensor

from .checkpoint import build_model
from .evaluate import predict
from .model_folder import ModelDescription
from .objectives import torque_objective
from .observation import Contexts
from .resume import ResumeFile
from .settings import TrainConfig


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


class Outcome(NamedTuple):
    """The parameters of the best state, or of the best of each start, and the curve."""

    states: tuple[dict[str, Tensor], ...]
    curve: tuple[Validation, ...]


class _Batch(NamedTuple):
    q: Tensor
    qd: Tensor
    qdd: Tensor
    tau: Tensor


class Trainer:
    """
    State of a run, and its loop; everything that a resumed run needs is in its snapshot.

    Parameters
    ----------
    description : ModelDescription
        Of the model that every start fits.
    config : TrainConfig
        How.
    dataset : Dataset
        With roles.
    targets : array, (N, n)
        Torque at the valid samples of the training part: measured, or that of a teacher.
    resume : ResumeFile or None
        Where the state is kept.
    on_progress : callable or None
        Called after every validation.

    """

    def __init__(
        self,
        description: ModelDescription,
        config: TrainConfig,
        dataset: Dataset,
        targets: np.ndarray,
        resume: ResumeFile | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.description = description
        self.config = config
        parts = [dataset.role('train'), dataset.role('validation')]
        self.train_batch, self.held_out = (self._tensors(part.samples()) for part in parts)
        self.contexts, self.held_out_contexts = (Contexts(part, config.device) for part in parts)
        self.weight = 1.0 / self.train_batch.tau.std(0)
        self.train_batch.tau.copy_(torch.from_numpy(targets))
        self.resume = resume
        self.on_progress = on_progress
        self.batch_size = min(config.batch_size, len(self.train_batch.q))
        self.curve: list[Validation] = []
        self.best_score = -math.inf
        self.best: dict[str, Tensor] = {}
        self.members: list[dict[str, Tensor]] = []
        self.restart = 0
        self.step = 0
        self.elapsed = 0.0
        self.stale = 0
        self.total_steps = 0

    def run(self) -> Outcome:
        """Fit all starts."""
        saved = self.resume.load() if self.resume else None
        while self.restart < self.config.restarts:
            self._make()
            if saved is not None:
                self._restore(saved)
                saved = None
                if self.restart >= self.config.restarts:
                    break
            self._run_restart()
            if self.config.combine == 'average':
                self.members.append(self.best)
                self.best, self.best_score = {}, -math.inf
            self.restart += 1
            self.step, self.elapsed, self.stale = 0, 0.0, 0
        return Outcome(tuple(self.members or [self.best]), tuple(self.curve))

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
        recordings = len(self.contexts.paths)
        self.start = torch.nn.Parameter(
            torch.zeros(recordings, self.model.n, 1, device=self.config.device)
        )
        self.parameters = list(self.model.parameters())
        quick = [p for k, p in self.model.named_parameters() if k.startswith('memory.raw_')]
        if self._memory is not None:
            quick.append(self.start)
            self.parameters.append(self.start)
        slow = [p for p in self.parameters if not any(p is x for x in quick)]
        groups = [{'params': slow, 'pace': 1.0}]
        if quick:
            groups.append({'params': quick, 'pace': self.config.memory_rate})
        self.optimizer = torch.optim.Adam(groups, lr=self.config.learning_rate, fused=True)
        self._update_contexts()

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
            group['lr'] = rate * group['pace']
        q, qd, qdd, tau = (a[index] for a in self.train_batch)
        predicted = self.model.torque(q, qd, qdd, self._context(index))
        loss = torque_objective(predicted, tau, self.weight, config.huber_delta)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, config.clip_norm)
        self.optimizer.step()
        self.step += 1
        # A young average forgets faster, so that the first validations mean something.
        past = min(config.average, (self.step - 1) / (self.step + 9))
        with torch.no_grad():
            pairs = zip(self.average.parameters(), self.model.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, 1 - past)
        return loss.detach()

    @property
    def _memory(self) -> FrictionMemory | None:
        return getattr(self.model, 'memory', None)

    @property
    def _learns_elements(self) -> bool:
        return self._memory is not None and self._memory.config.learned

    @torch.no_grad()
    def _update_contexts(self) -> None:
        self.context = self.contexts.values(self.model)
        self.held_out_context = self.held_out_contexts.values(self.average)
        if self._memory is not None:
            self.response = self.contexts.responses(self.model)

    def _context(self, index: Tensor) -> Tensor:
        """Return the context of some training samples, with the fitted starts."""
        context = self.context
        if self._learns_elements and self.step % self.config.memory_interval == 0:
            context = self.contexts.values(self.model)
            self.context = context.detach()
            with torch.no_grad():
                self.response = self.contexts.responses(self.model)
        context = context[index]
        if self._memory is None:
            return context
        response = self.response[index] * torch.tanh(self.start)[self.contexts.recording[index]]
        return torch.cat([context[..., :1], context[..., 1:] + response], -1)

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
        if self._learns_elements:
            # All contexts, as a resumed run begins with those of the present elements.
            self._update_contexts()
        context = self.held_out_context
        predicted = predict(self.average, held_out.q, held_out.qd, held_out.qdd, context)
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

    @property
    def _teacher(self) -> str | None:
        return self.description.provenance.get('teacher', {}).get('sha256')

    @property
    def _meaning(self) -> list[Any]:
        return [self.description.config, self.description.scales]

    def _snapshot(self) -> dict[str, Any]:
        return {
            'tensors': {
                'model': self.model.state_dict(),
                'average': self.average.state_dict(),
                'best': self.best,
                **{f'member_{k}': state for k, state in enumerate(self.members)},
                'optimizer': {
                    f'{i}.{name}': value
                    for i, state in self.optimizer.state_dict()['state'].items()
                    for name, value in state.items()
                },
                'start': {'value': self.start.detach()},
                'rng': {'batches': self.rng.get_state(), 'dropout': torch.get_rng_state()},
            },
            'values': {
                'config': to_mapping(self.config),
                'data': self.description.provenance['samples_sha256'],
                'teacher': self._teacher,
                'model': self._meaning,
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
        if values.get('model') != self._meaning:
            changed.append('other defaults of the model')
        if values.get('teacher') != self._teacher:
            changed.append('another teacher, or one more or less')
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
        self._update_contexts()
        self.best = tensors['best']
        done = self.restart if self.config.combine == 'average' else 0
        self.members = [tensors[f'member_{k}'] for k in range(done)]
        self.start.data.copy_(tensors['start']['value'])
        self.rng.set_state(tensors['rng']['batches'])
        torch.set_rng_state(tensors['rng']['dropout'])
        states: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors['optimizer'].items():
            i, name = key.split('.', 1)
            states.setdefault(int(i), {})[name] = value
        whole = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**whole, 'state': states})
