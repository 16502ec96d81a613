"""The main job: what comes over ROS is paired, scored and judged; a small run from end to end."""

from dataclasses import replace
import json
from pathlib import Path
import signal
import subprocess
import sys
import time

import datasets
from dlnn_ros.cli import demo, live
from dlnn_ros.cli.main import main
from dlnn_ros.cli.processes import NodeProcess
from dlnn_ros.data.bags import write_bag
from dlnn_ros.data.efforts import Efforts
from dlnn_ros.data.trajectory import RecordingSet
from dlnn_ros.learning.evaluate import Prediction
from dlnn_ros.learning.model_folder import load_description
import numpy as np
import pytest

import models

JOINTS = ('p1', 'p2')


@pytest.fixture
def trajectory(rng):
    return datasets.two_pendulums(rng, trajectories=3).trajectories[0]


def answers_to(trajectory, lost=(), delay_ns=2_000_000):
    """Return stamps sent, perfect answers to all but the lost samples, and the states seen."""
    sent = 10**9 + np.arange(len(trajectory.t)) * 20_000_000
    kept = np.setdiff1d(np.arange(len(sent)), lost)
    states = Efforts(sent, sent + 5, np.empty((len(sent), 0)))
    return sent, Efforts(sent[kept], sent[kept] + 5 + delay_ns, trajectory.tau[kept]), states


def test_answers_are_paired_by_stamp(trajectory):
    sent, answers, states = answers_to(trajectory, lost=[0, 7, 8])
    order = np.random.default_rng(0).permutation(len(answers.stamps))
    shuffled = Efforts(*(a[order] for a in answers))
    scored = live.score_answers(trajectory, JOINTS, sent, shuffled, states)
    assert (scored.received, scored.expected) == (397, 400)
    assert scored.scores['r2_mean'] == 1.0
    assert scored.latency_ms == {'p50': 2.0, 'p99': 2.0}


def test_answers_one_sample_late_are_not_perfect(trajectory):
    sent, answers, states = answers_to(trajectory)
    late = answers._replace(effort=np.roll(answers.effort, 1, axis=0))
    assert live.score_answers(trajectory, JOINTS, sent, late, states).scores['r2_mean'] < 0.999


def test_answers_with_foreign_stamps_are_an_error(trajectory):
    sent, answers, states = answers_to(trajectory)
    with pytest.raises(ValueError, match='none of 400 feed-forward messages has the stamp'):
        live.score_answers(
            trajectory, JOINTS, sent, answers._replace(stamps=answers.stamps + 1), states
        )


def judge(trajectory, tmp_path, lost=(), noise=0.0, min_r2=0.8, dissipated=1.0):
    sent, answers, states = answers_to(trajectory, lost)
    effort = answers.effort + noise * np.random.default_rng(0).normal(size=answers.effort.shape)
    scored = live.score_answers(trajectory, JOINTS, sent, answers._replace(effort=effort), states)
    folder = models.save_tiny_model(tmp_path / 'm', JOINTS)
    description = load_description(folder)
    description = replace(description, provenance={'samples': 1, 'train_s': 1.0})
    offline = {'dlnn': {**scored.scores, 'dissipated_power_min': dissipated}}
    prediction = Prediction(trajectory, trajectory.tau, {}, None)
    robot = description.robot
    return demo.make_result(
        tmp_path, Path('bag'), robot, prediction, scored, offline, description, min_r2
    )


@pytest.mark.parametrize(
    ('change', 'fault'),
    [
        ({}, None),
        ({'noise': 30.0}, 'is below 0.8'),
        ({'lost': range(100)}, 'only 300 of 400 joint states were answered'),
        ({'dissipated': -1.0}, 'the model gives energy'),
    ],
)
def test_a_run_is_good_or_says_why_not(trajectory, tmp_path, change, fault):
    result = judge(trajectory, tmp_path, **change)
    assert result.exit_code == (0 if fault is None else 1)
    assert result.data['good'] == (fault is None)
    assert ('FAILED' in result.text) == (fault is not None)
    if fault:
        assert fault in result.text
    report = (tmp_path / 'report.html').read_text()
    assert report.count('<svg') == 1
    assert set(result.data) >= {'received', 'expected', 'models', 'report'}
    assert {'r2_mean_live', 'r2_mean_offline', 'latency_p99_ms'} <= set(
        result.data['models']['dlnn']
    )


@pytest.mark.ros
def test_small_demo_from_end_to_end(rng, tmp_path, monkeypatch, capsys):
    pytest.importorskip('rclpy', reason='ROS 2 is not here')
    monkeypatch.setattr(demo, 'BASELINES', {'linear': 1.0})
    data = datasets.two_pendulums(rng, trajectories=3)
    recordings = tuple(replace(t.recording, role='') for t in data)
    write_bag(tmp_path / 'bag', RecordingSet(data.robot, recordings))
    run = ['demo', '--bag', str(tmp_path / 'bag'), '--out', str(tmp_path / 'out'), '--rate', '4']
    assert main([*run, '--time-budget', '4', '--min-r2', '0.5', '--json']) == 0
    result = json.loads(capsys.readouterr().out)
    assert result['expected'] == 400
    assert result['received'] >= 395
    assert result['models']['dlnn']['r2_mean_live'] > 0.5
    assert (tmp_path / 'out' / 'report.html').exists()
    # A poor fit is no success.
    assert main([*run, '--no-train', '--min-r2', '0.9999']) == 1
    assert 'FAILED: live R2' in capsys.readouterr().out


@pytest.mark.ros
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL])
def test_nodes_end_with_the_process_that_started_them(tmp_path, number):
    pytest.importorskip('rclpy', reason='ROS 2 is not here')
    code = (
        'import sys, time\n'
        'from pathlib import Path\n'
        'from dlnn_ros.cli import main, live\n'
        f'folder = Path({str(tmp_path)!r})\n'
        'environment = live.private_environment(folder)\n'
        "node = live.NodeProcess('feedforward_node', {}, folder, environment)\n"
        "node.wait_for('ready:', 60)\n"
        'print(node._process.pid, flush=True)\n'
        'time.sleep(600)\n'
    )
    parent = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.send_signal(number)
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 30
    while Path(f'/proc/{child}/cmdline').exists() and time.monotonic() < end:
        if not Path(f'/proc/{child}/cmdline').read_bytes():
            break  # a zombie that nobody collects
        time.sleep(0.1)
    assert time.monotonic() < end


@pytest.mark.ros
def test_node_that_cannot_start_is_one_line(tmp_path):
    pytest.importorskip('rclpy', reason='ROS 2 is not here')
    environment = live.private_environment(tmp_path)
    with (
        NodeProcess(
            'feedforward_node',
            {'model': str(tmp_path / 'none'), 'autostart': True},
            tmp_path,
            environment,
        ) as node,
        pytest.raises(ValueError, match=r'configure failed: .*none: no such model folder'),
    ):
        node.wait_for('active:', 60.0)
    with (
        NodeProcess('replay_node', {}, tmp_path, environment) as node,
        pytest.raises(ValueError, match='parameter bag is empty'),
    ):
        node.wait_for('done:', 60.0)
