"""
Frozen configuration dataclasses and the one way to fill them from YAML.

A dataclass holds the default, the type and the rule of each setting; a mapping from a YAML
file, a command line or a model folder is turned into it by :func:`from_mapping`, which refuses
unknown keys with a suggestion and wrong types with both values.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
from dataclasses import dataclass, field
import difflib
import math
import os
from pathlib import Path
import sys
import types
import typing
from typing import Any, TypeVar

import numpy as np
import yaml

T = TypeVar('T')

JOINT_KINDS = ('revolute', 'continuous', 'prismatic')
# A joint slower than this counts as at rest [rad/s | m/s]: industrial encoders cannot tell.
REST_SPEED = 2e-3
EFFORT_KINDS = ('joint', 'motor', 'no_gravity')
STANDARD_GRAVITY = (0.0, 0.0, -9.81)


def from_mapping(cls: type[T], mapping: Any, where: str) -> T:
    """
    Build the dataclass `cls` from a mapping, strictly.

    Parameters
    ----------
    cls : type
        A dataclass; nested dataclasses, `tuple[x, ...]`, `x | None` and plain types are known.
    mapping : Mapping
        Keys are field names.
    where : str
        File or option named in errors.

    Raises
    ------
    ValueError
        Unknown or missing key, or a value against a rule of the dataclass.
    TypeError
        A value of the wrong type.

    """
    if not isinstance(mapping, Mapping):
        raise TypeError(f'{where}: expected a mapping with keys, got {mapping!r}')
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in mapping:
        if key not in fields:
            close = difflib.get_close_matches(str(key), list(fields), n=1)
            hint = (
                f'; did you mean {close[0]!r}?' if close else f'; known keys: {", ".join(fields)}'
            )
            raise ValueError(f'{where}: unknown key {key!r}{hint}')
    for name, f in fields.items():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and name not in mapping:
            raise ValueError(f'{where}: key {name!r} is missing')
    values = {k: _convert(hints[k], v, f'{where}: {k}') for k, v in mapping.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f'{where}: {error}') from None


def to_mapping(value: Any) -> Any:
    """Turn a dataclass into plain YAML/JSON types; the inverse of :func:`from_mapping`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: to_mapping(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init
        }
    if isinstance(value, Mapping):
        return {str(k): to_mapping(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_mapping(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return value


class _StrictLoader(yaml.SafeLoader):
    """The safe loader, which also refuses a key that appears twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            if key.tag != 'tag:yaml.org,2002:merge' and isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f'key {key.value!r} appears twice', key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_yaml(path: Path | str) -> Any:
    """Read a YAML file; a syntax error becomes one line that names file, line and column."""
    path = Path(path)
    try:
        text = path.read_text(encoding='utf-8')
    except FileNotFoundError:
        raise FileNotFoundError(f'{path}: no such file') from None
    except IsADirectoryError:
        raise ValueError(f'{path}: is a folder, expected a YAML file') from None
    except UnicodeDecodeError:
        raise ValueError(f'{path}: is not a UTF-8 text file') from None
    try:
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, 'problem_mark', None)
        at = f':{mark.line + 1}:{mark.column + 1}' if mark else ''
        problem = getattr(error, 'problem', None) or 'not valid YAML'
        raise ValueError(f'{path}{at}: {problem}') from None


def share_roots() -> list[Path]:
    """Return the folders :func:`share_path` looks in, first match first."""
    prefixes = [p for p in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if p]
    here = Path(__file__).resolve()
    # lib/pythonX.Y/site-packages/dlnn_ros/config.py lies under the prefix that has the share
    # folder, whichever scheme installed it.
    above = [str(p) for p in list(here.parents)[4:5]]
    shares = [Path(p) / 'share' / 'dlnn_ros' for p in [*prefixes, *above, sys.prefix]]
    return [here.parent.parent, *dict.fromkeys(shares)]


def share_path(relative: str) -> Path:
    """
    Find a file of this package's share folder (config/, launch/).

    Looked for beside the source tree, then in the installed share folders: AMENT_PREFIX_PATH,
    the prefix this file is installed under, the interpreter's.

    Raises
    ------
    FileNotFoundError
        Names every place tried.

    """
    roots = share_roots()
    for root in roots:
        if (root / relative).exists():
            return root / relative
    tried = ', '.join(str(root / relative) for root in roots)
    raise FileNotFoundError(f'{relative}: not found; tried {tried}')


def _yaml_number(value: float) -> str:
    """Write a number so that YAML 1.1 reads a number: its exponents need a point and a sign."""
    mantissa, e, exponent = repr(value).partition('e')
    return mantissa + ('' if '.' in mantissa or not e else '.0') + e + exponent


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = [a for a in typing.get_args(hint) if a is not type(None)]
        if value is None and type(None) in typing.get_args(hint):
            return None
        return _convert(options[0], value, where)
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        if not isinstance(value, (list, tuple)):
            raise TypeError(f'{where} must be a list, got {value!r}')
        return tuple(_convert(inner, v, f'{where}[{i}]') for i, v in enumerate(value))
    if (origin or hint) in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise TypeError(f'{where} must be a mapping, got {value!r}')
        inner = (typing.get_args(hint) or (Any, Any))[1]
        return {k: _convert(inner, v, f'{where}: {k}') for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else from_mapping(hint, value, where)  # type: ignore
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            tip = ''
            if isinstance(value, str):
                try:
                    tip = f' (a string in YAML; write {_yaml_number(float(value))})'
                except ValueError:
                    tip = ' (a string in YAML)'
            raise TypeError(f'{where} must be a number, got {value!r}{tip}')
        if math.isnan(value):
            raise ValueError(f'{where} is NaN')
        return float(value)
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f'{where} must be an integer, got {value!r}')
        return value
    if hint is bool:
        if not isinstance(value, bool):
            raise TypeError(f'{where} must be true or false, got {value!r}')
        return value
    if hint is str:
        if not isinstance(value, str):
            raise TypeError(f'{where} must be a string, got {value!r}')
        return value
    return value


@dataclass(frozen=True)
class Effort:
    """
    What a number in `effort` means.

    Attributes
    ----------
    kind : str
        'joint': torque (force) the joint actuator gives, on the joint side, gravity included;
        'motor': the same on the motor side, `tau_joint = gear_ratio * effort`;
        'no_gravity': joint side with the gravity torque already taken out.
    gear_ratio : tuple of float
        Joint torque per unit of effort, one per joint; only for 'motor'.

    """

    kind: str = 'joint'
    gear_ratio: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in EFFORT_KINDS:
            raise ValueError(f'effort kind is {self.kind!r}, must be one of {EFFORT_KINDS}')
        if (self.kind == 'motor') != bool(self.gear_ratio):
            raise ValueError(
                f'effort kind {self.kind!r} with gear_ratio {self.gear_ratio}: '
                "'motor' needs one ratio per joint, the other kinds none"
            )
        if any(not math.isfinite(r) or r == 0 for r in self.gear_ratio):
            raise ValueError(f'gear_ratio must be finite and not zero, got {self.gear_ratio}')


@dataclass(frozen=True)
class Limits:
    """Joint limits, one number per joint or empty: position [rad|m], velocity, effort [N m|N]."""

    position_lower: tuple[float, ...] = ()
    position_upper: tuple[float, ...] = ()
    velocity: tuple[float, ...] = ()
    effort: tuple[float, ...] = ()


@dataclass(frozen=True)
class Counterbalance:
    """
    Hydraulic spring that carries part of one joint's gravity load.

    A cylinder with a gas accumulator between a point on the parent link, at `anchor_parent`
    from the joint axis, and one on the child link, at `anchor_child`; both are in line with
    the axis, the cylinder at its shortest, where `q + angle_offset = 0`.

    Attributes
    ----------
    joint : str
        Revolute joint it acts on.
    anchor_parent, anchor_child : float
        Distances of the two anchors from the joint axis [m].
    piston_diameter, rod_diameter : float
        The gas pressure acts on the ring between them [m].
    gas_mass, gas_constant, temperature, compressibility : float
        Gas in the accumulator [kg], [J/(kg K)], [K], [-].
    gas_volume : float
        Gas volume at the cylinder's shortest length [m^3].
    angle_offset : float
        Added to the joint position [rad].

    """

    joint: str
    anchor_parent: float
    anchor_child: float
    piston_diameter: float
    rod_diameter: float
    gas_mass: float
    gas_volume: float
    gas_constant: float
    temperature: float
    compressibility: float = 1.0
    angle_offset: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in ('joint', 'angle_offset'):
                continue
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f'counterbalance {name} must be positive, got {value}')
        if not math.isfinite(self.angle_offset):
            raise ValueError(f'counterbalance angle_offset is {self.angle_offset}')
        if self.anchor_parent == self.anchor_child:
            raise ValueError('counterbalance anchors must differ, the cylinder has no length')
        if self.rod_diameter >= self.piston_diameter:
            raise ValueError(
                f'counterbalance rod_diameter {self.rod_diameter} must be smaller than '
                f'piston_diameter {self.piston_diameter}'
            )
        stroke = 2 * min(self.anchor_parent, self.anchor_child)
        if stroke * self.ring_area >= self.gas_volume:
            raise ValueError(
                f'counterbalance gas_volume {self.gas_volume} m^3 is used up by the full stroke, '
                f'{stroke * self.ring_area:.3g} m^3'
            )

    @property
    def ring_area(self) -> float:
        """Area the gas pressure acts on [m^2]."""
        return math.pi / 4 * (self.piston_diameter**2 - self.rod_diameter**2)


@dataclass(frozen=True)
class Robot:
    """
    What a recording and a model must agree on: joints, kinds, meaning of effort, gravity.

    Attributes
    ----------
    name : str
        Robot name; free text.
    joints : tuple of str
        Joint names; their order is the order of every array in this package.
    kinds : tuple of str
        'revolute', 'continuous' or 'prismatic', one per joint.
    effort : Effort
        Meaning of recorded and served effort.
    gravity : tuple of float
        Gravity vector in the base frame [m/s^2].
    limits : Limits
        Optional joint limits.
    urdf : str or None
        URDF of the rigid bodies, relative to the robot file or to the share folder.
    armature : tuple of float
        Reflected rotor inertia per joint [kg m^2], not part of a URDF; empty for none.
    counterbalance : Counterbalance or None
        Hydraulic spring, not part of a URDF.
    position_offset : tuple of float
        Position of each joint at the home pose [rad | m]; added to positions in benchmark files
        that count from there. Empty for none.

    """

    name: str
    joints: tuple[str, ...]
    kinds: tuple[str, ...]
    effort: Effort = field(default_factory=Effort)
    gravity: tuple[float, ...] = STANDARD_GRAVITY
    limits: Limits = field(default_factory=Limits)
    urdf: str | None = None
    armature: tuple[float, ...] = ()
    counterbalance: Counterbalance | None = None
    position_offset: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.joints)
        if n == 0:
            raise ValueError('joints is empty')
        if len(set(self.joints)) != n:
            raise ValueError(f'joint names repeat: {self.joints}')
        if not all(self.joints):
            raise ValueError(f'a joint name is empty: {self.joints}')
        if len(self.kinds) != n:
            raise ValueError(f'{len(self.kinds)} kinds for {n} joints')
        for kind in self.kinds:
            if kind not in JOINT_KINDS:
                raise ValueError(f'joint kind {kind!r} must be one of {JOINT_KINDS}')
        if len(self.gravity) != 3:
            raise ValueError(f'gravity must have 3 numbers, got {self.gravity}')
        per_joint = {
            'effort.gear_ratio': self.effort.gear_ratio,
            'armature': self.armature,
            'position_offset': self.position_offset,
            **{f'limits.{k}': v for k, v in vars(self.limits).items()},
        }
        for name, values in per_joint.items():
            if values and len(values) != n:
                raise ValueError(f'{name} has {len(values)} numbers for {n} joints')
        for name in ('gravity', 'armature', 'position_offset'):
            if not all(math.isfinite(x) for x in getattr(self, name)):
                raise ValueError(f'{name} must be finite, got {getattr(self, name)}')
        for name in ('armature', 'limits.velocity', 'limits.effort'):
            if any(x < 0 for x in per_joint[name]):
                raise ValueError(f'{name} must not be negative, got {per_joint[name]}')
        lower, upper = self.limits.position_lower, self.limits.position_upper
        if lower and upper:
            for joint, low, high in zip(self.joints, lower, upper, strict=True):
                if low > high:
                    raise ValueError(
                        f'joint {joint!r}: position_lower {low} is above position_upper {high}'
                    )
        if self.counterbalance is not None:
            joint = self.counterbalance.joint
            if joint not in self.joints:
                raise ValueError(
                    f'counterbalance joint {joint!r} is not one of {", ".join(self.joints)}'
                )
            if self.kinds[self.joints.index(joint)] == 'prismatic':
                raise ValueError(f'counterbalance joint {joint!r} is prismatic, must turn')

    @property
    def n(self) -> int:
        """Number of joints."""
        return len(self.joints)

    @property
    def is_revolute(self) -> np.ndarray:
        """Boolean mask, (n,): revolute or continuous."""
        return np.array([k != 'prismatic' for k in self.kinds])

    @property
    def gear_ratio(self) -> np.ndarray:
        """Joint torque per unit of effort, (n,); ones unless effort is on the motor side."""
        return np.array(self.effort.gear_ratio or (1.0,) * self.n)


def load_robot(name_or_path: str | Path) -> Robot:
    """
    Load a robot by the name of a file in config/robots or by the path of a YAML file.

    A relative `urdf` that lies beside a robot file outside the share folder becomes absolute.
    """
    path = Path(name_or_path).expanduser()
    if path.suffix in ('.yaml', '.yml'):
        robot = from_mapping(Robot, load_yaml(path), str(path))
        beside = path.resolve().parent / (robot.urdf or '')
        in_share = any(beside.is_relative_to(root) for root in share_roots())
        if robot.urdf and not in_share and beside.is_file():
            robot = dataclasses.replace(robot, urdf=str(beside))
        return robot
    try:
        path = share_path(f'config/robots/{name_or_path}.yaml')
    except FileNotFoundError as error:
        known = {p.stem for root in share_roots() for p in root.glob('config/robots/*.yaml')}
        raise FileNotFoundError(
            f'no robot {str(name_or_path)!r}; known robots: {", ".join(sorted(known)) or "none"}; '
            f'a path must end in .yaml ({error})'
        ) from None
    return from_mapping(Robot, load_yaml(path), str(path))
