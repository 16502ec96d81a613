"""The package in a colcon workspace: builds, lies where `ros2 run` looks, and tests itself."""

import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET

import pytest
from test_package import ROOT, source_files

pytestmark = pytest.mark.slow

# Of the package's own tests: those that take no time.
TESTED = ('test_layers.py', 'test_package.py')


@pytest.fixture(scope='module')
def colcon():
    """Return a function that runs colcon in a workspace with a copy of this source."""
    pytest.importorskip('colcon_core', reason='colcon-common-extensions is not installed')
    return Path(sys.executable).with_name('colcon')


@pytest.fixture(scope='module')
def workspace(colcon, tmp_path_factory):
    folder = tmp_path_factory.mktemp('colcon ws')
    for path in source_files():
        copy = folder / 'src' / 'dlnn_ros' / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    run(colcon, folder, 'build')
    return folder


def run(colcon, folder, verb, *arguments):
    environment = {**os.environ, 'COLCON_HOME': str(folder), 'COLCON_LOG_PATH': 'log'}
    done = subprocess.run(
        [colcon, verb, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f'colcon {verb}\n{done.stdout}\n{done.stderr}'
    return done.stdout


def run_in_install(workspace, command):
    """Run a command where the workspace is sourced, in a folder without this source."""
    return subprocess.run(
        ['bash', '-c', f'. install/setup.bash && cd / && {command}'],
        cwd=workspace,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_package_is_found_once(colcon, workspace):
    assert run(colcon, workspace, 'list', '--names-only').split() == ['dlnn_ros']


def test_executables_lie_where_ros2_run_looks(workspace):
    library = workspace / 'install' / 'dlnn_ros' / 'lib' / 'dlnn_ros'
    names = {p.name for p in library.iterdir()}
    assert {'dlnn', 'feedforward_node', 'replay_node', 'record_node'} <= names
    assert all(os.access(p, os.X_OK) for p in library.iterdir())


def test_share_is_installed(workspace):
    share = workspace / 'install' / 'dlnn_ros' / 'share'
    assert (share / 'ament_index' / 'resource_index' / 'packages' / 'dlnn_ros').exists()
    for path in source_files():
        name = path.relative_to(ROOT)
        if name.parts[0] in ('launch', 'config') or str(name) == 'package.xml':
            assert (share / 'dlnn_ros' / name).read_bytes() == path.read_bytes()


def test_installed_package_finds_its_configuration(workspace):
    code = (
        'import dlnn_ros.config as c; '
        'print(c.__file__); print(c.share_path("config/robots/kr300.yaml"))'
    )
    done = run_in_install(workspace, f"'{sys.executable}' -c '{code}'")
    assert done.returncode == 0, done.stderr
    module, robot = done.stdout.splitlines()
    assert Path(module).is_relative_to(workspace / 'install')
    assert Path(robot).is_relative_to(workspace / 'install')


def test_installed_command_starts(workspace):
    library = workspace / 'install' / 'dlnn_ros' / 'lib' / 'dlnn_ros'
    done = run_in_install(workspace, f"'{library}/dlnn' --help")
    assert done.returncode == 0, done.stderr
    assert 'usage: dlnn' in done.stdout


@pytest.mark.ros
def test_installed_node_starts_and_ends_with_ctrl_c(workspace):
    node = workspace / 'install' / 'dlnn_ros' / 'lib' / 'dlnn_ros' / 'feedforward_node'
    process = subprocess.Popen(
        ['bash', '-c', f". install/setup.bash && exec '{node}'"],
        cwd=workspace,
        env={
            **os.environ,
            'ROS_LOG_DIR': str(workspace / 'log'),
            'ROS_DOMAIN_ID': '87',
            'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        lines = iter(process.stderr.readline, '')
        assert any('ready: unconfigured' in line for line in lines)
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate()
        assert process.returncode == 0, rest
        assert 'Traceback' not in rest
    finally:
        watchdog.cancel()
        process.kill()


def test_colcon_test_passes(colcon, workspace):
    tests = [f'test/{name}' for name in TESTED]
    run(colcon, workspace, 'test', '--return-code-on-test-failure', '--pytest-args', *tests)
    summary = run(colcon, workspace, 'test-result', '--all')
    assert ' 0 errors, 0 failures' in summary
    report = ET.parse(workspace / 'build' / 'dlnn_ros' / 'pytest.xml').getroot()
    assert int(report.find('testsuite').get('tests')) > 20
