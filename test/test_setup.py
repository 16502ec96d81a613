"""`make setup` on machines that lack something; python3, pip and uname are stand-ins."""

import os
from pathlib import Path
import shutil
import signal
import subprocess
import time

import pytest

ROOT = Path(__file__).parents[1]

FAKE_PYTHON = r"""#!/bin/bash
echo "$*" >>"$FAKE_CALLS"
case "$*" in
  *'import venv, ensurepip'*) exit "${FAKE_NO_VENV:-0}" ;;
  *serialize_message*)
    [ -z "$FAKE_BROKEN" ] || { echo 'ImportError: numpy is too new'; exit 1; }
    ;;
  *'import rclpy'*) [ -n "$FAKE_ROS" ] ;;
  *version_info*) echo "$FAKE_VERSION /fake" ;;
  '-m venv'*)
    [ -z "$FAKE_VENV_FAILS" ] || { echo 'Error: Permission denied'; exit 1; }
    folder=${!#}
    rm -rf "$folder"
    mkdir -p "$folder/bin"
    cp "$0" "$folder/bin/python"
    ;;
  *'-m pip'*install*)
    sleep "${FAKE_PIP_SLEEP:-0}"
    [ -z "$FAKE_PIP" ] || { echo "$FAKE_PIP"; exit 1; }
    touch .venv/bin/dlnn
    chmod +x .venv/bin/dlnn
    ;;
esac
"""
FAKE_UNAME = '#!/bin/bash\necho "$FAKE_MACHINE"\n'


class Host:
    """A checkout in a folder with a space in its name, on a machine of stand-ins."""

    def __init__(self, folder):
        self.root = folder / 'my checkout'
        self.calls = folder / 'calls'
        tools = folder / 'bin'
        (self.root / 'tools').mkdir(parents=True)
        tools.mkdir()
        for name in ('setup.py', 'setup.cfg', 'constraints.txt', 'tools/setup.sh'):
            shutil.copy(ROOT / name, self.root / name)
        for name, text in (('python3', FAKE_PYTHON), ('uname', FAKE_UNAME)):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        self.environment = {
            'PATH': f'{tools}:/usr/bin:/bin',
            'FAKE_CALLS': str(self.calls),
            'FAKE_VERSION': '3.11',
            'FAKE_MACHINE': 'Linux x86_64',
        }

    @property
    def venv(self):
        return self.root / '.venv'

    def start(self, **environment):
        self.calls.write_text('')
        return subprocess.Popen(
            [str(self.root / 'tools' / 'setup.sh')],
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def set_up(self, **environment):
        process = self.start(**environment)
        out, err = process.communicate(timeout=20)
        return process.returncode, out, err

    def fails(self, **environment):
        """Set up, which must fail with one line on stderr; return the line."""
        code, _, err = self.set_up(**environment)
        assert code != 0
        assert err.count('\n') == 1, err
        assert err.startswith('setup: error: ')
        assert not (self.venv / '.setup-done').exists()
        return err

    def succeeds(self, **environment):
        """Set up, which must work; return what was asked of python."""
        code, _, err = self.set_up(**environment)
        assert (code, err) == (0, '')
        return self.calls.read_text()


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


@pytest.mark.parametrize('version', ['2.7', '3.9'])
def test_old_python_is_refused(host, version):
    assert f'Python {version}, needed is 3.10 or newer' in host.fails(FAKE_VERSION=version)
    assert not host.venv.exists()


def test_python_newer_than_the_wheels_is_refused(host):
    assert 'the ROS 2 wheels need 3.10 to 3.13' in host.fails(FAKE_VERSION='3.14')


def test_other_machine_than_the_wheels_is_refused(host):
    line = host.fails(FAKE_MACHINE='Linux aarch64')
    assert 'Linux aarch64' in line
    assert 'Linux x86_64' in line


def test_missing_python_is_named(host):
    assert 'python3.99: not found' in host.fails(PYTHON='python3.99')


def test_missing_venv_module_names_the_apt_package(host):
    line = host.fails(FAKE_NO_VENV='1')
    assert 'apt install python3-venv' in line
    assert 'python3.11-venv' in line


def test_folder_that_cannot_be_written_is_named(host):
    line = host.fails(FAKE_VENV_FAILS='1')
    assert 'my checkout/.venv' in line
    assert 'Permission denied' in line


def test_sourced_ros_that_this_python_cannot_import_is_refused(host):
    line = host.fails(ROS_DISTRO='jazzy', AMENT_PREFIX_PATH='/opt/ros/jazzy')
    assert 'jazzy is sourced' in line
    assert 'PYTHON=' in line


@pytest.mark.parametrize(
    ('output', 'reason'),
    [
        ("WARNING: Retrying: NewConnectionError('x')\nERROR: No matching distribution", 'network'),
        ('ERROR: Could not install: [Errno 28] No space left on device', 'disk is full'),
        ('WARNING: a\nERROR: Cannot install a and b\nnote', 'ERROR: Cannot install a and b'),
        ('', 'no reason given'),
    ],
)
def test_pip_failure_is_one_line_and_the_log_has_the_rest(host, output, reason):
    line = host.fails(FAKE_PIP=output or ' ')
    assert reason in line
    log = host.venv / 'setup.log'
    assert str(log) in line
    assert output in log.read_text()
    calls = host.succeeds()
    assert '-m venv' not in calls
    assert 'install' in calls


def test_packages_that_do_not_work_are_an_error(host):
    assert 'numpy is too new' in host.fails(FAKE_BROKEN='1')


def test_without_ros_the_wheels_are_installed(host):
    calls = host.succeeds()
    assert '--system-site-packages' not in calls
    assert 'ros-kilted-rclpy' in calls
    assert '-c constraints.txt' in calls


@pytest.mark.parametrize(
    'machine', [{}, {'FAKE_MACHINE': 'Linux aarch64'}, {'FAKE_VERSION': '3.14'}]
)
def test_sourced_ros_is_used_and_no_wheels(host, machine):
    calls = host.succeeds(ROS_DISTRO='jazzy', FAKE_ROS='1', **machine)
    assert '--system-site-packages' in calls
    assert 'ros-kilted' not in calls


def test_second_run_installs_nothing(host):
    host.succeeds()
    assert 'install' not in host.succeeds()


@pytest.mark.parametrize('name', ['setup.py', 'constraints.txt'])
def test_changed_versions_are_installed_into_the_same_environment(host, name):
    host.succeeds()
    with (host.root / name).open('a') as file:
        file.write('# changed\n')
    calls = host.succeeds()
    assert 'install' in calls
    assert '-m venv' not in calls


@pytest.mark.parametrize(
    'change',
    [
        {'FAKE_VERSION': '3.12'},
        {'ROS_DISTRO': 'jazzy', 'FAKE_ROS': '1'},
    ],
)
def test_other_python_or_ros_makes_a_new_environment(host, change):
    host.succeeds()
    (host.venv / 'old').touch()
    assert '-m venv --clear' in host.succeeds(**change)
    assert not (host.venv / 'old').exists()


def test_environment_made_by_hand_is_kept(host):
    host.succeeds()
    for name in ('.setup-made', '.setup-done'):
        (host.venv / name).unlink()
    (host.venv / 'pyvenv.cfg').write_text('include-system-site-packages = false\n')
    assert '-m venv' not in host.succeeds()
    assert (host.venv / '.setup-made').exists()


def test_ctrl_c_stops_pip_and_the_next_run_goes_on(host):
    # A shell's background job ignores Ctrl-C, and so does what it starts, but for a handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = host.start(FAKE_PIP_SLEEP='30')
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 10
    while 'install' not in host.calls.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert err == 'setup: error: interrupted\n'
    assert not (host.venv / '.setup-done').exists()
    host.succeeds()
