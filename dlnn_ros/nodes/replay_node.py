"""Node: plays the joint states of a rosbag2, message by message as recorded."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import math
from pathlib import Path
import time
from typing import NamedTuple

from builtin_interfaces.msg import Time
from dlnn_ros.data import cdr
from dlnn_ros.data.bag_files import choose_topic, open_files, read_chunks
from dlnn_ros.nodes.messages import NANOSECONDS
from dlnn_ros.nodes.params import Setting, Settings
from dlnn_ros.nodes.process import EXIT_FAILED, EXIT_OK, run, Stop
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState

# A pause between two stamps that is longer is no pause of the robot but two recordings.
LONGEST_PAUSE_S = 10.0
# The publisher knows of a subscription some milliseconds before it is the other way round.
SETTLE_S = 0.3
# Messages that are read before the first is sent; a longer bag is read in parts on the way.
PRELOADED = 500_000

SETTINGS = (
    Setting('bag', '', 'rosbag2 folder or file (mcap, sqlite3); required.', read_only=True),
    Setting(
        'topic',
        '',
        'JointState topic in the bag; empty for /joint_states or the only one.',
        read_only=True,
    ),
    Setting('rate', 1.0, 'Speed, 1 for real time.', lower=1e-3, upper=1e3, read_only=True),
    Setting('loop', False, 'Start again at the end, for ever.', read_only=True),
    Setting(
        'start_s',
        0.0,
        'Start this long after the first message [s].',
        lower=0.0,
        upper=1e9,
        read_only=True,
    ),
    Setting(
        'duration_s', 0.0, 'Stop after so much of the bag [s]; 0 for all.', 0.0, 1e9, (), True
    ),
    Setting('clock', False, 'Publish /clock.', read_only=True),
    Setting(
        'clock_hz',
        100.0,
        'Rate of /clock in real time [Hz].',
        lower=1.0,
        upper=1000.0,
        read_only=True,
    ),
    Setting(
        'wait_subscriptions', 1, 'Start when so many listen.', lower=1, upper=1000, read_only=True
    ),
    Setting(
        'wait_timeout_s',
        10.0,
        'Wait at most so long for them [s]; 0 not to wait.',
        lower=0.0,
        upper=3600.0,
        read_only=True,
    ),
)


class Sample(NamedTuple):
    """A serialised joint state and its time [ns]."""

    time_ns: int
    raw: bytes


def read_samples(bag: Path, topic: str) -> Iterator[Sample]:
    """
    Yield the messages of a topic with their header stamps, or log times where there are none.

    Raises
    ------
    FileNotFoundError, ValueError
        One line that names the bag and what is wrong.

    """
    with contextlib.ExitStack() as stack:
        files = open_files(bag, stack)
        chosen = choose_topic(bag, files, topic or None)
        for _, raws, log_times in read_chunks(chosen, files):
            for raw, log_time in zip(raws, log_times, strict=True):
                try:
                    stamp = cdr.stamp_ns(raw)
                except ValueError as error:
                    raise ValueError(f'{bag}: {chosen}: {error}') from None
                yield Sample(stamp or log_time, raw)


def select(samples: Iterator[Sample], start_s: float, duration_s: float) -> Iterator[Sample]:
    """Yield the samples from `start_s` after the first on, for `duration_s` (0 for all)."""
    begin = None
    for sample in samples:
        if begin is None:
            begin = sample.time_ns + round(start_s * NANOSECONDS)
        if sample.time_ns < begin:
            continue
        if duration_s and sample.time_ns > begin + round(duration_s * NANOSECONDS):
            return
        yield sample


class Pace:
    """
    When to send, on the steady clock, so that the bag runs at `rate`.

    Deadlines follow from the start and not from the send before, so that delays do not add up. A
    step back or a pause beyond `LONGEST_PAUSE_S` in the bag costs no time.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._deadline: float | None = None
        self._time_ns = 0

    def deadline(self, time_ns: int) -> float:
        """Return the steady time [s] at which the sample of this time is due."""
        if self._deadline is None:
            self._deadline = time.monotonic()
        else:
            step = (time_ns - self._time_ns) / NANOSECONDS
            if 0.0 < step <= LONGEST_PAUSE_S:
                self._deadline += step / self._rate
        self._time_ns = time_ns
        return self._deadline


class ReplayNode(Node):
    """Publishes `joint_states` and, where asked, `/clock`; ends by itself."""

    def __init__(self) -> None:
        # Nothing is spun while it plays, so services would never answer.
        super().__init__('replay_node', start_parameter_services=False)
        self.values = Settings(self, SETTINGS).read()
        if not self.values.bag:
            raise ValueError('parameter bag is empty; set it to a rosbag2 folder or file')
        self._publisher = self.create_publisher(
            JointState,
            'joint_states',
            QoSProfile(
                history=HistoryPolicy.KEEP_LAST, depth=100, reliability=ReliabilityPolicy.RELIABLE
            ),
            qos_overriding_options=QoSOverridingOptions.with_default_policies(),
        )
        self._clock_publisher = (
            self.create_publisher(Clock, '/clock', 10) if self.values.clock else None
        )
        self._clock_message = Clock()
        self._next_tick = -math.inf
        self.sent = 0

    def wait_for_subscription(self, stop: Stop) -> None:
        """
        Wait until as many listen as are wanted.

        Raises
        ------
        TimeoutError
            If they do not in time.

        """
        limit = self.values.wait_timeout_s
        if limit == 0:
            return
        topic = self._publisher.topic_name
        self.get_logger().info(f'waiting for a subscription to {topic}')
        end = time.monotonic() + limit
        wanted = self.values.wait_subscriptions
        while (found := self._publisher.get_subscription_count()) < wanted:
            if stop.is_set:
                return
            if time.monotonic() > end:
                raise TimeoutError(
                    f'{found or "no"} subscription to {topic} within {limit:g} s, '
                    f'wait_subscriptions is {wanted}; nothing was sent '
                    '(wait_timeout_s:=0.0 sends anyway)'
                )
            time.sleep(0.02)
        time.sleep(SETTLE_S)

    def play(self, stop: Stop) -> None:
        """Send all samples once, or again and again with `loop`."""
        v = self.values
        samples = self._samples()
        first = next(samples, None)
        if first is None:
            raise ValueError(
                f'{v.bag}: no message from {v.start_s:g} s on'
                + (f' for {v.duration_s:g} s' if v.duration_s else '')
            )
        head = [first]
        for sample in samples:
            head.append(sample)
            if len(head) == PRELOADED:
                break
        self.wait_for_subscription(stop)
        self.get_logger().info(
            f'playing {v.bag} on {self._publisher.topic_name} at rate {v.rate:g}'
        )
        while not stop.is_set:
            pace = Pace(v.rate)
            for part in (head, samples):
                for sample in part:
                    if not self._wait_until(pace.deadline(sample.time_ns), sample.time_ns, stop):
                        break
                    self._publisher.publish(sample.raw)
                    self.sent += 1
            if not v.loop:
                break
            if len(head) == PRELOADED:
                samples = self._samples(skip=PRELOADED)
        self._publisher.wait_for_all_acked(Duration(seconds=1.0))

    def _samples(self, skip: int = 0) -> Iterator[Sample]:
        v = self.values
        found = select(read_samples(Path(v.bag).expanduser(), v.topic), v.start_s, v.duration_s)
        for _ in range(skip):
            next(found, None)
        return found

    def _wait_until(self, deadline: float, time_ns: int, stop: Stop) -> bool:
        """Sleep until the deadline, with /clock on the way; False when stopped."""
        while not stop.is_set:
            left = deadline - time.monotonic()
            if self._clock_publisher is not None:
                self._tick(time_ns - round(max(left, 0.0) * self.values.rate * NANOSECONDS))
                left = min(left, 1.0 / self.values.clock_hz) if left > 0 else left
            if left <= 0:
                return True
            # Short enough for a signal to be seen in time.
            time.sleep(min(left, 0.2))
        return False

    def _tick(self, time_ns: int) -> None:
        now = time.monotonic()
        if now < self._next_tick:
            return
        self._next_tick = now + 0.999 / self.values.clock_hz
        sec, nanosec = divmod(time_ns, NANOSECONDS)
        self._clock_message.clock = Time(sec=sec, nanosec=nanosec)
        assert self._clock_publisher is not None
        self._clock_publisher.publish(self._clock_message)


def serve(node: ReplayNode, stop: Stop) -> int:
    """Play to the end and say how much was sent."""
    node.play(stop)
    node.get_logger().info(f'done: {node.sent} messages sent')
    return EXIT_OK if node.sent or stop.is_set else EXIT_FAILED


def main() -> int:
    """Entry point of the executable."""
    return run(ReplayNode, serve)


if __name__ == '__main__':
    raise SystemExit(main())
