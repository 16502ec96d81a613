"""Nodes as real processes on real DDS, and a client to watch them."""

import os
from pathlib import Path
import signal
import subprocess
import sys
import threading
import time

ROOT = Path(__file__).resolve().parents[1]


def environment(folder, domain):
    """Environment of a test's ROS processes: this machine, this domain, logs in `folder`."""
    return {
        'ROS_DOMAIN_ID': str(domain),
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
        'ROS_LOG_DIR': str(folder),
        'ROS_PYTHON_CHECK_FIELDS': '1',
        'RCUTILS_LOGGING_USE_STDOUT': '0',
        'FASTDDS_DEFAULT_PROFILES_FILE': str(ROOT / 'config/nodes/fastdds_discovery.xml'),
    }


class NodeProcess:
    """One node; its output is read as it comes."""

    def __init__(self, node, parameters=None, arguments=()):
        command = [sys.executable, '-u', '-m', f'dlnn_ros.nodes.{node}', '--ros-args']
        for name, value in (parameters or {}).items():
            command += ['-p', f'{name}:={value}']
        self.lines = []
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=os.environ.copy(),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def text(self):
        return '\n'.join(self.lines)

    def wait_for(self, text, timeout_s=60.0):
        """Wait for a line with `text`; the process must still run or have written it."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if text in self.text:
                return
            if self.process.poll() is not None:
                self._reader.join(2)
                assert text in self.text, f'ended without {text!r}:\n{self.text}'
                return
            time.sleep(0.02)
        raise AssertionError(f'no {text!r} within {timeout_s} s:\n{self.text}')

    def finish(self, timeout_s=60.0):
        """Return the exit code of a node that ends by itself."""
        code = self.process.wait(timeout_s)
        self._reader.join(2)
        return code

    def stop(self, *signals, timeout_s=20.0):
        """Send signals, return the exit code."""
        for number in signals or (signal.SIGINT,):
            self.process.send_signal(number)
            time.sleep(0.01)
        return self.finish(timeout_s)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
        self._reader.join(2)
        self.process.stdout.close()
