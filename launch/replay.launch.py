"""Play a bag: ros2 launch dlnn_ros replay.launch.py bag:=<folder>."""

from dlnn_ros.nodes.launch_arguments import describe, existing, is_true, text
from launch import LaunchContext, LaunchDescription
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

ARGUMENTS = (
    ('namespace', '', 'Namespace of the node; it publishes joint_states in it.'),
    ('params_file', '', 'Parameter file; empty for config/nodes/replay.yaml.'),
    ('bag', '', 'rosbag2 folder or file; empty for the one in the parameter file.'),
    ('rate', '1.0', 'Speed, 1 for real time.'),
    ('loop', 'false', 'Start again at the end.'),
    ('clock', 'false', 'Publish /clock.'),
    ('log_level', 'info', 'debug, info, warn, error or fatal.'),
)


def make_nodes(context: LaunchContext) -> list[Node]:
    parameters = {
        'rate': float(text(context, 'rate')),
        'loop': is_true(context, 'loop'),
        'clock': is_true(context, 'clock'),
    }
    if text(context, 'bag'):
        parameters['bag'] = existing(context, 'bag')
    return [
        Node(
            package='dlnn_ros',
            executable='replay_node',
            name='replay_node',
            namespace=LaunchConfiguration('namespace'),
            parameters=[existing(context, 'params_file', 'config/nodes/replay.yaml'), parameters],
            ros_arguments=['--log-level', LaunchConfiguration('log_level')],
            output='screen',
        )
    ]


def generate_launch_description() -> LaunchDescription:
    return describe(ARGUMENTS, make_nodes)
