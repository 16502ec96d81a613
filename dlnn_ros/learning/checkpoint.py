"""Torch models from and to model folders."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dlnn_ros.config import from_mapping
from dlnn_ros.dynamics.architecture import make_config, Scales
from dlnn_ros.dynamics.kinds import make_model
from dlnn_ros.dynamics.model import InverseDynamicsModel
import numpy as np
import torch

from .model_folder import DESCRIPTION_FILE, load_description, load_params, ModelDescription


class LoadedModel(NamedTuple):
    """A model in evaluation mode and its description."""

    model: InverseDynamicsModel
    description: ModelDescription


def build_model(description: ModelDescription, where: str) -> InverseDynamicsModel:
    """Build the untrained model that a description speaks of."""
    config = make_config(description.kind, description.config, f'{where}: config')
    scales = from_mapping(Scales, description.scales, f'{where}: scales')
    return make_model(
        description.kind,
        config,
        scales,
        description.robot.is_revolute.tolist(),
        description.has_gravity,
    )


def load_model(
    folder: Path | str, dtype: torch.dtype = torch.float64, device: str = 'cpu'
) -> LoadedModel:
    """
    Load a model for evaluation.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        One line that names the file and what is wrong with it.

    """
    description = load_description(folder)
    path = Path(folder) / DESCRIPTION_FILE
    model = build_model(description, str(path))
    params = load_params(folder, description)
    expected = {k: tuple(v.shape) for k, v in model.state_dict().items()}
    given = {k: v.shape for k, v in params.items()}
    if expected != given:
        wrong = sorted(k for k in expected | given if expected.get(k) != given.get(k))
        raise ValueError(
            f'{path}: the parameters do not fit a {description.kind} of this configuration: '
            f'{wrong[0]} is {given.get(wrong[0])}, expected {expected.get(wrong[0])}'
        )
    model.load_state_dict({k: torch.from_numpy(v) for k, v in params.items()})
    return LoadedModel(model.to(dtype=dtype, device=device).eval(), description)


def model_tensors(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return the parameters as arrays on the CPU, for :func:`~.model_folder.save_model`."""
    return {k: v.detach().cpu().numpy() for k, v in model.state_dict().items()}
