"""Launch arguments that are checked before a node starts; needs `launch`, so a ROS 2 install."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dlnn_ros.config import share_path
from launch import LaunchContext, LaunchDescription
from launch.action import Action
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration

BOOLEANS = {'true': True, '1': True, 'false': False, '0': False}


def text(context: LaunchContext, name: str) -> str:
    """Return an argument as it was given."""
    return LaunchConfiguration(name).perform(context)


def is_true(context: LaunchContext, name: str) -> bool:
    """Return the value of a boolean argument; any spelling but true/false/1/0 is an error."""
    value = text(context, name)
    if value.lower() not in BOOLEANS:
        raise ValueError(f'{name}:={value} must be true or false')
    return BOOLEANS[value.lower()]


def existing(context: LaunchContext, name: str, default: str = '') -> str:
    """Return the path of an argument, or `default` of the share folder; it must exist."""
    value = text(context, name)
    path = Path(value).expanduser() if value else share_path(default)
    if not path.exists():
        raise FileNotFoundError(f'{name}:={path}: no such file')
    return str(path)


def describe(
    arguments: Sequence[tuple[str, str, str]],
    make_nodes: Callable[[LaunchContext], list[Action]],
) -> LaunchDescription:
    """Return the description of a launch file: (name, default, description) and its nodes."""
    declared = [DeclareLaunchArgument(n, default_value=d, description=t) for n, d, t in arguments]
    return LaunchDescription([*declared, OpaqueFunction(function=make_nodes)])
