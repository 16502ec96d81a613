"""Nodes as processes of their own, with what they print kept in a file."""

from __future__ import annotations

from collections.abc import Mapping
import ctypes
import os
from pathlib import Path
import random
import signal
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Any

from dlnn_ros.config import share_path
import yaml

STOP_S = 10.0
PR_SET_PDEATHSIG = 1
# Loaded here: between fork and exec as little as possible may happen.
_LIBC = ctypes.CDLL(None)


class NodeProcess:
    """
    One node of this package, started with parameters from a file.

    Parameters
    ----------
    node : str
        Module in dlnn_ros.nodes.
    parameters : mapping
        ROS parameters.
    folder : Path
        For the parameter file and the log.
    environment : mapping
        Of the process.
    name : str
        Of the node and its files, where it is not the node's own: several run side by side.

    """

    def __init__(
        self,
        node: str,
        parameters: Mapping[str, Any],
        folder: Path,
        environment: Mapping[str, str],
        name: str = '',
    ) -> None:
        self.name = name or node
        self.log = folder / f'{self.name}.log'
        file = folder / f'{self.name}.yaml'
        file.write_text(yaml.safe_dump({'/**': {'ros__parameters': dict(parameters)}}))
        command = [sys.executable, '-m', f'dlnn_ros.nodes.{node}']
        command += ['--ros-args', '--params-file', str(file), '-r', f'__node:={self.name}']
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(environment),
            # Ctrl-C in the terminal is for the command; it ends its nodes itself.
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, text: str, timeout_s: float) -> str:
        """
        Return the first line that contains `text`.

        Raises
        ------
        TimeoutError
            If it does not come in time.
        ValueError
            If the process ends or reports an error before.

        """
        end = time.monotonic() + timeout_s
        seen = 0
        with self._news:
            while True:
                for line in self._lines[seen:]:
                    if text in line:
                        return line
                    if '[ERROR]' in line or line.startswith('error:'):
                        raise ValueError(f'{self.name}: {line.strip()} (log: {self.log})')
                seen = len(self._lines)
                if self._process.poll() is not None and not self._reader.is_alive():
                    raise ValueError(
                        f'{self.name} ended with exit code {self._process.returncode} '
                        f'before {text!r}; log: {self.log}'
                    )
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f'{self.name} did not report {text!r} within {timeout_s:g} s; '
                        f'log: {self.log}'
                    )
                self._news.wait(min(left, 0.1))

    def wait(self, timeout_s: float) -> int:
        """
        Wait for the end; return the exit code.

        Raises
        ------
        TimeoutError
            If the process does not end in time.

        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(
                f'{self.name} did not end within {timeout_s:g} s; log: {self.log}'
            ) from None

    def stop(self) -> int:
        """End the process as Ctrl-C does, then by force; return the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        code = self._process.wait()
        self._reader.join(STOP_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self.log.open('w', encoding='utf-8') as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                with self._news:
                    self._lines.append(line)
                    self._news.notify_all()


def _end_with_parent() -> None:
    """Have the kernel interrupt this process when its parent is gone, killed without a word."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def private_environment(folder: Path) -> dict[str, str]:
    """Return an environment in which nodes see only each other, on this machine."""
    log = folder / 'ros_log'
    log.mkdir(parents=True, exist_ok=True)
    return {
        'FASTDDS_DEFAULT_PROFILES_FILE': str(share_path('config/nodes/fastdds_discovery.xml')),
        **os.environ,
        'ROS_DOMAIN_ID': str(random.randint(1, 101)),
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
        'ROS_LOG_DIR': str(log),
        'PYTHONUNBUFFERED': '1',
    }
