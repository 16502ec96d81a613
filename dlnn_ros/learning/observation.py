"""A model's context along recorded motion: as a node computes it, or as the recording shows it."""

from __future__ import annotations

from collections.abc import Iterable

from dlnn_ros.data.observation import observed_path, Path, sample_path
from dlnn_ros.data.trajectory import Dataset
from dlnn_ros.dynamics.dlnn import LagrangianModel
from dlnn_ros.dynamics.model import InverseDynamicsModel
import numpy as np
from scipy.fft import next_fast_len
import torch
from torch import Tensor


def context_at_samples(
    model: InverseDynamicsModel, path: Path, state: Tensor | None = None
) -> Tensor:
    """
    Return the context of each sample of a recording, (N, n, K).

    Parameters
    ----------
    model : InverseDynamicsModel
        Of any precision; positions are taken in float64.
    path : Path
        Of :func:`~dlnn_ros.data.observation.sample_path` or `observed_path`.
    state : Tensor, (n, state_size), or None
        At the first point; that of an unknown start where None.

    """
    q, qd, dt = _tensors(model, path)
    start = model.initial_state(q[0]) if state is None else state
    return look(model.context(start, q, qd, dt).values, path)


def start_response(model: InverseDynamicsModel, path: Path) -> Tensor:
    """Return what is left at each sample of a start with all elements bent to 1, (N, n, J)."""
    assert isinstance(model, LagrangianModel)
    assert model.memory is not None
    q, qd, dt = _tensors(model, path)
    return look(model.memory.response(model.initial_state(q[0]), q, qd, dt), path)


def look(values: Tensor, path: Path) -> Tensor:
    """Filter (M, n, K) over the points of a path and take it at the samples, (N, n, K)."""
    if path.kernel is not None:
        kernel = torch.as_tensor(path.kernel, dtype=values.dtype, device=values.device)
        values = _convolve(values.flatten(1).T, kernel).T.view_as(values)
    point = torch.as_tensor(path.point, device=values.device)
    share = torch.as_tensor(path.share, dtype=values.dtype, device=values.device)[:, None, None]
    here = values[point]
    if not path.share.any():
        return here
    following = values[(point + 1).clamp_max(len(values) - 1)]
    return here + share * (following - here)


def _convolve(rows: Tensor, kernel: Tensor) -> Tensor:
    """Return rows, (C, M), convolved with a symmetric kernel, their ends held; by FFT."""
    reach = len(kernel) // 2
    padded = torch.nn.functional.pad(rows.unsqueeze(0), [reach] * 2, 'replicate').squeeze(0)
    size = next_fast_len(padded.shape[1] + len(kernel) - 1, real=True)
    spectrum = torch.fft.rfft(padded, size) * torch.fft.rfft(kernel, size)
    return torch.fft.irfft(spectrum, size)[:, 2 * reach : 2 * reach + rows.shape[1]]


def _tensors(model: InverseDynamicsModel, path: Path) -> tuple[Tensor, Tensor, Tensor]:
    device = next(model.parameters()).device
    q, qd, dt = (
        torch.tensor(a, dtype=torch.float64, device=device) for a in (path.q, path.qd, path.dt)
    )
    return q, qd, dt


class Contexts:
    """
    What the samples of some recordings inherit from those before, as their effort shows it.

    A model whose context does not jump is looked at from sample to sample, as it is served: its
    window counts samples.
    The state at the start of a recording is not known.  In training it is a number per recording
    and joint in (-1, 1), by which all elements are bent and which is fitted with the model; the
    context is linear in it.  Elsewhere it is 0.
    """

    def __init__(self, dataset: Dataset, device: str, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        used = [t for t in dataset if t.valid.any()]
        self.paths = [observed_path(t) for t in used]
        self.sample_paths = [sample_path(t) for t in used]
        self.valid = [torch.from_numpy(np.flatnonzero(t.valid)).to(device) for t in used]
        counts = torch.tensor([len(v) for v in self.valid])
        self.recording = torch.repeat_interleave(torch.arange(len(counts)), counts).to(device)

    def values(self, model: InverseDynamicsModel) -> Tensor:
        """Return the context from a start at 0, (N, n, K)."""
        paths = self.paths if model.is_sharp else self.sample_paths
        return self._collect(context_at_samples(model, path) for path in paths)

    def responses(self, model: InverseDynamicsModel) -> Tensor:
        """Return what is left of a start at 1, (N, n, J)."""
        return self._collect(start_response(model, path) for path in self.paths)

    def _collect(self, parts: Iterable[Tensor]) -> Tensor:
        pairs = zip(parts, self.valid, strict=True)
        return torch.cat([part[valid].to(self.dtype) for part, valid in pairs])
