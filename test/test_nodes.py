import contextlib
import importlib.util
import os
import signal
import time

from dlnn_ros.config import Robot
from dlnn_ros.data.trajectory import Recording, RecordingSet
import numpy as np
import pytest

pytest.importorskip('rclpy', reason='ROS 2 is not here')

from diagnostic_msgs.msg import DiagnosticArray
from dlnn_ros.config import share_path
from dlnn_ros.data.bags import write_bag
from dlnn_ros.learning.checkpoint import model_tensors
from dlnn_ros.learning.model_folder import load_description, save_model
from dlnn_ros.nodes.replay_node import Pace, read_samples, Sample, select
from dlnn_ros.runtime.predictor import load_predictor
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import SetParameters
import rclpy
from rclpy.parameter import Parameter
from rclpy.serialization import deserialize_message
from ros_processes import environment, NodeProcess
from sensor_msgs.msg import JointState
import torch

import models

ROBOT = Robot('arm', tuple(f'A{i}' for i in range(1, 8)), ('revolute',) * 7)
DOMAIN = 1 + os.getpid() % 100  # above 101 the ports are those of outgoing connections
# A busy machine stalls for longer than the ten messages a controller would want to keep.
ALL_MESSAGES = {'qos_overrides./joint_states.subscription.depth': 20000}
EPOCH = 1_700_000_000.0


@pytest.fixture(scope='module')
def ros(tmp_path_factory):
    """Own domain and log folder for all processes of this file; a node to talk to them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(tmp_path_factory.mktemp('log'), DOMAIN).items():
            patch.setenv(name, value)
        context = rclpy.Context()
        rclpy.init(context=context)
        node = rclpy.create_node('watcher', context=context)
        executor = rclpy.executors.SingleThreadedExecutor(context=context)
        executor.add_node(node)
        yield Watcher(node, executor)
        executor.shutdown()
        node.destroy_node()
        rclpy.shutdown(context=context)


class Watcher:
    def __init__(self, node, executor):
        self.node = node
        self.executor = executor
        self.statuses = []
        node.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics, 10)

    def _on_diagnostics(self, message):
        self.statuses += message.status

    def spin(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.05)

    def call(self, kind, name, request):
        client = self.node.create_client(kind, f'/feedforward_node/{name}')
        try:
            assert client.wait_for_service(timeout_sec=10.0), f'{name} does not answer'
            # The server sees the client a moment later, and an answer to a client that
            # it does not see is lost.
            self.spin(0.3)
            future = client.call_async(request)
            self.executor.spin_until_future_complete(future, timeout_sec=60.0)
            assert future.done(), f'{name} does not answer'
            return future.result()
        finally:
            self.node.destroy_client(client)

    def change(self, name):
        number = getattr(Transition, f'TRANSITION_{name.upper()}')
        return self.call(
            ChangeState, 'change_state', ChangeState.Request(transition=Transition(id=number))
        ).success

    def state(self):
        return self.call(GetState, 'get_state', GetState.Request()).current_state.label

    def set_parameter(self, name, value):
        parameter = Parameter(name, value=value).to_parameter_msg()
        request = SetParameters.Request(parameters=[parameter])
        return self.call(SetParameters, 'set_parameters', request).results[0]


@pytest.fixture
def start(ros):
    """Start nodes that end with the test."""
    with contextlib.ExitStack() as stack:

        def start_node(*args, **kwargs):
            process = NodeProcess(*args, **kwargs)
            stack.callback(process.close)
            return process

        yield start_node


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    """A small untrained dLNN of a seven-joint arm."""
    return models.save_tiny_model(tmp_path_factory.mktemp('model') / 'tiny', ROBOT.joints)


def make_bag(folder, seconds, rate_hz=250.0, storage='mcap'):
    t = EPOCH + np.arange(round(seconds * rate_hz)) / rate_hz
    q = np.sin((t - EPOCH)[:, None] + np.arange(7))
    recording = Recording(t, q, 10 * np.cos(q))
    write_bag(folder, RecordingSet(ROBOT, (recording,)), storage=storage)
    return folder


def stamps_of(bag, topic=''):
    return np.array([s.time_ns for s in read_samples(bag, topic)])


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_replay_reads_the_messages_as_they_are(tmp_path, storage):
    bag = make_bag(tmp_path / 'bag', 0.5, storage=storage)
    samples = list(read_samples(bag, '/joint_states'))
    assert len(samples) == 125
    message = deserialize_message(samples[3].raw, JointState)
    assert message.name == list(ROBOT.joints)
    assert message.header.stamp.sec * 10**9 + message.header.stamp.nanosec == samples[3].time_ns
    # Seconds since 1970 as a float are good to a microsecond.
    assert abs(samples[3].time_ns - samples[0].time_ns - 12_000_000) < 1000


def test_part_of_a_bag_is_selected_by_time():
    samples = [Sample(1000 + k * 10**8, b'') for k in range(50)]
    chosen = list(select(iter(samples), 1.0, 2.0))
    assert [s.time_ns for s in chosen] == [1000 + k * 10**8 for k in range(10, 31)]
    assert list(select(iter(samples), 0.0, 0.0)) == samples
    assert list(select(iter(samples), 9.0, 0.0)) == []


def test_pace_follows_the_stamps_at_the_rate_and_skips_jumps():
    pace = Pace(2.0)
    start = pace.deadline(5 * 10**9)
    assert pace.deadline(6 * 10**9) - start == pytest.approx(0.5)
    assert pace.deadline(10**9) - start == pytest.approx(0.5)  # the bag starts again
    assert pace.deadline(3 * 10**9) - start == pytest.approx(1.5)
    assert pace.deadline(500 * 10**9) - start == pytest.approx(1.5)  # another recording


@pytest.mark.parametrize('name', ['feedforward', 'replay', 'record'])
def test_parameter_files_have_the_declared_parameters_with_their_defaults(name):
    from dlnn_ros.config import load_yaml

    settings = importlib.import_module(f'dlnn_ros.nodes.{name}_node').SETTINGS
    given = load_yaml(share_path(f'config/nodes/{name}.yaml'))['/**']['ros__parameters']
    flat = {}
    for key, value in given.items():
        if isinstance(value, dict):
            flat |= {f'{key}.{k}': v for k, v in value.items()}
        else:
            flat[key] = tuple(value) if isinstance(value, list) else value
    required = {'model', 'bag'}
    assert flat == {s.name: s.default for s in settings if s.name not in required}
    assert all(s.description.endswith('.') for s in settings)


@pytest.mark.parametrize('name', ['feedforward', 'replay'])
def test_launch_files_describe_their_arguments(name):
    pytest.importorskip('launch_ros', reason='launch and launch_ros are not wheels')
    path = share_path(f'launch/{name}.launch.py')
    spec = importlib.util.spec_from_file_location(f'{name}_launch', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = module.generate_launch_description().get_launch_arguments()
    assert {a.name for a in arguments} == {a[0] for a in module.ARGUMENTS}
    assert all(a.description for a in arguments)


@pytest.mark.ros
def test_lifecycle_walks_through_all_states(ros, start, model, tmp_path):
    node = start('feedforward_node', {'model': tmp_path / 'nothing'})
    node.wait_for('ready: unconfigured')
    assert ros.state() == 'unconfigured'
    # Out of turn, and a model that is not there: refused in one line each, and still here.
    assert not ros.change('activate')
    assert not ros.change('configure')
    node.wait_for('configure failed: ')
    assert f'{tmp_path}/nothing: no such model folder' in node.text
    assert ros.state() == 'unconfigured'

    result = ros.set_parameter('estimator.time_constant_s', 'fast')
    assert not result.successful
    assert "must be a number, got 'fast'" in result.reason
    assert not ros.set_parameter('estimator.time_constant_s', 5.0).successful
    assert ros.set_parameter('model', str(model)).successful

    for _ in range(2):
        assert ros.change('configure')
        assert ros.state() == 'inactive'
        assert not ros.change('configure')
        assert 'clean up first' in ros.set_parameter('model', 'other').reason
        assert ros.change('activate')
        assert ros.state() == 'active'
        assert ros.change('deactivate')
        assert ros.change('cleanup')
        assert ros.state() == 'unconfigured'
    assert node.stop() == 0
    assert 'Traceback' not in node.text
    assert node.text.count('configure failed') == 1


@pytest.mark.ros
@pytest.mark.parametrize('state', ['unconfigured', 'inactive', 'active'])
def test_signals_in_each_state_end_the_node_cleanly(ros, start, model, state):
    node = start('feedforward_node', {'model': model, 'autostart': state == 'active'})
    node.wait_for('active: ' if state == 'active' else 'ready: ')
    if state == 'inactive':
        assert ros.change('configure')
    # A terminal and a launch system each pass a Ctrl-C on.
    stop = (signal.SIGTERM,) if state == 'inactive' else (signal.SIGINT, signal.SIGINT)
    assert node.stop(*stop) == 0
    assert 'Traceback' not in node.text


def serve_bag(start, model, bag, out, parameters=None):
    """Replay a bag through the node; return the node, the other two having ended well."""
    node = start(
        'feedforward_node', {'model': model, 'autostart': 'true', **(parameters or ALL_MESSAGES)}
    )
    node.wait_for('active: ')
    recorder = start('record_node', {'bag': out, 'idle_timeout_s': 3, 'wait_timeout_s': 60})
    recorder.wait_for('matched: ')
    player = start('replay_node', {'bag': bag, 'clock': 'true'})
    assert player.finish(120) == 0, player.text
    assert recorder.finish(60) == 0, recorder.text
    assert 'Traceback' not in node.text + recorder.text + player.text
    return node


def check_served(bag, out):
    sent = stamps_of(bag)
    efforts = []
    stamps = []
    for sample in read_samples(out, ''):
        message = deserialize_message(sample.raw, JointState)
        assert message.name == list(ROBOT.joints)
        efforts.append(message.effort)
        stamps.append(sample.time_ns)
    # The first sample has no derivative; every other one is answered under its own stamp.
    np.testing.assert_array_equal(stamps, sent[1:])
    assert np.isfinite(efforts).all()
    assert np.std(efforts, axis=0).min() > 0


@pytest.mark.ros
def test_every_joint_state_is_answered_under_its_own_stamp(ros, start, model, tmp_path):
    bag = make_bag(tmp_path / 'bag', 3.0)
    ros.statuses.clear()
    node = serve_bag(start, model, bag, tmp_path / 'out')
    check_served(bag, tmp_path / 'out')
    ros.spin(1.5)
    status = ros.statuses[-1]
    values = {v.key: v.value for v in status.values}
    assert status.name == 'feedforward_node: feedforward'
    assert values['inputs'] == '750'
    assert values['outputs'] == values['count.ok'] == '749'
    assert values['kind'] == 'dlnn'
    assert values['model'] == str(model)
    assert 'T 14 ms' in values['estimator']
    assert float(values['latency_p50_us']) > 0
    rates = [float(v.value) for s in ros.statuses for v in s.values if v.key == 'input_rate_hz']
    # A stalled second is followed by a fuller one.
    assert 50 < max(rates) < 700
    assert node.stop() == 0


@pytest.mark.ros
def test_namespace_prefix_message_velocity_and_simulated_time(ros, start, model, tmp_path):
    """Each of these settings changes what comes out, or nothing would."""
    names = tuple(f'left_{j}' for j in ROBOT.joints)
    t = np.arange(500) / 250.0
    q = np.sin(t[:, None] + np.arange(7))
    # A velocity that no difference of these positions gives.
    recording = Recording(t, q, q, velocity=np.full_like(q, 0.25))
    write_bag(tmp_path / 'bag', RecordingSet(Robot('left', names, ROBOT.kinds), (recording,)))
    settings = {
        'model': model,
        'autostart': 'true',
        'joint_prefix': 'left_',
        'velocity_source': 'message',
        'use_sim_time': 'true',
    }
    in_left = ('-r', '__ns:=/left')
    ros.spin(0.3)  # what is left of the test before
    ros.statuses.clear()
    node = start('feedforward_node', settings, in_left)
    node.wait_for('active: /left/joint_states -> /left/feedforward_node/feedforward')
    recorder = start('record_node', {'bag': tmp_path / 'out', 'idle_timeout_s': 3}, in_left)
    recorder.wait_for('matched: ')
    player = start('replay_node', {'bag': tmp_path / 'bag', 'clock': 'true', 'rate': 2.0}, in_left)
    assert player.finish(60) == 0, player.text
    assert recorder.finish(60) == 0, recorder.text
    samples = list(read_samples(tmp_path / 'out', ''))
    assert len(samples) == 499
    message = deserialize_message(samples[250].raw, JointState)
    assert tuple(message.name) == names
    predictor = load_predictor(model)
    # The measured velocity is constant, so its acceleration is zero.
    expected = predictor.predict(q[251], np.full(7, 0.25), np.zeros(7), 0.004)
    np.testing.assert_allclose(message.effort, expected, rtol=1e-6)
    ros.spin(1.5)
    ages = [float(v.value) for s in ros.statuses for v in s.values if v.key == 'stamp_age_s']
    # In the bag's own time, which is decades from the wall's.
    assert ages
    assert max(map(abs, ages)) < 10
    assert node.stop() == 0


@pytest.mark.ros
@pytest.mark.parametrize('source', ['effort', 'unbent'])
def test_memory_of_a_robot_at_rest_holds_its_effort_and_says_so(ros, start, tmp_path, source):
    folder, model = models.save_case(tmp_path / 'model', 'memory')
    robot = load_description(folder).robot
    with torch.no_grad():
        model.memory.raw_weight.fill_(3.0)  # holds what is asked of it
    save_model(folder, load_description(folder), model_tensors(model), overwrite=True)
    t = np.arange(250) / 250.0
    t[125:] += 5.0  # a gap
    q = np.tile([0.3, -0.2, 0.1], (250, 1))
    effort = np.tile([4.0, -3.0, 2.0], (250, 1))
    parts = [
        Recording(t[part], q[part], effort[part], name=str(part))
        for part in (slice(125), slice(125, None))
    ]
    write_bag(tmp_path / 'bag', RecordingSet(robot, tuple(parts)))
    ros.statuses.clear()
    settings = {'model': folder, 'autostart': 'true', 'memory_start': source}
    node = start('feedforward_node', settings)
    node.wait_for('active: ')
    recorder = start('record_node', {'bag': tmp_path / 'out', 'idle_timeout_s': 8})
    recorder.wait_for('matched: ')
    player = start('replay_node', {'bag': tmp_path / 'bag', 'rate': 2.0})
    assert player.finish(60) == 0, player.text
    ros.spin(1.5)
    values = {v.key: v.value for v in ros.statuses[-1].values}
    assert values['state_resets'] == '1'
    assert recorder.finish(60) == 0, recorder.text
    samples = list(read_samples(tmp_path / 'out', ''))
    served = np.array([deserialize_message(s.raw, JointState).effort for s in samples])
    assert len(served) > 230  # the first equal ones after a start count as repeats
    if source == 'effort':
        assert values['memory_start'] == 'effort at rest'
        # It takes some samples to see that the robot rests; two of the elements relax in 4 s.
        np.testing.assert_allclose(served[10:110], effort[:100], atol=0.1)
        np.testing.assert_allclose(served[10], effort[0], atol=0.02)
    else:
        assert values['memory_start'] == 'unknown, unbent'
        assert np.abs(served - effort[0]).min() > 1e-3
    assert node.stop() == 0


@pytest.mark.ros
def test_failed_configure_leaves_the_parameters_open(ros, start, model):
    bad = {'qos_overrides./joint_states.subscription.depth': -5}
    node = start('feedforward_node', {'model': model, **bad})
    node.wait_for('ready: ')
    if ros.change('configure'):
        pytest.skip('this ROS 2 takes a negative depth')
    assert ros.state() == 'unconfigured'
    assert ros.set_parameter('model', str(model)).successful
    assert node.stop() == 0


@pytest.mark.ros
@pytest.mark.slow
def test_250_hz_for_a_minute_loses_nothing(ros, start, tmp_path):
    """With a model of full size and the node's own defaults."""
    full = {'width': 128, 'depth': 3}
    model = models.save_tiny_model(tmp_path / 'model', ROBOT.joints, options=full)
    bag = make_bag(tmp_path / 'bag', 60.0)
    node = serve_bag(start, model, bag, tmp_path / 'out', {'backend': 'cpu'})
    check_served(bag, tmp_path / 'out')
    assert node.stop() == 0


@pytest.mark.ros
@pytest.mark.parametrize(
    ('node', 'parameters', 'code', 'match'),
    [
        ('replay_node', {'bag': '{tmp}/nothing'}, 1, 'nothing: no such bag'),
        ('replay_node', {'bag': '{tmp}/bag', 'topic': '/js'}, 1, 'topic /js is not in the bag'),
        ('replay_node', {'bag': '{tmp}/bag', 'start_s': 99}, 1, 'no message from 99 s on'),
        ('replay_node', {'bag': '{tmp}/bag', 'wait_timeout_s': 0.3}, 1, 'no subscription to'),
        ('replay_node', {}, 2, 'parameter bag is empty'),
        ('replay_node', {'bag': '{tmp}/bag', 'rat': 2.0}, 2, "did you mean 'rate'?"),
        ('replay_node', {'bag': '{tmp}/bag', 'loop': '"False"'}, 2, 'must be true or false'),
        ('record_node', {'bag': '{tmp}/bag'}, 2, 'exists already'),
        ('record_node', {'bag': '{tmp}/new', 'wait_timeout_s': 0.3}, 1, 'no message on'),
        ('record_node', {'bag': '{tmp}', 'overwrite': 'true'}, 2, 'is no bag and is not replaced'),
        ('record_node', {'bag': '{tmp}/new', 'topics': '[a, a]'}, 2, 'has one twice'),
        ('feedforward_node', {'autostart': 'true'}, 1, 'parameter model is empty'),
        ('feedforward_node', {'autostart': 'true', 'model': '{tmp}/none'}, 1, 'no such model'),
        ('feedforward_node', {'autostart': '"yes"'}, 2, 'must be true or false'),
    ],
)
def test_wrong_use_is_one_line_and_a_code(ros, start, tmp_path, node, parameters, code, match):
    make_bag(tmp_path / 'bag', 0.1)
    before = sorted(p.name for p in tmp_path.iterdir())
    process = start(node, {k: str(v).format(tmp=tmp_path) for k, v in parameters.items()})
    assert process.finish() == code, process.text
    assert match in process.text
    assert 'Traceback' not in process.text
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.ros
def test_recorder_stopped_early_leaves_nothing_or_a_whole_bag(ros, start, tmp_path):
    recorder = start('record_node', {'bag': tmp_path / 'a', 'topics': '[js]'})
    recorder.wait_for('ready: ')
    assert recorder.stop() == 0
    assert 'nothing was written' in recorder.text
    assert list(tmp_path.iterdir()) == []

    bag = make_bag(tmp_path / 'bag', 5.0)
    recorder = start('record_node', {'bag': tmp_path / 'b', 'topics': '[joint_states]'})
    recorder.wait_for('ready: ')
    player = start('replay_node', {'bag': bag, 'loop': 'true'})
    player.wait_for('playing')
    time.sleep(1.0)
    assert recorder.stop() == 0
    assert player.stop() == 0
    recorded = stamps_of(tmp_path / 'b')
    assert len(recorded) > 50
    assert np.isin(recorded, stamps_of(bag)).all()
