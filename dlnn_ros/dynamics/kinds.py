"""The kinds of model by name, and how each is built from its description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlnn_ros.config import from_mapping, to_mapping

from .baselines import LinearConfig, LinearModel, MlpConfig, MlpModel
from .dlnn import DlnnConfig, make_dlnn, Scales
from .model import InverseDynamicsModel

CONFIGS: dict[str, type] = {
    'dlnn': DlnnConfig,
    'lnn': DlnnConfig,
    'mlp': MlpConfig,
    'linear': LinearConfig,
}


def make_config(kind: str, options: dict[str, Any], where: str) -> Any:
    """
    Build the configuration of a kind of model from a mapping of its options.

    Raises
    ------
    ValueError
        For an unknown kind or option.

    """
    if kind not in CONFIGS:
        raise ValueError(f'{where}: model kind {kind!r} must be one of {", ".join(CONFIGS)}')
    if kind == 'lnn':
        options = {**options, 'dissipative': False}
    return from_mapping(CONFIGS[kind], options, where)


def make_model(
    kind: str,
    config: Any,
    scales: Scales,
    is_revolute: Sequence[bool],
    has_gravity: bool = True,
) -> InverseDynamicsModel:
    """
    Build an untrained model.

    Parameters
    ----------
    kind : str
        A key of `CONFIGS`.
    config : dataclass
        Of the type that `CONFIGS` names for the kind.
    scales : Scales
        Units of torque, velocity, acceleration and position.
    is_revolute : sequence of bool, n
        Joint kinds.
    has_gravity : bool
        False for efforts recorded without the gravity torque.

    """
    if type(config) is not CONFIGS[kind]:
        raise TypeError(f'{kind} takes a {CONFIGS[kind].__name__}, got {to_mapping(config)}')
    if isinstance(config, DlnnConfig):
        return make_dlnn(config, scales, tuple(is_revolute), has_gravity)
    if isinstance(config, MlpConfig):
        return MlpModel(config, scales, is_revolute)
    assert isinstance(config, LinearConfig)
    return LinearModel(config, len(is_revolute))
