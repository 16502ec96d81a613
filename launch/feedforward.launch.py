"""Start the feed-forward node: ros2 launch dlnn_ros feedforward.launch.py model:=<folder>."""

from dlnn_ros.nodes.launch_arguments import describe, existing, is_true, text
from launch import LaunchContext, LaunchDescription
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode

ARGUMENTS = (
    ('namespace', '', 'Namespace of the node; joint_states is looked for in it.'),
    ('use_sim_time', 'false', 'Take the time from /clock.'),
    ('params_file', '', 'Parameter file; empty for config/nodes/feedforward.yaml.'),
    ('model', '', 'Model folder; empty for the one in the parameter file.'),
    ('autostart', 'true', 'Configure and activate at the start.'),
    ('log_level', 'info', 'debug, info, warn, error or fatal.'),
)


def make_nodes(context: LaunchContext) -> list[LifecycleNode]:
    parameters = {
        'use_sim_time': is_true(context, 'use_sim_time'),
        'autostart': is_true(context, 'autostart'),
    }
    if text(context, 'model'):
        parameters['model'] = text(context, 'model')
    return [
        LifecycleNode(
            package='dlnn_ros',
            executable='feedforward_node',
            name='feedforward_node',
            namespace=LaunchConfiguration('namespace'),
            parameters=[
                existing(context, 'params_file', 'config/nodes/feedforward.yaml'),
                parameters,
            ],
            ros_arguments=['--log-level', LaunchConfiguration('log_level')],
            output='screen',
        )
    ]


def generate_launch_description() -> LaunchDescription:
    return describe(ARGUMENTS, make_nodes)
