"""The life of a node's process: start, signals, end with an exit code and without traceback."""

from __future__ import annotations

from collections.abc import Callable
import signal
import sys
from types import FrameType
from typing import TypeVar

import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

N = TypeVar('N', bound=Node)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2


class Stop:
    """
    Set by SIGINT or SIGTERM; reading it is all a loop has to do.

    The context stays valid after a signal, so that a node can publish its last words. Further
    signals change nothing: Ctrl-C in a terminal arrives twice where a launch system passes it on.
    """

    def __init__(self) -> None:
        self.is_set = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.is_set = True


def run(make_node: Callable[[], N], serve: Callable[[N, Stop], int]) -> int:
    """
    Make a node, serve until done or stopped, clean up.

    Parameters
    ----------
    make_node : callable
        Called once ROS is initialised.
    serve : callable
        Takes the node and the stop request, returns the exit code.

    Returns
    -------
    code : int
        0, what `serve` returned, or 2 where the node could not be made.

    """
    stop = Stop()
    try:
        rclpy.init(args=sys.argv, signal_handler_options=SignalHandlerOptions.NO)
        node = make_node()
    except Exception as error:
        # Whatever it is (a parameter file that is not there, a bad remapping), a user gets one
        # line.
        print(f'error: {_one_line(error)}', file=sys.stderr)
        rclpy.try_shutdown()
        return EXIT_USAGE
    try:
        return serve(node, stop)
    except (FileNotFoundError, ValueError, TypeError, TimeoutError, OSError) as error:
        node.get_logger().error(_one_line(error))
        return EXIT_FAILED
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


def _one_line(error: Exception) -> str:
    return ' '.join(str(error).split()) or type(error).__name__
