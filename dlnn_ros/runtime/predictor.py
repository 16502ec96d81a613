"""What serves a model, whatever evaluates it."""

from __future__ import annotations

import contextlib
from pathlib import Path
import time
from typing import Protocol

from dlnn_ros.learning.model_folder import load_description, ModelDescription
import numpy as np

BACKENDS = ('auto', 'cpu', 'cuda')
WARM_UP_CALLS = 50


class Predictor(Protocol):
    """
    Effort of a motion, sample by sample.

    Attributes
    ----------
    description : ModelDescription
        Of the model served.
    backend : str
        What evaluates it.

    """

    description: ModelDescription
    backend: str

    def reset(self) -> None:
        """Forget the past; the next sample starts a new motion."""

    def predict(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray, dt: float) -> np.ndarray:
        """
        Return the effort, (n,), in the units that the model was trained on.

        Parameters
        ----------
        q, qd, qdd : array, (n,)
            State in the model's joint order [rad | m, /s, /s^2].
        dt : float
            Time since the last sample [s].

        """


def load_predictor(folder: Path | str, backend: str = 'cpu', threads: int = 1) -> Predictor:
    """
    Load a model, check it and warm it up.

    Parameters
    ----------
    folder : path
        Model folder.
    backend : str
        'cpu', 'cuda', or 'auto': the faster of those that are here, as measured.
    threads : int
        Threads of the numerical library.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        One line that names what is wrong: the file, the back-end, or a model whose torque is
        not finite in the middle of its own training range.

    """
    from .backends.torch_backend import TorchPredictor  # torch takes 2 s to import

    if backend not in BACKENDS:
        raise ValueError(f'backend {backend!r} must be one of {", ".join(BACKENDS)}')
    folder = Path(folder).expanduser()
    load_description(folder)
    if backend != 'auto':
        predictor = TorchPredictor(folder, backend, threads)
        warm_up(predictor)
        return predictor
    candidates = [TorchPredictor(folder, 'cpu', threads)]
    with contextlib.suppress(ValueError):  # auto means: cuda where there is one
        candidates.append(TorchPredictor(folder, 'cuda', threads))
    return min(candidates, key=warm_up)


def warm_up(predictor: Predictor) -> float:
    """Evaluate in the middle of the training range; return the median time of a call [s]."""
    extent = predictor.description.training_range
    q, qd, qdd = (
        (np.array(r.lower) + np.array(r.upper)) / 2 for r in (extent.q, extent.qd, extent.qdd)
    )
    times = []
    for _ in range(WARM_UP_CALLS):
        started = time.perf_counter()
        effort = predictor.predict(q, qd, qdd, 1e-3)
        times.append(time.perf_counter() - started)
    predictor.reset()
    if not np.isfinite(effort).all():
        raise ValueError(
            f'{predictor.description.kind} model gives {effort} in the middle of its training '
            'range; it must not be served'
        )
    return float(np.median(times))
