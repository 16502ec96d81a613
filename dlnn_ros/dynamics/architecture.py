"""The architectures of the kinds of model, as plain settings; building them is in kinds.py."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
import math
from typing import Any

from dlnn_ros.config import from_mapping, to_mapping


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
    asymmetric : bool
        Term f of Eq. (8) apart for the two directions of motion.

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
    asymmetric: bool = False

    def __post_init__(self) -> None:
        for name in ('width', 'depth', 'dissipation_width', 'dissipation_depth'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} is {getattr(self, name)}, must be at least 1')
        for name in ('mass_eps', 'dissipation_eps', 'dissipation_scale', 'coulomb_gain'):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f'{name} is {getattr(self, name)}, must be finite and > 0')
        if not 0 <= self.dropout < 1:
            raise ValueError(f'dropout is {self.dropout}, must be in [0, 1)')
        if self.aux_size < 0:
            raise ValueError(f'aux_size is {self.aux_size}, must be >= 0')


# An element's numbers and their ratios stay far from the ends of float32.
SMALLEST, LARGEST = 1e-9, 1e9


@dataclass(frozen=True)
class Element:
    """
    One bristle element, Eq. (19).

    Attributes
    ----------
    zeta : float
        Way over which it bends to its limit [rad | m].
    slip_velocity : float or None
        Speed at which the limit has fallen to a half [rad/s | m/s]; None: it does not fall.
    relaxation_s : float or None
        Time in which it relaxes [s]; None: it does not.

    All are within `SMALLEST` and `LARGEST`.

    """

    zeta: float
    slip_velocity: float | None = None
    relaxation_s: float | None = None

    def __post_init__(self) -> None:
        for name in ('zeta', 'slip_velocity', 'relaxation_s'):
            value = getattr(self, name)
            if value is not None and not SMALLEST <= value <= LARGEST:
                raise ValueError(f'{name} is {value}, must be {SMALLEST:g} to {LARGEST:g}')


# What learned elements are kept within: [rad | m], [rad/s | m/s], [s].
BOUNDS = {'zeta': (1e-6, 1e-1), 'slip_velocity': (1e-5, 10.0), 'relaxation_s': (1e-2, 1e4)}

# Ways of a gearbox from its encoder's resolution up to visible motion, slip from creep upwards.
DEFAULT_ELEMENTS = (
    *(
        Element(zeta, slip_velocity)
        for zeta in (1e-5, 1e-4, 3e-4, 1e-3)
        for slip_velocity in (1e-4, 1e-3, 1e-2, None)
    ),
    Element(1e-5, 1e-3, 4.0),
    Element(1e-5, None, 4.0),
)


@dataclass(frozen=True)
class MemoryConfig:
    """
    Bank of bristle elements that every joint has, Eq. (19).

    Attributes
    ----------
    elements : tuple of Element
        The bank, or where a learned one starts.
    learned : bool
        Whether zeta, slip velocity and relaxation time are fitted for each joint, within
        `BOUNDS`; what is None stays so.
    weight_width : int
        Width of a network by which the weights depend on q; 0 for constant weights.

    """

    elements: tuple[Element, ...] = DEFAULT_ELEMENTS
    learned: bool = False
    weight_width: int = 0

    def __post_init__(self) -> None:
        if not self.elements:
            raise ValueError('elements is empty; friction with memory needs at least one')
        if self.weight_width < 0:
            raise ValueError(f'weight_width is {self.weight_width}, must be >= 0')
        for name, (lower, upper) in BOUNDS.items() if self.learned else ():
            for element in self.elements:
                value = getattr(element, name)
                if value is not None and not lower < value < upper:
                    within = f'{lower:g} to {upper:g}'
                    raise ValueError(f'{name} is {value}, a learned element starts in {within}')


@dataclass(frozen=True)
class DlnnMemoryConfig(DlnnConfig):
    """
    Architecture of a dLNN with friction that remembers how the joint moved.

    Attributes
    ----------
    memory : MemoryConfig
        Its elements; the others are those of :class:`DlnnConfig`.

    """

    memory: MemoryConfig = MemoryConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dissipative:
            raise ValueError('dissipative is false, which a model with friction cannot be')


@dataclass(frozen=True)
class LinearMemoryConfig:
    """
    Model that is linear in its parameters: trigonometric M and V, friction laws, memory; Eq. (21).

    Attributes
    ----------
    mass_degree, potential_degree : int or None
        Joints in a product of M and of V, >= 0; None: chosen by the recordings.
    stribeck_velocities : tuple of float
        Velocities of the laws by which dry friction falls with speed [rad/s | m/s], > 0.
    coulomb_gain : float
        k of tanh(k qd) [s/rad], > 0.
    memory : MemoryConfig or None
        Elements of friction with memory, fixed ones with constant weights; None for none.
    ridge : float or None
        Penalty on the coefficients of columns of unit size, > 0; None: chosen by the recordings.

    """

    mass_degree: int | None = None
    potential_degree: int | None = None
    stribeck_velocities: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3)
    coulomb_gain: float = 1e6
    memory: MemoryConfig | None = MemoryConfig()
    ridge: float | None = None

    def __post_init__(self) -> None:
        for name in ('mass_degree', 'potential_degree'):
            degree = getattr(self, name)
            if degree is not None and degree < 0:
                raise ValueError(f'{name} is {degree}, must be >= 0')
        for name in ('coulomb_gain', 'ridge'):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f'{name} is {value}, must be finite and > 0')
        if not all(0 < v < math.inf for v in self.stribeck_velocities):
            velocities = self.stribeck_velocities
            raise ValueError(f'stribeck_velocities {velocities} must be finite and > 0')
        if self.memory and (self.memory.learned or self.memory.weight_width):
            raise ValueError(
                'memory: learned elements and weights that depend on q are not linear in the '
                'parameters; use model dlnn_memory for them'
            )


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


# Ways beyond its inverse [rad | m] count by their logarithm, since friction settles within less.
WAY_GAIN = 1e2


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
    window : int
        Past samples that are inputs beside the present one, 0 to 64. It counts samples, so such
        a model means something only at the rate it was trained at.

    """

    width: int = 128
    depth: int = 2
    dropout: float = 0.1
    velocity_sign: bool = True
    window: int = 0

    def __post_init__(self) -> None:
        if self.width < 1 or self.depth < 1:
            raise ValueError(f'width {self.width} and depth {self.depth} must be at least 1')
        if not 0 <= self.dropout < 1:
            raise ValueError(f'dropout is {self.dropout}, must be in [0, 1)')
        if not 0 <= self.window <= 64:
            raise ValueError(f'window is {self.window}, must be 0 to 64')


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


ENSEMBLE_KINDS = ('dlnn', 'dlnn_memory', 'linear_memory', 'lnn')


@dataclass(frozen=True)
class EnsembleConfig:
    """
    Mean of several models of one architecture.

    Attributes
    ----------
    kind : str
        Of the members, one of `ENSEMBLE_KINDS`: those whose mean is as passive as they are.
    members : int
        Their number, >= 1.
    options : dict
        Options of that kind.

    """

    kind: str = 'dlnn_memory'
    members: int = 3
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in ENSEMBLE_KINDS:
            raise ValueError(
                f'kind {self.kind!r} cannot be averaged; members of an ensemble are of kind '
                f'{", ".join(ENSEMBLE_KINDS)}'
            )
        if self.members < 1:
            raise ValueError(f'members is {self.members}, must be at least 1')


CONFIGS: dict[str, type] = {
    'dlnn': DlnnConfig,
    'dlnn_memory': DlnnMemoryConfig,
    'lnn': DlnnConfig,
    'mlp': MlpConfig,
    'linear': LinearConfig,
    'linear_memory': LinearMemoryConfig,
    'ensemble': EnsembleConfig,
}


def make_config(kind: str, options: dict[str, Any], where: str) -> Any:
    """
    Build the configuration of a kind of model from a mapping of its options.

    Raises
    ------
    ValueError
        For an unknown kind or option, of the members of an ensemble too.

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
    config: Any = from_mapping(CONFIGS[kind], options, where)
    if isinstance(config, EnsembleConfig):
        member = make_config(config.kind, config.options, f'{where}: options')
        return replace(config, options=to_mapping(member))
    return config
