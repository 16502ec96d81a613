"""What serves a model, whatever evaluates it."""

from __future__ import annotations

import ctypes
from pathlib import Path
import time
from typing import Protocol

from dlnn_ros.learning.model_folder import ModelDescription
import numpy as np

from .backends.numpy_backend import NumpyPredictor

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
    has_memory : bool
        Whether it has friction with memory, which `start` sets.

    """

    description: ModelDescription
    backend: str
    has_memory: bool

    def reset(self) -> None:
        """Forget the past; the next sample starts a new motion."""

    def start(self, q: np.ndarray, effort: np.ndarray) -> None:
        """
        Set the memory from a robot at rest; without memory it does nothing.

        Parameters
        ----------
        q, effort : array, (n,)
            Position [rad | m], and the effort measured there in the model's units.

        """

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


def load_predictor(folder: Path | str, backend: str = 'cpu') -> Predictor:
    """
    Load a model, check it and warm it up.

    Parameters
    ----------
    folder : path
        Model folder.
    backend : str
        'cpu', 'cuda', or 'auto': the faster of those that are here, as measured.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        One line that names what is wrong: the file, the back-end, or a model whose torque is
        not finite in the middle of its own training range.

    """
    if backend not in BACKENDS:
        raise ValueError(f'backend {backend!r} must be one of {", ".join(BACKENDS)}')
    folder = Path(folder).expanduser()
    candidates: list[Predictor] = []
    if backend != 'cuda':
        candidates.append(NumpyPredictor(folder))
    if backend == 'cuda' or (backend == 'auto' and has_cuda_driver()):
        from .backends import torch_backend  # takes 2 s to import

        if backend == 'cuda' or torch_backend.has_cuda():
            candidates.append(torch_backend.TorchPredictor(folder, 'cuda'))
    return min(candidates, key=warm_up)


def has_cuda_driver() -> bool:
    """Return whether a CUDA driver is installed; asking torch would cost its import."""
    try:
        ctypes.CDLL('libcuda.so.1')
    except OSError:
        return False
    return True


def warm_up(predictor: Predictor) -> float:
    """
    Evaluate at three states of the training range; return the median time of a call [s].

    Raises
    ------
    ValueError
        If an effort is not finite there.

    """
    extent = predictor.description.training_range
    ranges = [(np.array(r.lower), np.array(r.upper)) for r in (extent.q, extent.qd, extent.qdd)]
    states = [tuple(lo + share * (up - lo) for lo, up in ranges) for share in (0.0, 0.5, 1.0)]
    times = []
    for k in range(WARM_UP_CALLS):
        q, qd, qdd = states[k % len(states)]
        started = time.perf_counter()
        effort = predictor.predict(q, qd, qdd, 1e-3)
        times.append(time.perf_counter() - started)
        if not np.isfinite(effort).all():
            raise ValueError(
                f'{predictor.description.kind} model gives effort {effort.tolist()} inside its '
                f'own training range, at q {q.tolist()}; it must not be served'
            )
    predictor.reset()
    return float(np.median(times))
