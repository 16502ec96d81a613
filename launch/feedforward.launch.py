"""Start the feed-forward node: ros2 launch dlnn_ros feedforward.launch.py model:=<folder>."""

from pathlib import Path

from dlnn_ros.config import share_path
from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode

BOOLEANS = {'true': True, '1': True, 'false': False, '0': False}

ARGUMENTS = (
    ('namespace', '', 'Namespace of the node; joint_states is looked for in it.'),
    ('use_sim_time', 'false', 'Take the time from /clock.'),
    ('params_file', '', 'Parameter file; empty for config/nodes/feedforward.yaml.'),
    ('model', '', 'Model folder; empty for the one in the parameter file.'),
    ('autostart', 'true', 'Configure and activate at the start.'),
    ('log_level', 'info', 'debug, info, warn, error or fatal.'),
)


def is_true(context: LaunchContext, name: str) -> bool:
    """Return the value of a boolean argument; any spelling but true/false/1/0 is an error."""
    text = LaunchConfiguration(name).perform(context)
    if text.lower() not in BOOLEANS:
        raise ValueError(f'{name}:={text} must be true or false')
    return BOOLEANS[text.lower()]


def existing_file(context: LaunchContext, name: str, default: str) -> str:
    """Return the path of a file argument; a missing file is an error here, not in the node."""
    text = LaunchConfiguration(name).perform(context)
    path = Path(text).expanduser() if text else share_path(default)
    if not path.is_file():
        raise FileNotFoundError(f'{name}:={path}: no such file')
    return str(path)


def make_nodes(context: LaunchContext) -> list[LifecycleNode]:
    parameters = {
        'use_sim_time': is_true(context, 'use_sim_time'),
        'autostart': is_true(context, 'autostart'),
    }
    model = LaunchConfiguration('model').perform(context)
    if model:
        parameters['model'] = model
    return [
        LifecycleNode(
            package='dlnn_ros',
            executable='feedforward_node',
            name='feedforward_node',
            namespace=LaunchConfiguration('namespace'),
            parameters=[
                existing_file(context, 'params_file', 'config/nodes/feedforward.yaml'),
                parameters,
            ],
            ros_arguments=['--log-level', LaunchConfiguration('log_level')],
            output='screen',
        )
    ]


def generate_launch_description() -> LaunchDescription:
    arguments = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, default, text in ARGUMENTS
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=make_nodes)])
