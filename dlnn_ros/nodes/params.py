"""
Node parameters with one place for type, default, unit, bounds and description.

All are declared with dynamic typing: a YAML file may give `20` for a number with a fraction,
which static typing ends the node for, and every other wrong type gets a line that names the
parameter, what was expected and what was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
import difflib
import math
from types import SimpleNamespace
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter

# Parameters that ROS itself reads from the overrides.
_ROS_PREFIXES = ('qos_overrides.', 'use_sim_time', 'start_type_description_service')

_TYPE_NAMES = {
    float: 'a number',
    int: 'an integer',
    bool: 'true or false',
    str: 'a string',
    tuple: 'a list of strings',
}


@dataclass(frozen=True)
class Setting:
    """
    One parameter; the type is that of the default.

    Attributes
    ----------
    name, default, description
        As declared; the description has the unit.
    lower, upper : float or None
        Inclusive bounds of a number.
    choices : tuple of str
        Allowed strings; empty for any.
    read_only : bool
        A change after the start has no effect, so it is refused.

    """

    name: str
    default: float | int | bool | str | tuple[str, ...]
    description: str
    lower: float | None = None
    upper: float | None = None
    choices: tuple[str, ...] = ()
    read_only: bool = False

    def convert(self, value: Any) -> Any:
        """
        Return the value in the type of the default.

        Raises
        ------
        TypeError, ValueError
            One line with name, expectation and value.

        """
        kind = type(self.default)
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value, fits = float(value), True
        if kind is tuple and isinstance(value, (list, tuple)):
            value, fits = tuple(value), all(isinstance(v, str) for v in value)
        if not fits:
            raise TypeError(
                f'parameter {self.name} must be {_TYPE_NAMES[kind]}, got {value!r}'
                + (' (a string)' if isinstance(value, str) else '')
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f'parameter {self.name} must be finite, got {value}')
        below = self.lower is not None and value < self.lower
        above = self.upper is not None and value > self.upper
        if below or above:
            raise ValueError(
                f'parameter {self.name} must be in [{self.lower}, {self.upper}], got {value}'
            )
        if self.choices and value not in self.choices:
            raise ValueError(
                f'parameter {self.name} must be one of {", ".join(self.choices)}, got {value!r}'
            )
        return value

    def descriptor(self) -> ParameterDescriptor:
        """Return the ROS descriptor."""
        text = self.description
        if self.choices:
            text += f' (one of {", ".join(self.choices)})'
        descriptor = ParameterDescriptor(
            description=text, read_only=self.read_only, dynamic_typing=True
        )
        if self.lower is not None and self.upper is not None:
            if isinstance(self.default, float):
                descriptor.floating_point_range = [
                    FloatingPointRange(from_value=float(self.lower), to_value=float(self.upper))
                ]
            else:
                descriptor.integer_range = [
                    IntegerRange(from_value=int(self.lower), to_value=int(self.upper))
                ]
        return descriptor


class Settings:
    """
    The declared parameters of a node.

    Parameters
    ----------
    node : Node
    settings : sequence of Setting
    locked : callable or None
        Returns why parameters cannot be changed now, or an empty string where they can.

    """

    def __init__(
        self,
        node: Node,
        settings: Sequence[Setting],
        locked: Callable[[], str] | None = None,
    ) -> None:
        self._node = node
        self._settings = {s.name: s for s in settings}
        self._locked = locked
        for setting in settings:
            default = setting.default
            value = list(default) if isinstance(default, tuple) else default
            node.declare_parameter(setting.name, value, setting.descriptor())
        node.add_on_set_parameters_callback(self._on_set)

    def read(self) -> SimpleNamespace:
        """
        Return all values in their types; a dot in a name becomes an underscore.

        Raises
        ------
        TypeError, ValueError
            A value of the wrong type or out of bounds, or a name in the overrides that looks
            like a misspelt parameter.

        """
        self._check_spelling()
        values = {name.replace('.', '_'): self.value(name) for name in self._settings}
        return SimpleNamespace(**values)

    def value(self, name: str) -> Any:
        """
        Return one value in its type.

        Raises
        ------
        TypeError, ValueError
            As :meth:`read` does.

        """
        return self._settings[name].convert(self._node.get_parameter(name).value)

    def describe(self) -> str:
        """Return the effective values in one line."""
        return ', '.join(f'{n}={self._node.get_parameter(n).value!r}' for n in self._settings)

    def _check_spelling(self) -> None:
        # rclpy has no public name for the overrides that nobody declared.
        for name in getattr(self._node, '_parameter_overrides', {}):
            if name in self._settings or name.startswith(_ROS_PREFIXES):
                continue
            close = difflib.get_close_matches(name, list(self._settings), n=1)
            if close:
                raise ValueError(f'unknown parameter {name!r}; did you mean {close[0]!r}?')
            self._node.get_logger().warning(
                f'parameter {name!r} is given but this node has none of that name; '
                f'it has {", ".join(self._settings)}'
            )

    def _on_set(self, parameters: Sequence[Parameter]) -> SetParametersResult:
        for parameter in parameters:
            setting = self._settings.get(parameter.name)
            if setting is None:
                continue
            try:
                setting.convert(parameter.value)
            except (TypeError, ValueError) as error:
                return SetParametersResult(successful=False, reason=str(error))
            reason = self._locked() if self._locked else ''
            if reason:
                return SetParametersResult(
                    successful=False, reason=f'parameter {setting.name}: {reason}'
                )
        return SetParametersResult(successful=True)
