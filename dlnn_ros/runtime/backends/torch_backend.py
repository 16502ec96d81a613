"""The torch model itself, one sample at a time, on a CPU or a CUDA device."""

from __future__ import annotations

from pathlib import Path

from dlnn_ros.learning.checkpoint import load_model
import numpy as np
import torch


def has_cuda() -> bool:
    """Return whether torch can use a CUDA device here."""
    return torch.cuda.is_available()


class TorchPredictor:
    """
    Serve a model through torch; see :class:`~dlnn_ros.runtime.predictor.Predictor`.

    Parameters
    ----------
    folder : Path
        Model folder.
    device : str
        'cpu' or 'cuda'.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        One line that names the file and what is wrong with it.

    """

    def __init__(self, folder: Path, device: str) -> None:
        if device == 'cuda' and not has_cuda():
            raise ValueError(
                'backend cuda: torch finds no CUDA device here; use backend cpu or auto'
            )
        torch.set_num_threads(1)  # more only add jitter to a single sample
        # One sample costs the same in both precisions on a CPU; the calls dominate. A memory
        # lives from differences of positions that float32 would round away.
        self._model, self.description = load_model(folder, torch.float64, device)
        dtype = torch.float64
        self.has_memory = getattr(self._model, 'memory', None) is not None
        if device != 'cpu' and not self.has_memory:
            dtype = torch.float32
            self._model.to(dtype)
        self.backend = f'torch {device}'
        self._device = device
        n = self.description.robot.n
        self._gear_ratio = self.description.robot.gear_ratio
        self._input = torch.zeros(3, n, dtype=dtype)
        self._state: torch.Tensor | None = None

    def reset(self) -> None:
        """Forget the past; the next sample starts a new motion."""
        self._state = None

    @torch.inference_mode()
    def start(self, q: np.ndarray, effort: np.ndarray) -> None:
        """Begin at rest at q, (n,), with the effort, (n,), that was measured there."""
        pair = np.stack((q, effort * self._gear_ratio))
        position, tau = torch.from_numpy(pair).to(self._input.dtype).to(self._device)
        self._state = self._model.initial_state(position, tau)

    @torch.inference_mode()
    def predict(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray, dt: float) -> np.ndarray:
        """Return the effort, (n,), in the units that the model was trained on."""
        for row, values in zip(self._input, (q, qd, qdd), strict=True):
            row[:] = torch.from_numpy(values)
        inputs = self._input.to(self._device)
        if self._state is None:
            self._state = self._model.initial_state(inputs[0])
        tau, self._state = self._model.step(self._state, inputs[0], inputs[1], inputs[2], dt)
        return tau.cpu().numpy().astype(float) / self._gear_ratio
