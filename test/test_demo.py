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
from dlnn_ros.data.trajectory import Recording, RecordingSet, Trajectory
from dlnn_ros.learning import stops
from dlnn_ros.learning.evaluate import Evaluation, Prediction
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


def judge(trajectory, tmp_path, lost=(), noise=0.0, min_r2=0.8, dissipated=1.0, surplus=0.0):
    """Judge a run in which `dlnn` is perfect, and `dlnn_memory` as told."""
    folder = models.save_tiny_model(tmp_path / 'm', JOINTS)
    description = load_description(folder)
    description = replace(description, provenance={'samples': 1, 'train_s': 1.0})

    def serve(lost=(), noise=0.0, dissipated=1.0, surplus=None):
        sent, answers, states = answers_to(trajectory, lost)
        error = noise * np.random.default_rng(0).normal(size=answers.effort.shape)
        answers = answers._replace(effort=answers.effort + error)
        scored = live.score_answers(trajectory, JOINTS, sent, answers, states)
        prediction = Prediction(trajectory, trajectory.tau, {}, None, surplus)
        scores = {**scored.scores, 'dissipated_power_min': dissipated}
        return demo.Served(scored, description), Evaluation((prediction,), scores)

    energy = np.linspace(0.0, 10.0, 400)
    energy[0] = surplus
    served = {'dlnn': serve(), 'dlnn_memory': serve(lost, noise, dissipated, energy)}
    return demo.make_result(
        tmp_path,
        Path('bag'),
        {kind: pair[0] for kind, pair in served.items()},
        {kind: pair[1] for kind, pair in served.items()},
        min_r2,
    )


@pytest.mark.parametrize(
    ('change', 'fault'),
    [
        ({}, None),
        ({'noise': 30.0}, 'is below 0.8'),
        ({'lost': range(100)}, 'only 300 of 400 joint states were answered'),
        ({'dissipated': -1.0}, 'the model gives energy'),
        ({'surplus': -1e-9}, None),  # rounding of 10 J
        ({'surplus': -1e-7}, 'its memory gives energy: 1e-07 J'),
    ],
)
def test_a_run_is_good_or_says_why_not(trajectory, tmp_path, change, fault):
    result = judge(trajectory, tmp_path, **change)
    assert result.exit_code == (0 if fault is None else 1)
    assert result.data['good'] == (fault is None)
    assert ('FAILED' in result.text) == (fault is not None)
    if fault:
        assert fault in result.text
        assert [f.partition(':')[0] for f in result.data['faults']] == ['dlnn_memory']
    report = (tmp_path / 'report.html').read_text()
    assert report.count('<svg') == (1 if stops.find_stop(trajectory) is None else 2)
    assert set(result.data) >= {'received', 'expected', 'models', 'report'}
    # The worse of both.
    assert result.data['received'] == 400 - len(change.get('lost', ()))
    for kind in demo.SERVED:
        figures = result.data['models'][kind]
        assert {'r2_mean_live', 'r2_mean_offline', 'latency_p99_ms'} <= set(figures)


def stop_and_go(begin, end, noise=0.0):
    """Return a trajectory of two joints; the first rests from `begin` to `end` [s]."""
    t = np.arange(0.0, 20.0, 0.01)
    qd = np.ones((len(t), 2))
    qd[(t >= begin) & (t < end), 0] = 0.0
    qd[::7] += noise
    q = np.cumsum(qd, axis=0) * 0.01
    return Trajectory(Recording(t, q, q), q, qd, np.gradient(qd, 0.01, axis=0))


def test_a_stop_is_found_with_what_surrounds_it():
    assert stops.find_stop(stop_and_go(3.0, 4.0)) == pytest.approx((1.0, 6.0), abs=0.011)
    # A long rest is not shown whole, and may be the end.
    expected = (1.0, 3.0 + stops.REST_S + stops.AFTER_S)
    assert stops.find_stop(stop_and_go(3.0, 30.0)) == pytest.approx(expected, abs=0.011)


def test_no_stop_without_motion_before_it():
    assert stops.find_stop(stop_and_go(30.0, 30.0)) is None
    assert stops.find_stop(stop_and_go(-1.0, 30.0)) is None
    # The joint never moves, its speed crosses the threshold by noise.
    assert stops.find_stop(stop_and_go(-1.0, 30.0, noise=3e-3)) is None


def test_no_train_names_the_models_that_are_not_there(tmp_path, capsys):
    run = ['demo', '--out', str(tmp_path / 'out'), '--no-train']
    assert main(run) == 2
    assert 'no model dlnn and dlnn_memory of a last run' in capsys.readouterr().err
    models.save_tiny_model(tmp_path / 'out' / 'models' / 'dlnn', JOINTS)
    (tmp_path / 'out' / demo.MARKER).touch()
    assert main(run) == 2
    assert 'no model dlnn_memory of a last run' in capsys.readouterr().err


def test_a_baseline_that_cannot_be_fitted_is_left_out(rng, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, 'SERVED', {})
    monkeypatch.setattr(demo, 'BASELINES', {'linear': 1.0})
    data = datasets.two_pendulums(rng, trajectories=3)
    demo._train(data, tmp_path, 1.0, 0)
    assert (tmp_path / 'linear').exists()
    endless = replace(data, robot=replace(data.robot, kinds=('continuous', 'revolute')))
    demo._train(endless, tmp_path, 1.0, 0)
    assert 'linear is left out: model linear takes positions' in capsys.readouterr().err
    assert not (tmp_path / 'linear').exists()
    # A model that is to be served is not left out.
    monkeypatch.setattr(demo, 'SERVED', {'linear': 1.0})
    with pytest.raises(ValueError, match='model linear takes positions'):
        demo._train(endless, tmp_path, 1.0, 0)


@pytest.mark.ros
def test_small_demo_from_end_to_end(rng, tmp_path, monkeypatch, capsys):
    pytest.importorskip('rclpy', reason='ROS 2 is not here')
    monkeypatch.setattr(demo, 'BASELINES', {'linear': 1.0})
    data = datasets.two_pendulums(rng, trajectories=3)
    recordings = tuple(replace(t.recording, role='') for t in data)
    write_bag(tmp_path / 'bag', RecordingSet(data.robot, recordings))
    run = ['demo', '--bag', str(tmp_path / 'bag'), '--out', str(tmp_path / 'out'), '--rate', '4']
    assert main([*run, '--time-budget', '8', '--min-r2', '0.5', '--json']) == 0
    result = json.loads(capsys.readouterr().out)
    assert result['expected'] == 400
    assert result['received'] >= 395
    for kind in demo.SERVED:
        figures = result['models'][kind]
        assert figures['received'] >= result['received']
        # A node that serves the other's model would show here.
        assert figures['r2_mean_live'] > 0.5
        log = (tmp_path / 'out' / 'nodes' / f'feedforward_{kind}.log').read_text()
        assert f': {kind} of pendulums' in log
    assert (tmp_path / 'out' / 'report.html').exists()
    # A poor fit is no success.
    assert main([*run, '--no-train', '--min-r2', '0.9999']) == 1
    assert 'FAILED: dlnn: live R2' in capsys.readouterr().out


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
