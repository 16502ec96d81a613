"""The kinds of model by name, and how each is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlnn_ros.config import to_mapping

from .architecture import (
    CONFIGS,
    DlnnConfig,
    EnsembleConfig,
    LinearConfig,
    LinearMemoryConfig,
    make_config,
    MlpConfig,
    Scales,
)
from .baselines import LinearModel, MlpModel
from .dlnn import LagrangianModel, make_dlnn
from .ensemble import EnsembleModel
from .linear_friction import LinearDissipation
from .memory import FrictionMemory
from .model import InverseDynamicsModel
from .trigonometric import TrigonometricConservative


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
    if isinstance(config, LinearMemoryConfig):
        return _make_linear_memory(config, scales, is_revolute, has_gravity)
    if isinstance(config, EnsembleConfig):
        return _make_ensemble(config, scales, is_revolute, has_gravity)
    assert isinstance(config, LinearConfig)
    return LinearModel(config, len(is_revolute))


def _make_linear_memory(
    config: LinearMemoryConfig, scales: Scales, is_revolute: Sequence[bool], has_gravity: bool
) -> LagrangianModel:
    mass_degree, potential_degree = config.mass_degree, config.potential_degree
    if mass_degree is None or potential_degree is None:
        raise ValueError('linear_memory: mass_degree and potential_degree are not chosen yet')
    conservative = TrigonometricConservative(
        is_revolute, scales.position, mass_degree, potential_degree, has_gravity
    )
    n = len(is_revolute)
    dissipation = LinearDissipation(n, config.stribeck_velocities, config.coulomb_gain)
    memory = None
    if config.memory is not None:
        memory = FrictionMemory(config.memory, is_revolute, scales.position)
    return LagrangianModel(n, conservative, dissipation, scales.torque, memory)


def _make_ensemble(
    config: EnsembleConfig, scales: Scales, is_revolute: Sequence[bool], has_gravity: bool
) -> EnsembleModel:
    inner = make_config(config.kind, config.options, 'members')
    members = []
    for _ in range(config.members):
        member = make_model(config.kind, inner, scales, is_revolute, has_gravity)
        assert isinstance(member, LagrangianModel)
        members.append(member)
    return EnsembleModel(members)
