"""Node: records one JointState topic as a rosbag2, where rosbag2 itself is not installed."""

from __future__ import annotations

from pathlib import Path
import shutil
import tempfile
import time

from dlnn_ros.nodes.params import Setting, Settings
from dlnn_ros.nodes.process import EXIT_FAILED, EXIT_OK, run, Stop
from rclpy.experimental import EventsExecutor
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import get_typestore, Stores
from sensor_msgs.msg import JointState

TYPE = 'sensor_msgs/msg/JointState'

SETTINGS = (
    Setting('bag', '', 'Folder of the new rosbag2; required.', read_only=True),
    Setting('topic', 'feedforward_node/feedforward', 'JointState topic.', read_only=True),
    Setting('storage', 'mcap', 'Storage format.', choices=('mcap', 'sqlite3'), read_only=True),
    Setting('overwrite', False, 'Replace a bag of that name.', read_only=True),
    Setting(
        'expected',
        0,
        'End after so many messages; 0 for no such end.',
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
    topic : str
    storage : str
        'mcap' or 'sqlite3'.
    overwrite : bool

    """

    def __init__(self, path: Path, topic: str, storage: str, overwrite: bool) -> None:
        if path.exists() and not overwrite:
            raise FileExistsError(f'{path}: exists already; choose another bag or overwrite it')
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._work = Path(tempfile.mkdtemp(prefix=f'.{path.name}.', dir=path.parent))
        plugin = StoragePlugin.MCAP if storage == 'mcap' else StoragePlugin.SQLITE3
        # The name inside is the final one: the files are named after their folder.
        self._writer = Writer(self._work / path.name, version=9, storage_plugin=plugin)
        self._writer.open()
        self._connection = self._writer.add_connection(
            topic, TYPE, typestore=get_typestore(Stores.LATEST)
        )

    def write(self, time_ns: int, raw: bytes) -> None:
        """Add a serialised message."""
        self._writer.write(self._connection, time_ns, raw)

    def finish(self) -> None:
        """Close the bag and give it its name."""
        self._writer.close()
        if self._path.is_dir():
            shutil.rmtree(self._path)
        (self._work / self._path.name).rename(self._path)
        self._work.rmdir()

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
        self._subscription = self.create_subscription(
            JointState,
            self.values.topic,
            self._on_message,
            QoSProfile(
                history=HistoryPolicy.KEEP_LAST,
                depth=1000,
                reliability=ReliabilityPolicy.RELIABLE,
            ),
            raw=True,
            qos_overriding_options=QoSOverridingOptions.with_default_policies(),
        )
        self.topic = self._subscription.topic_name
        self.bag = BagFile(
            Path(self.values.bag).expanduser(),
            self.topic,
            self.values.storage,
            self.values.overwrite,
        )
        self.received = 0
        self.last_s = self.started_s = time.monotonic()
        self._is_matched = False

    def _on_message(self, raw: bytes) -> None:
        self.bag.write(time.time_ns(), raw)
        self.received += 1
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
        self._report_match()
        if v.expected and self.received >= v.expected:
            return True
        idle_s = time.monotonic() - self.last_s
        if self.received:
            return bool(v.idle_timeout_s and idle_s > v.idle_timeout_s)
        if v.wait_timeout_s and idle_s > v.wait_timeout_s:
            publishers = self._subscription.get_publisher_count()
            raise TimeoutError(
                f'no message on {self.topic} within {v.wait_timeout_s:g} s, '
                f'{publishers} publishers; nothing was written'
            )
        return False

    def _report_match(self) -> None:
        is_matched = self._subscription.get_publisher_count() > 0
        if is_matched and not self._is_matched:
            self.get_logger().info(f'matched: a publisher on {self.topic}')
        self._is_matched = is_matched


def serve(node: RecordNode, stop: Stop) -> int:
    """Record until done or stopped."""
    executor = EventsExecutor()
    executor.add_node(node)
    node.get_logger().info(f'ready: recording {node.topic} to {node.values.bag}')
    is_whole = False
    try:
        while not stop.is_set and not node.is_done():
            executor.spin_once(timeout_sec=0.05)
        is_whole = node.received > 0
    finally:
        executor.remove_node(node)
        executor.shutdown()
        if is_whole:
            node.bag.finish()
        else:
            node.bag.discard()
    if not is_whole:
        node.get_logger().warning(f'no message on {node.topic}: nothing was written')
        return EXIT_OK if stop.is_set else EXIT_FAILED
    node.get_logger().info(f'done: {node.received} messages in {node.values.bag}')
    return EXIT_OK


def main() -> int:
    """Entry point of the executable."""
    return run(RecordNode, serve)


if __name__ == '__main__':
    raise SystemExit(main())
