"""How a model is fitted, as plain settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dlnn_ros.dynamics.architecture import ENSEMBLE_KINDS, make_config

SOLVED = ('linear', 'linear_memory')  # in one linear solve


@dataclass(frozen=True)
class TrainConfig:
    """
    How a model is fitted.

    Attributes
    ----------
    model : str
        Kind of model, a key of :data:`dlnn_ros.dynamics.architecture.CONFIGS`.
    options : dict
        Options of that kind, see its configuration class.
    time_budget_s : float
        Training time of all restarts together [s]; used where `epochs` is 0.
    epochs : int
        Number of passes through the data per restart; 0 for the time budget. Reproducible.
    restarts : int
        Number of random starts, each with its share of the budget.
    combine : str
        What becomes of the starts: 'best', the one that validation prefers, or 'average', an
        ensemble of all of them, each at its best.
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
    memory_rate : float
        Learning rate of the weights and elements of a memory and of its starts, as a multiple of
        the others'.
    memory_interval : int
        Steps between two updates of learned elements, which need a run along all recordings.

    """

    model: str = 'dlnn'
    options: dict[str, Any] = field(default_factory=dict)
    time_budget_s: float = 60.0
    epochs: int = 0
    restarts: int = 1
    combine: str = 'best'
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
    memory_rate: float = 10.0
    memory_interval: int = 10

    def __post_init__(self) -> None:
        make_config(self.model, self.options, 'options')
        if self.model == 'ensemble':
            raise ValueError(
                "an ensemble is trained as its members: give their model, combine 'average' and "
                'restarts'
            )
        for name in ('time_budget_s', 'validation_interval_s', 'clip_norm', 'memory_rate'):
            if not getattr(self, name) > 0:
                raise ValueError(f'{name} is {getattr(self, name)}, must be > 0')
        if not 0 < self.final_learning_rate <= self.learning_rate:
            raise ValueError(
                f'learning rates {self.learning_rate} to {self.final_learning_rate} '
                'must fall and be > 0'
            )
        for name in ('restarts', 'batch_size', 'memory_interval'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} is {getattr(self, name)}, must be at least 1')
        for name in ('epochs', 'patience', 'threads', 'huber_delta'):
            if getattr(self, name) < 0:
                raise ValueError(f'{name} is {getattr(self, name)}, must be >= 0')
        if not 0 <= self.average < 1:
            raise ValueError(f'average is {self.average}, must be in [0, 1)')
        if self.device not in ('cpu', 'cuda'):
            raise ValueError(f"device is {self.device!r}, must be 'cpu' or 'cuda'")
        if self.combine not in ('best', 'average'):
            raise ValueError(f"combine is {self.combine!r}, must be 'best' or 'average'")
        if self.combine == 'average':
            if self.model not in ENSEMBLE_KINDS or self.model in SOLVED:
                kinds = ', '.join(kind for kind in ENSEMBLE_KINDS if kind not in SOLVED)
                raise ValueError(
                    f"combine is 'average', which model {self.model} does not take; {kinds} do"
                )
            if self.restarts < 2:
                raise ValueError(
                    f"combine is 'average' with restarts {self.restarts}, must be at least 2"
                )
