"""The architectures of the kinds of model, as plain settings; building them is in kinds.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dlnn_ros.config import from_mapping


@dataclass(frozen=True)
class DlnnConfig:
    """
    Architecture of a dLNN.

    Attributes
    ----------
    width, depth : int
        Hidden layers of the conservative network.
    dissipation_width, dissipation_depth : int
        Hidden layers of the dissipation network.
    dropout : float
        In the conservative network, in [0, 1).
    mass_eps, dissipation_eps : float
        Lower bounds of the eigenvalues of M and D in units of the torque scale, > 0.
    dissipation_scale : float
        Factor on chol_D, > 0.
    coulomb : bool
        Term f tanh(k qd), Eq. (8).
    coulomb_gain : float
        k [s/rad], > 0.
    dissipative : bool
        False gives a Lagrangian network without friction (DeLaN, LNN).
    aux_size : int
        Auxiliary inputs of the dissipation network, >= 0.

    """

    width: int = 128
    depth: int = 3
    dissipation_width: int = 64
    dissipation_depth: int = 3
    dropout: float = 0.1
    mass_eps: float = 1e-2
    dissipation_eps: float = 1e-2
    dissipation_scale: float = 0.1
    coulomb: bool = True
    coulomb_gain: float = 1e6
    dissipative: bool = True
    aux_size: int = 0

    def __post_init__(self) -> None:
        for name in ('width', 'depth', 'dissipation_width', 'dissipation_depth'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} is {getattr(self, name)}, must be at least 1')
        for name in ('mass_eps', 'dissipation_eps', 'dissipation_scale', 'coulomb_gain'):
            if not getattr(self, name) > 0:
                raise ValueError(f'{name} is {getattr(self, name)}, must be > 0')
        if not 0 <= self.dropout < 1:
            raise ValueError(f'dropout is {self.dropout}, must be in [0, 1)')
        if self.aux_size < 0:
            raise ValueError(f'aux_size is {self.aux_size}, must be >= 0')


@dataclass(frozen=True)
class Scales:
    """
    Units the networks work in, taken from the training data once.

    Attributes
    ----------
    torque : float
        One factor on M, V and D [N m]: one, so that energies stay energies.
    velocity, acceleration : tuple of float
        Typical speed and acceleration per joint [rad/s | m/s, /s^2].
    position : tuple of float
        Typical travel per joint [m]; used for prismatic joints only.

    """

    torque: float
    velocity: tuple[float, ...]
    acceleration: tuple[float, ...]
    position: tuple[float, ...]

    def __post_init__(self) -> None:
        if not min(self.torque, *self.velocity, *self.acceleration, *self.position) > 0:
            raise ValueError(f'scales must be > 0, got {self}')


@dataclass(frozen=True)
class MlpConfig:
    """
    Architecture of the perceptron baseline.

    Attributes
    ----------
    width, depth : int
        Hidden layers.
    dropout : float
        In [0, 1).
    velocity_sign : bool
        Whether sign(qd) is an input, which Coulomb friction needs.

    """

    width: int = 128
    depth: int = 2
    dropout: float = 0.1
    velocity_sign: bool = True

    def __post_init__(self) -> None:
        if self.width < 1 or self.depth < 1:
            raise ValueError(f'width {self.width} and depth {self.depth} must be at least 1')
        if not 0 <= self.dropout < 1:
            raise ValueError(f'dropout is {self.dropout}, must be in [0, 1)')


@dataclass(frozen=True)
class LinearConfig:
    """
    Inputs of the linear baseline beside q, qd and qdd.

    Attributes
    ----------
    bias : bool
        A constant per joint.
    velocity_sign : bool
        sign(qd).
    ridge : float
        Penalty on standardised coefficients, >= 0.

    """

    bias: bool = True
    velocity_sign: bool = True
    ridge: float = 1e-6

    def __post_init__(self) -> None:
        if not self.ridge >= 0:
            raise ValueError(f'ridge is {self.ridge}, must be >= 0')


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
    dissipative = kind != 'lnn'
    if kind in ('dlnn', 'lnn') and options.get('dissipative', dissipative) != dissipative:
        raise ValueError(
            f'{where}: dissipative {options["dissipative"]} does not go with model {kind!r}; '
            "'dlnn' is the one with dissipation, 'lnn' the one without"
        )
    if kind == 'lnn':
        options = {**options, 'dissipative': False}
    return from_mapping(CONFIGS[kind], options, where)
