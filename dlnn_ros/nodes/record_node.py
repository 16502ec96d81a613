"""Node: records JointState topics as a rosbag2, where rosbag2 itself is not installed."""

from __future__ import annotations

from collections.abc import Sequence
import functools
from pathlib import Path
import shutil
import tempfile
import time

from dlnn_ros.data.bag_files import JOINT_STATE
from dlnn_ros.data.bags import joint_state_types, open_writer, STORAGES
from dlnn_ros.nodes.params import Setting, Settings
from dlnn_ros.nodes.process import EXIT_FAILED, EXIT_OK, run, Stop
from rclpy.experimental import EventsExecutor
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from sensor_msgs.msg import JointState

SETTINGS = (
    Setting('bag', '', 'Folder of the new rosbag2; required.', read_only=True),
    Setting(
        'topics', ('feedforward_node/feedforward',), 'JointState topics; required.', read_only=True
    ),
    Setting('storage', 'mcap', 'Storage format.', choices=STORAGES, read_only=True),
    Setting('overwrite', False, 'Replace a bag of that name.', read_only=True),
    Setting(
        'expected',
        0,
        'End after so many messages on the first topic; 0 for no such end.',
        lower=0,
        upper=2**31 - 1,
        read_only=True,
    ),
    Setting(
        'idle_timeout_s',
        0.0,
        'End when, after the first message, none has come for so long [s]; 0 for no such end.',
        lower=0.0,
        upper=3600.0,
        read_only=True,
    ),
    Setting(
        'wait_timeout_s',
        0.0,
        'Fail when no first message has come for so long [s]; 0 to wait for ever.',
        lower=0.0,
        upper=3600.0,
        read_only=True,
    ),
)


class BagFile:
    """
    A rosbag2 that appears under its name when it is complete.

    Parameters
    ----------
    path : Path
        Folder to make.
    topics : sequence of str
    storage : str
        'mcap' or 'sqlite3'.
    overwrite : bool

    """

    def __init__(self, path: Path, topics: Sequence[str], storage: str, overwrite: bool) -> None:
        if path.exists() and not overwrite:
            raise FileExistsError(f'{path}: exists already; choose another bag or overwrite it')
        if path.exists() and not (path / 'metadata.yaml').is_file():
            raise FileExistsError(f'{path}: is no bag and is not replaced; choose another name')
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._work = Path(tempfile.mkdtemp(prefix=f'.{path.name}.', dir=path.parent))
        # The name inside is the final one: the files are named after their folder.
        self._writer = open_writer(self._work / path.name, storage)
        self._writer.open()
        store = joint_state_types()
        self._connections = {
            topic: self._writer.add_connection(topic, JOINT_STATE, typestore=store)
            for topic in topics
        }

    def write(self, topic: str, time_ns: int, raw: bytes) -> None:
        """Add a serialised message."""
        self._writer.write(self._connections[topic], time_ns, raw)

    def finish(self) -> None:
        """Close the bag and give it its name."""
        self._writer.close()
        if self._path.is_dir():
            self._path.rename(self._work / 'replaced')
        (self._work / self._path.name).rename(self._path)
        shutil.rmtree(self._work)

    def discard(self) -> None:
        """Leave nothing behind."""
        self._writer.close()
        shutil.rmtree(self._work, ignore_errors=True)


class RecordNode(Node):
    """Writes what arrives, as it arrived."""

    def __init__(self) -> None:
        super().__init__('record_node')
        self.values = Settings(self, SETTINGS).read()
        if not self.values.bag:
            raise ValueError('parameter bag is empty; set it to the folder to record to')
        if not self.values.topics:
            raise ValueError('parameter topics is empty; name at least one JointState topic')
        if len(set(self.values.topics)) < len(self.values.topics):
            raise ValueError(f'parameter topics has one twice: {", ".join(self.values.topics)}')
        self.received = [0] * len(self.values.topics)
        self._subscriptions_of = [
            self.create_subscription(
                JointState,
                topic,
                functools.partial(self._on_message, number),
                QoSProfile(
                    history=HistoryPolicy.KEEP_LAST,
                    depth=1000,
                    reliability=ReliabilityPolicy.RELIABLE,
                ),
                raw=True,
                qos_overriding_options=QoSOverridingOptions.with_default_policies(),
            )
            for number, topic in enumerate(self.values.topics)
        ]
        self.topics = [s.topic_name for s in self._subscriptions_of]
        self.bag = BagFile(
            Path(self.values.bag).expanduser(),
            self.topics,
            self.values.storage,
            self.values.overwrite,
        )
        self.last_s = time.monotonic()
        self._matched: set[str] = set()

    def _on_message(self, number: int, raw: bytes) -> None:
        self.bag.write(self.topics[number], time.time_ns(), raw)
        self.received[number] += 1
        self.last_s = time.monotonic()

    def is_done(self) -> bool:
        """
        Return whether an end that the parameters name has come.

        Raises
        ------
        TimeoutError
            If the first message has not come in time.

        """
        v = self.values
        self._report_matches()
        if v.expected and self.received[0] >= v.expected:
            return True
        idle_s = time.monotonic() - self.last_s
        if any(self.received):
            return bool(v.idle_timeout_s and idle_s > v.idle_timeout_s)
        if v.wait_timeout_s and idle_s > v.wait_timeout_s:
            publishers = sum(s.get_publisher_count() for s in self._subscriptions_of)
            raise TimeoutError(
                f'no message on {", ".join(self.topics)} within {v.wait_timeout_s:g} s, '
                f'{publishers} publishers; nothing was written'
            )
        return False

    def _report_matches(self) -> None:
        matched = {s.topic_name for s in self._subscriptions_of if s.get_publisher_count() > 0}
        for topic in sorted(matched - self._matched):
            self.get_logger().info(f'matched: {topic} has a publisher')
        self._matched = matched


def serve(node: RecordNode, stop: Stop) -> int:
    """Record until done or stopped."""
    executor = EventsExecutor()
    executor.add_node(node)
    node.get_logger().info(f'ready: recording {", ".join(node.topics)} to {node.values.bag}')
    is_whole = False
    try:
        while not stop.is_set and not node.is_done():
            executor.spin_once(timeout_sec=0.05)
        is_whole = any(node.received)
    finally:
        executor.remove_node(node)
        executor.shutdown()
        if is_whole:
            node.bag.finish()
        else:
            node.bag.discard()
    if not is_whole:
        node.get_logger().warning(f'no message on {", ".join(node.topics)}: nothing was written')
        return EXIT_OK if stop.is_set else EXIT_FAILED
    node.get_logger().info(f'done: {sum(node.received)} messages in {node.values.bag}')
    return EXIT_OK


def main() -> int:
    """Entry point of the executable."""
    return run(RecordNode, serve)


if __name__ == '__main__':
    raise SystemExit(main())
