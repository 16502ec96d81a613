"""Lifecycle node: joint states in, feed-forward effort out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import functools
import gc
from pathlib import Path
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from dlnn_ros.config import share_path
from dlnn_ros.nodes.messages import diagnostic_array, EffortMessage, is_zero, StampReader
from dlnn_ros.nodes.params import Setting, Settings
from dlnn_ros.nodes.process import EXIT_FAILED, EXIT_OK, run, Stop
from dlnn_ros.runtime import estimators
from dlnn_ros.runtime.estimators import FilteredDifference
from dlnn_ros.runtime.feedforward import (
    DEAD_BAND,
    dead_band,
    FeedForward,
    MEMORY_SOURCES,
    VELOCITY_SOURCES,
)
from dlnn_ros.runtime.latency import LatencyRecorder, RateMeter
from dlnn_ros.runtime.predictor import load_predictor
import numpy as np
from rclpy._rclpy_pybind11 import RCLError
from rclpy.clock import Clock, ClockType
from rclpy.experimental import EventsExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from sensor_msgs.msg import JointState

NO_TIME = 'no_time'
# A stall of the machine for some tenths of a second costs no sample; the estimator needs them all.
INPUT_DEPTH = 100
WARN_PERIOD_S = 5.0
# Part of every start or of a sensor's rhythm: counted, not worth a line in the log.
_SILENT = (estimators.STARTING, estimators.EQUAL_STAMP, estimators.REPEATED_SAMPLE)

SETTINGS = (
    Setting('model', '', 'Model folder: a path, ~ or package://dlnn_ros/...; required.'),
    Setting(
        'backend',
        'auto',
        'Where the model is evaluated; auto takes what is there.',
        choices=('auto', 'cpu', 'cuda'),
    ),
    Setting(
        'joint_prefix', '', "Put before the model's joint names to get the names in messages."
    ),
    Setting(
        'velocity_source',
        'estimate',
        'Velocity from positions, or as reported in the message where it has any.',
        choices=VELOCITY_SOURCES,
    ),
    Setting(
        'memory_start',
        'effort',
        'Friction with memory begins from the measured effort of a robot found at rest, or '
        'unbent: for robots that rest on brakes or whose effort is not measured.',
        choices=MEMORY_SOURCES,
    ),
    Setting(
        'estimator.time_constant_s',
        0.014,
        'Time constant of each of the two poles that filter the differences [s]; the velocity '
        'lags by twice as much.',
        lower=1e-4,
        upper=1.0,
    ),
    Setting(
        'estimator.dead_band',
        DEAD_BAND,
        'Play on which positions are followed, in standard deviations of the position noise in '
        'the training data; 0 for none.',
        lower=0.0,
        upper=100.0,
    ),
    Setting('autostart', False, 'Configure and activate at the start.', read_only=True),
)

Transition = Callable[['FeedForwardNode', LifecycleState], TransitionCallbackReturn]


def transition(callback: Transition) -> Transition:
    """Turn any exception of a transition into one error line and FAILURE."""

    @functools.wraps(callback)
    def wrapper(node: FeedForwardNode, state: LifecycleState) -> TransitionCallbackReturn:
        name = callback.__name__.removeprefix('on_')
        try:
            return callback(node, state)
        except Exception as error:
            text = ' '.join(str(error).split()) or type(error).__name__
            node.get_logger().error(f'{name} failed: {text}')
            if name == 'configure':
                node._release()
            return TransitionCallbackReturn.FAILURE

    return wrapper


class FeedForwardNode(LifecycleNode):
    """
    Serves a model's torque for the measured motion.

    `configure` loads, checks and warms up the model; `activate` serves. Parameters are read in
    `configure` and can be changed while unconfigured.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__('feedforward_node', **kwargs)
        self._settings = Settings(self, SETTINGS, self._locked)
        self.autostart: bool = self._settings.value('autostart')
        self._law: FeedForward | None = None
        self._is_active = False
        self._subscription: Any = None
        self._publisher: Any = None
        self._values: Any = None
        self._latency = LatencyRecorder()
        self._input_rate = RateMeter()
        self._output_rate = RateMeter()
        self._reset_statistics()
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', 10)
        # Not the ROS clock: it may be simulated and stand still.
        self._steady_clock = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = self.create_timer(1.0, self._report, clock=self._steady_clock)

    def _LifecycleNodeMixin__change_state(self, transition_id: int) -> TransitionCallbackReturn:  # noqa: N802
        """
        Answer a transition out of turn with a failure.

        rclpy raises in its own service callback, and on Jazzy the caller never gets an answer.
        """
        try:
            return super()._LifecycleNodeMixin__change_state(transition_id)
        except RCLError as error:
            self.get_logger().error(f'transition {transition_id} failed: {error}')
            return TransitionCallbackReturn.FAILURE

    def describe_parameters(self) -> str:
        """Return the effective parameters in one line."""
        return self._settings.describe()

    def _locked(self) -> str:
        return '' if self._law is None else 'is read in configure; clean up first'

    def _reset_statistics(self) -> None:
        self._inputs = 0
        self._outputs = 0
        self._inputs_reported = 0
        self._outputs_reported = 0
        self._zero_stamps = 0
        self._last_stamp: Any = None
        self._warned: dict[str, float] = {}
        self._ignored: tuple[str, ...] = ()
        self._latency.clear()

    @transition
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load, check and warm up the model."""
        self._release()
        self.get_logger().info(f'parameters: {self._settings.describe()}')
        values = self._settings.read()
        if not values.model:
            raise ValueError("parameter model is empty; set it to a model folder ('dlnn train')")
        started = time.perf_counter()
        predictor = load_predictor(resolve_model(values.model), values.backend)
        robot = predictor.description.robot
        estimator = FilteredDifference(
            robot.n,
            values.estimator_time_constant_s,
            np.array([kind == 'continuous' for kind in robot.kinds]),
            dead_band=dead_band(predictor.description, values.estimator_dead_band),
        )
        law = FeedForward(
            predictor,
            estimator,
            values.velocity_source,
            values.joint_prefix,
            values.memory_start,
        )
        law.warm_up()
        self._effort = EffortMessage(law.joints)
        self._stamps = StampReader()
        self._reset_statistics()
        sensor = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=INPUT_DEPTH,
            reliability=ReliabilityPolicy.BEST_EFFORT,
        )
        self._publisher = self.create_lifecycle_publisher(
            JointState,
            '~/feedforward',
            10,
            qos_overriding_options=QoSOverridingOptions.with_default_policies(),
        )
        self._subscription = self.create_subscription(
            JointState,
            'joint_states',
            self._on_joint_state,
            sensor,
            qos_overriding_options=QoSOverridingOptions.with_default_policies(),
        )
        self._values = values
        self._law = law
        self.get_logger().info(
            f'configured in {time.perf_counter() - started:.2f} s: '
            f'{predictor.description.kind} of {robot.name} ({robot.n} joints), backend '
            f'{predictor.backend}, {estimator.describe()}'
        )
        return super().on_configure(state)

    @transition
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start to serve."""
        assert self._law is not None
        self._law.reset()
        result = super().on_activate(state)
        # What lives now lives on: the collector need not look at it during a sample again.
        gc.collect()
        gc.freeze()
        self._is_active = True
        self.get_logger().info(
            f'active: {self._subscription.topic_name} -> {self._publisher.topic_name}'
        )
        return result

    @transition
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop to serve."""
        self._is_active = False
        gc.unfreeze()
        result = super().on_deactivate(state)
        self.get_logger().info(f'inactive: {self._outputs} of {self._inputs} joint states served')
        return result

    @transition
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Forget the model."""
        self._release()
        self.get_logger().info('unconfigured: parameters can be changed')
        return super().on_cleanup(state)

    @transition
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Release everything, from any state."""
        self._release()
        return super().on_shutdown(state)

    @transition
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Go back to unconfigured."""
        self._release()
        return super().on_error(state)

    def _release(self) -> None:
        self._is_active = False
        if self._subscription is not None:
            self.destroy_subscription(self._subscription)
        if self._publisher is not None:
            self.destroy_lifecycle_publisher(self._publisher)
        self._subscription = self._publisher = self._law = None

    def _on_joint_state(self, message: JointState) -> None:
        if not self._is_active:
            return
        started = time.perf_counter()
        law = self._law
        assert law is not None
        self._inputs += 1
        stamp = message.header.stamp
        if is_zero(stamp):
            stamp = self.get_clock().now().to_msg()
            self._zero_stamps += 1
            self._warn('zero_stamp', 'joint states have no stamp; taking the time of arrival')
            if is_zero(stamp):
                law.counts[NO_TIME] += 1
                self._warn(NO_TIME, 'no stamp and no /clock yet; waiting')
                return
        self._last_stamp = stamp
        output = law.process(
            self._stamps.seconds(stamp.sec, stamp.nanosec),
            message.name,
            message.position,
            message.velocity,
            message.effort,
        )
        if output.effort is None:
            if output.outcome not in _SILENT:
                self._warn(output.outcome, output.reason)
            return
        self._publisher.publish(self._effort.fill(stamp, output.effort))
        self._outputs += 1
        if law.ignored is not self._ignored:
            self._note_ignored(law.ignored)
        self._latency.add(time.perf_counter() - started)

    def _warn(self, kind: str, text: str) -> None:
        now = time.monotonic()
        if now - self._warned.get(kind, -WARN_PERIOD_S) >= WARN_PERIOD_S:
            self._warned[kind] = now
            self.get_logger().warning(text)

    def _note_ignored(self, ignored: tuple[str, ...]) -> None:
        if set(ignored) - set(self._ignored):
            self.get_logger().info(f'joints that the model does not know: {", ".join(ignored)}')
        self._ignored = ignored

    def _report(self) -> None:
        now = time.monotonic()
        values: dict[str, Any] = {
            'input_rate_hz': self._input_rate.update(self._inputs, now),
            'output_rate_hz': self._output_rate.update(self._outputs, now),
            'inputs': self._inputs,
            'outputs': self._outputs,
        }
        level, summary = self._judge(
            self._inputs - self._inputs_reported, self._outputs - self._outputs_reported
        )
        self._inputs_reported, self._outputs_reported = self._inputs, self._outputs
        hardware_id = ''
        law = self._law
        if law is not None:
            description = law.predictor.description
            hardware_id = description.robot.name
            values |= {
                'model': self._values.model,
                'kind': description.kind,
                'backend': law.predictor.backend,
                'estimator': law.estimator.describe(),
                'estimator_delay_s': law.estimator.delay_s,
                'velocity_source': law.velocity_source,
                'zero_stamps': self._zero_stamps,
                'messages_without_velocity': law.messages_without_velocity,
                'memory_start': law.memory_start,
                'state_resets': law.resets,
            }
            values |= {f'count.{k}': n for k, n in sorted(Counter(law.counts).items())}
            values |= {
                f'latency_{k}': v
                for k, v in self._latency.summary()._asdict().items()
                if k != 'samples'
            }
            if self._last_stamp is not None:
                stamp = self._last_stamp
                age = self.get_clock().now().nanoseconds * 1e-9 - stamp.sec - stamp.nanosec * 1e-9
                values['stamp_age_s'] = age
        self._diagnostics.publish(
            diagnostic_array(
                self.get_clock().now().to_msg(),
                f'{self.get_name()}: feedforward',
                hardware_id,
                level,
                summary,
                values,
            )
        )

    def _judge(self, inputs: int, outputs: int) -> tuple[bytes, str]:
        if self._law is None:
            return DiagnosticStatus.OK, 'unconfigured'
        if not self._is_active:
            return DiagnosticStatus.OK, 'inactive'
        if inputs == 0:
            topic = self._subscription.topic_name
            return DiagnosticStatus.STALE, f'no joint state on {topic} for 1 s'
        if outputs == 0:
            return DiagnosticStatus.ERROR, f'none of {inputs} joint states could be served'
        if outputs < inputs - 1:
            return DiagnosticStatus.WARN, f'{outputs} of {inputs} joint states served'
        return DiagnosticStatus.OK, 'serving'


def resolve_model(model: str) -> Path:
    """Return the folder that the parameter `model` names."""
    own = 'package://dlnn_ros/'
    if model.startswith(own):
        return share_path(model.removeprefix(own))
    if '://' in model:
        raise ValueError(f'parameter model is {model!r}; only {own}... is known as a URI')
    return Path(model).expanduser()


def serve(node: FeedForwardNode, stop: Stop) -> int:
    """Spin until stopped."""
    executor = EventsExecutor()
    executor.add_node(node)
    code = EXIT_OK
    node.get_logger().info('ready: unconfigured')
    if not node.autostart:
        # A parameter file for another node name is ignored by ROS without a word.
        node.get_logger().info(f'parameters: {node.describe_parameters()}')
    if node.autostart:
        for trigger in (node.trigger_configure, node.trigger_activate):
            if trigger() != TransitionCallbackReturn.SUCCESS:
                # Nobody manages this node, so nobody would see it wait for another try.
                stop.is_set = True
                code = EXIT_FAILED
                break
    # EventsExecutor.spin() dispatches nothing; with a time-out it does, and signals get a turn.
    while not stop.is_set:
        executor.spin_once(timeout_sec=0.2)
    node.trigger_shutdown()
    executor.remove_node(node)
    executor.shutdown()
    return code


def main() -> int:
    """Entry point of the executable."""
    return run(FeedForwardNode, serve)


if __name__ == '__main__':
    raise SystemExit(main())
