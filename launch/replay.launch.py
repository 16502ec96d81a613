"""Play a bag: ros2 launch dlnn_ros replay.launch.py bag:=<folder>."""

from pathlib import Path

from dlnn_ros.config import share_path
from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

BOOLEANS = {'true': True, '1': True, 'false': False, '0': False}

ARGUMENTS = (
    ('namespace', '', 'Namespace of the node; it publishes joint_states in it.'),
    ('params_file', '', 'Parameter file; empty for config/nodes/replay.yaml.'),
    ('bag', '', 'rosbag2 folder or file; empty for the one in the parameter file.'),
    ('rate', '1.0', 'Speed, 1 for real time.'),
    ('loop', 'false', 'Start again at the end.'),
    ('clock', 'false', 'Publish /clock.'),
    ('log_level', 'info', 'debug, info, warn, error or fatal.'),
)


def is_true(context: LaunchContext, name: str) -> bool:
    """Return the value of a boolean argument; any spelling but true/false/1/0 is an error."""
    text = LaunchConfiguration(name).perform(context)
    if text.lower() not in BOOLEANS:
        raise ValueError(f'{name}:={text} must be true or false')
    return BOOLEANS[text.lower()]


def existing(context: LaunchContext, name: str, default: Path) -> str:
    """Return the path of an argument; a missing one is an error here, not in the node."""
    text = LaunchConfiguration(name).perform(context)
    path = Path(text).expanduser() if text else default
    if not path.exists():
        raise FileNotFoundError(f'{name}:={path}: no such file')
    return str(path)


def make_nodes(context: LaunchContext) -> list[Node]:
    rate = LaunchConfiguration('rate').perform(context)
    parameters = {
        'rate': float(rate),
        'loop': is_true(context, 'loop'),
        'clock': is_true(context, 'clock'),
    }
    if LaunchConfiguration('bag').perform(context):
        parameters['bag'] = existing(context, 'bag', Path())
    default = share_path('config/nodes/replay.yaml')
    return [
        Node(
            package='dlnn_ros',
            executable='replay_node',
            name='replay_node',
            namespace=LaunchConfiguration('namespace'),
            parameters=[existing(context, 'params_file', default), parameters],
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
