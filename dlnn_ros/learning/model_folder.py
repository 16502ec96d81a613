"""
A model on disk: `model.yaml`, which says everything, and `params.safetensors`.

Reading needs neither torch nor the library that fitted the model.  A folder is written under
a temporary name and renamed, so a model is there whole or not at all; the parameters' checksum
is part of the description, so a damaged file is refused and not served.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
import hashlib
import json
import math
import os
from pathlib import Path
import shutil
import tempfile
from typing import Any

from dlnn_ros.config import from_mapping, load_yaml, Robot, to_mapping
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors
import yaml

FORMAT = 2
DESCRIPTION_FILE = 'model.yaml'
PARAMS_FILE = 'params.safetensors'
CURVE_FILE = 'curve.csv'  # of the training; not needed to serve


@dataclass(frozen=True)
class Range:
    """Smallest and largest value per joint seen in training."""

    lower: tuple[float, ...]
    upper: tuple[float, ...]


@dataclass(frozen=True)
class TrainingRange:
    """Where the model has seen data: position [rad | m], velocity, acceleration, effort."""

    q: Range
    qd: Range
    qdd: Range
    tau: Range


@dataclass(frozen=True)
class ModelDescription:
    """
    Everything about a model but its parameters.

    Attributes
    ----------
    kind : str
        'dlnn', 'mlp', ...
    config : dict
        Options of that kind.
    scales : dict
        Units that the networks work in.
    robot : Robot
        Joints, kinds, meaning of effort, gravity.
    rate_hz : float
        Sample rate of the training data [Hz].
    derivatives : str
        How velocity and acceleration of the training data were derived.
    training_range : TrainingRange
        Extent of the training data.
    position_noise : tuple of float
        Standard deviation of the noise of each joint's position in the training data [rad | m];
        empty where it was not measured.
    provenance : dict
        Data source, number of samples, training settings, seed, time.
    metrics : dict
        Scores by part of the data set.
    versions : dict
        Of the libraries that made it.
    sha256 : str
        Checksum of `params.safetensors` and of what gives the numbers in it their meaning.
    format : int
        Version of this layout.

    """

    kind: str
    config: dict[str, Any]
    scales: dict[str, Any]
    robot: Robot
    rate_hz: float
    derivatives: str
    training_range: TrainingRange
    position_noise: tuple[float, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    sha256: str = ''
    format: int = FORMAT

    def __post_init__(self) -> None:
        n = self.robot.n
        lengths = {
            f'training_range.{name}.{end}': len(getattr(getattr(self.training_range, name), end))
            for name in ('q', 'qd', 'qdd', 'tau')
            for end in ('lower', 'upper')
        }
        lengths |= {
            f'scales.{k}': len(v) for k, v in self.scales.items() if isinstance(v, (list, tuple))
        }
        if not all(0 <= x < math.inf for x in self.position_noise):
            raise ValueError(f'position_noise is {self.position_noise}, must be finite and >= 0')
        if self.position_noise:
            lengths['position_noise'] = len(self.position_noise)
        for name, length in lengths.items():
            if length != n:
                raise ValueError(f'{name} has {length} numbers for {n} joints')

    @property
    def has_gravity(self) -> bool:
        """Whether the effort that the model gives contains the gravity torque."""
        return self.robot.effort.kind != 'no_gravity'


def save_model(
    folder: Path | str,
    description: ModelDescription,
    tensors: Mapping[str, np.ndarray],
    overwrite: bool = False,
    extra_files: Mapping[str, bytes] | None = None,
) -> Path:
    """
    Write a model folder, whole or not at all.

    Raises
    ------
    FileExistsError
        If the folder exists and is no model folder, or is one and `overwrite` is not set.
    ValueError
        If a parameter is not finite.

    """
    folder = Path(folder)
    check_destination(folder, overwrite)
    for name, array in tensors.items():
        if not np.isfinite(array).all():
            raise ValueError(f'{folder}: parameter {name} is not finite; the model is not saved')
    params = save_tensors({k: np.ascontiguousarray(v) for k, v in tensors.items()})
    text = to_mapping(description)
    text['sha256'] = checksum(description, params)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f'.{folder.name}.', dir=folder.parent))
    try:
        work.chmod(0o755)
        (work / PARAMS_FILE).write_bytes(params)
        (work / DESCRIPTION_FILE).write_text(yaml.safe_dump(text, sort_keys=False, width=99))
        for name, content in (extra_files or {}).items():
            (work / name).write_bytes(content)
        if folder.exists():
            old = Path(tempfile.mkdtemp(prefix=f'.{folder.name}.old.', dir=folder.parent))
            os.rename(folder, old / folder.name)
            try:
                os.rename(work, folder)
            except BaseException:
                os.rename(old / folder.name, folder)
                old.rmdir()
                raise
            shutil.rmtree(old)
        else:
            os.rename(work, folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return folder


def checksum(description: ModelDescription, params: bytes) -> str:
    """Return the checksum of the parameters and of what they mean."""
    meaning = to_mapping(
        (
            description.kind,
            description.config,
            description.scales,
            description.robot,
            description.rate_hz,
            description.derivatives,
            description.training_range,
            description.position_noise,
        )
    )
    return hashlib.sha256(params + json.dumps(meaning, sort_keys=True).encode()).hexdigest()


def check_destination(folder: Path | str, overwrite: bool) -> None:
    """
    Check before long work that a model can be written to `folder`.

    Raises
    ------
    FileExistsError
        As :func:`save_model` does.

    """
    folder = Path(folder)
    if not folder.exists():
        return
    if not (folder / DESCRIPTION_FILE).is_file():
        raise FileExistsError(f'{folder}: exists and is not a model folder; choose another --out')
    if not overwrite:
        raise FileExistsError(
            f'{folder}: a model is there already; pass --overwrite to replace it'
        )


def load_description(folder: Path | str) -> ModelDescription:
    """
    Read the description of a model.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        One line that names the file and what is wrong with it.

    """
    folder = _model_folder(folder)
    path = folder / DESCRIPTION_FILE
    mapping = load_yaml(path)
    if isinstance(mapping, Mapping) and mapping.get('format', FORMAT) != FORMAT:
        raise ValueError(
            f'{path}: format {mapping["format"]!r} is not {FORMAT}; '
            'the model was made by another version of dlnn_ros'
        )
    return from_mapping(ModelDescription, mapping, str(path))


def load_params(folder: Path | str, description: ModelDescription) -> dict[str, np.ndarray]:
    """
    Read the parameters of a model and check them against the description.

    Raises
    ------
    FileNotFoundError, ValueError
        One line that names the file and what is wrong with it.

    """
    path = _model_folder(folder) / PARAMS_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f'{path}: no such file; the model folder is incomplete') from None
    if checksum(description, content) != description.sha256:
        raise ValueError(
            f'{path}: checksum differs from the one in {DESCRIPTION_FILE}; one of the two files '
            'is damaged, was edited, or belongs to another model'
        )
    try:
        tensors = load_tensors(content)
    except SafetensorError as error:
        raise ValueError(f'{path}: not a safetensors file ({error})') from None
    for name, array in tensors.items():
        if not np.isfinite(array).all():
            raise ValueError(f'{path}: parameter {name} is not finite')
    return tensors


def _model_folder(folder: Path | str) -> Path:
    folder = Path(folder).expanduser()
    if not folder.exists():
        raise FileNotFoundError(f'{folder}: no such model folder')
    if not folder.is_dir():
        raise ValueError(f'{folder}: is a file, expected a model folder with {DESCRIPTION_FILE}')
    if not (folder / DESCRIPTION_FILE).is_file():
        raise FileNotFoundError(f'{folder}: has no {DESCRIPTION_FILE}, so it is no model folder')
    return folder
