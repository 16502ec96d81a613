"""The command line as a user meets it: results, and one line for every mistake."""

import json
import re
import subprocess
import sys

import datasets
from dlnn_ros.cli.main import main
from dlnn_ros.config import Robot
from dlnn_ros.data.bags import write_bag
from dlnn_ros.data.trajectory import Recording, RecordingSet
import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import get_typestore, Stores

import models

# Nested imports are indented in the output of -X importtime.
TORCH = re.compile(r'\|\s+torch$', re.MULTILINE)


@pytest.fixture
def bag(rng, tmp_path):
    data = datasets.two_pendulums(rng)
    recordings = tuple(t.recording for t in data)
    return str(
        write_bag(tmp_path / 'bag', RecordingSet(data.robot, recordings)) or tmp_path / 'bag'
    )


@pytest.fixture
def model(tmp_path):
    return models.save_tiny_model(tmp_path / 'models' / 'pendulums', ('p1', 'p2'))


def fails(capsys, *argv):
    """Run a command that must fail with one clear line; return the line."""
    code = main([str(a) for a in argv])
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert code == 2
    assert captured.out == ''
    assert len(lines) == 1, captured.err
    assert lines[0].startswith(f'dlnn {argv[0]}: error: ')
    return lines[0]


def succeeds(capsys, *argv):
    assert main([*map(str, argv), '--json']) == 0
    return json.loads(capsys.readouterr().out)


def train(bag, out, *more):
    return ('train', '--data', bag, '--out', out, '--epochs', 2, '--threads', 1, *more)


def leftovers(folder):
    return sorted(p.name for p in folder.iterdir())


def test_train_evaluate_info_agree(capsys, bag, tmp_path):
    out = tmp_path / 'm'
    trained = succeeds(capsys, *train(bag, out, '--set', 'options.width=16'))
    scored = succeeds(capsys, 'evaluate', out, '--data', bag)
    described = succeeds(capsys, 'info', out)
    assert scored['r2_mean'] == pytest.approx(trained['r2_mean']['test'], abs=1e-9)
    assert described['metrics']['test']['r2_mean'] == trained['r2_mean']['test']
    assert set(scored['r2']) == {'p1', 'p2'} == set(described['joints'])
    for key in ('r2', 'r2_mean', 'nmse_mean', 'rmse', 'r2_mean_moving', 'r2_mean_rest'):
        assert key in scored
    assert leftovers(out) == ['curve.csv', 'model.yaml', 'params.safetensors', 'report.html']
    report = (out / 'report.html').read_text()
    assert report.count('<svg') == 3
    assert 'gravity' in report
    assert 'R2 rest' in report


def test_scores_on_training_data_are_marked(capsys, bag, tmp_path, rng):
    out = tmp_path / 'm'
    succeeds(capsys, *train(bag, out, '--set', 'options.width=16'))
    for role, seen in (('test', False), ('all', True), ('train', True)):
        assert main(['evaluate', str(out), '--data', bag, '--role', role, '--json']) == 0
        captured = capsys.readouterr()
        assert (json.loads(captured.out)['seen_in_training'] > 0) == seen
        assert ('warning' in captured.err) == (role == 'all')


def test_training_twice_into_one_folder_at_once_is_refused(capsys, bag, tmp_path):
    from dlnn_ros.learning.train import resume_file

    with resume_file(tmp_path / 'm').lock():
        assert 'another training' in fails(capsys, *train(bag, tmp_path / 'm'))
    assert leftovers(tmp_path) == ['bag']


def test_unforeseen_error_is_one_line_too(capsys, model, monkeypatch):
    from dlnn_ros.cli import info

    def fail(args):
        raise ZeroDivisionError('division by zero')

    monkeypatch.setattr(info, 'run', fail)
    assert main(['info', str(model)]) == 70
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        'dlnn info: failed: ZeroDivisionError: division by zero (DLNN_DEBUG=1 shows where)'
    ]


def test_time_budget_of_the_command_line_outweighs_epochs_of_a_file(capsys, bag, tmp_path):
    file = tmp_path / 'train.yaml'
    file.write_text(
        f'data: [{bag}]\nout: {tmp_path / "m"}\ntrain: {{epochs: 100000, threads: 1}}\n'
    )
    result = succeeds(capsys, 'train', file, '--time-budget', 1)
    assert 0.9 < result['train_s'] < 20


def test_training_file_is_what_the_options_are(capsys, bag, tmp_path):
    file = tmp_path / 'train.yaml'
    file.write_text(
        f'data: [{bag}]\nout: {tmp_path / "m"}\n'
        'train: {model: linear, options: {bias: false}}\n'
    )
    assert succeeds(capsys, 'train', file)['kind'] == 'linear'
    other = ('--out', tmp_path / 'm2', '--model', 'dlnn', '--epochs', 1, '--set', 'options={}')
    changed = succeeds(capsys, 'train', file, *other)
    assert changed['kind'] == 'dlnn'
    assert succeeds(capsys, 'info', tmp_path / 'm')['config']['bias'] is False


def test_bag_without_robot_is_read_as_the_model_says(capsys, model, tmp_path):
    """A driver's bag, in another joint order and with a gripper."""
    t = np.arange(400) * 0.01
    q = np.sin(t[:, None] * [1.0, 2.0, 3.0])
    robot = Robot('x', ('p2', 'gripper', 'p1'), ('revolute',) * 3)
    write_bag(tmp_path / 'b', RecordingSet(robot, (Recording(t, q, q * [1, 0.1, 5]),)))
    forget_robot(tmp_path / 'b')
    scored = succeeds(capsys, 'evaluate', model, '--data', tmp_path / 'b', '--role', 'all')
    assert list(scored['r2']) == ['p1', 'p2']


def forget_robot(bag):
    import yaml

    metadata = yaml.safe_load((bag / 'metadata.yaml').read_text())
    metadata['rosbag2_bagfile_information']['custom_data'] = {}
    (bag / 'metadata.yaml').write_text(yaml.safe_dump(metadata))


def raw_bag(path, messages, topic='/joint_states'):
    """Write JointState messages as they are."""
    store = get_typestore(Stores.LATEST)
    kind = 'sensor_msgs/msg/JointState'
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        connection = writer.add_connection(topic, kind, typestore=store)
        for k, (position, effort) in enumerate(messages):
            stamp = store.types['builtin_interfaces/msg/Time'](5, 4_000_000 * k)
            header = store.types['std_msgs/msg/Header'](stamp, '')
            arrays = (np.array(a, float) for a in (position, [], effort))
            message = store.types[kind](header, ['p1', 'p2'], *arrays)
            writer.write(connection, 1 + k, store.serialize_cdr(message, kind))
    return path


def test_mistakes_of_training_are_one_line_and_leave_nothing(capsys, bag, tmp_path):
    out = tmp_path / 'out' / 'm'
    out.parent.mkdir()
    (tmp_path / 'empty').mkdir()
    still = [([0.1 * k, 0.2 * k], []) for k in range(100)]
    cases = {
        'no such': train(tmp_path / 'nowhere', out),
        'empty': train(tmp_path / 'empty', out),
        'messages': train(raw_bag(tmp_path / 'none', []), out),
        '/joint_states': train(bag, out, '--topic', '/other'),
        'effort': train(raw_bag(tmp_path / 'no_effort', still), out),
        "'kuka'": train('kuka:file.mat', out),
        "did you mean 'learning_rate'": train(bag, out, '--set', 'learning_rat=0.1'),
        "did you mean 'width'": train(bag, out, '--set', 'options.widht=3'),
        'KEY=VALUE': train(bag, out, '--set', 'epochs'),
        "model kind 'dnn'": train(bag, out, '--model', 'dnn'),
        'must be a number': train(bag, out, '--set', 'learning_rate=fast'),
        'robots': train(bag, out, '--robot', 'r2d2'),
        'no data': ('train', '--out', out),
        'no destination': ('train', '--data', bag),
        'not a model folder': train(bag, tmp_path / 'empty' / '..', '--overwrite'),
        'the same recording': train(bag, out, '--data', bag, bag),
        'frozen.yaml: no such file': ('train', tmp_path / 'frozen.yaml'),
    }
    for words, argv in cases.items():
        line = fails(capsys, *argv)
        assert words in line, line
        assert leftovers(out.parent) == [], words


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('dat: [x]', "unknown key 'dat'; did you mean 'data'"),
        ('data: x', "data must be a list, got 'x'"),
        ('data: [x\n', 'train.yaml:'),
        ('data: [x]\nout: m\ntrain: {time_budget: 3}', "did you mean 'time_budget_s'"),
        ('data: [x]\nout: m\ntrain: {learning_rate: 1e-3}', 'a string in YAML'),
        ('- 1', 'expected a mapping'),
    ],
)
def test_typo_in_a_training_file_is_named(capsys, tmp_path, text, words):
    file = tmp_path / 'train.yaml'
    file.write_text(text)
    line = fails(capsys, 'train', file)
    assert words in line
    assert 'train.yaml' in line


def test_mistakes_of_evaluation_are_one_line(capsys, bag, model, tmp_path, rng):
    foreign = models.save_tiny_model(tmp_path / 'foreign', ('a', 'b', 'c'))
    damaged = models.save_tiny_model(tmp_path / 'damaged', ('p1', 'p2'))
    params = damaged / 'params.safetensors'
    params.write_bytes(params.read_bytes()[:-8])
    sliding = models.save_tiny_model(
        tmp_path / 'sliding', ('p1', 'p2'), kinds=('revolute', 'prismatic')
    )
    upside_down = models.save_tiny_model(
        tmp_path / 'ceiling', ('p1', 'p2'), gravity=(0.0, 0.0, 9.81)
    )
    cases = {
        'joints': ('evaluate', foreign, '--data', bag),
        'damaged': ('evaluate', damaged, '--data', bag),
        'kinds': ('evaluate', sliding, '--data', bag),
        'gravity': ('evaluate', upside_down, '--data', bag),
        'no such model folder': ('evaluate', tmp_path / 'nowhere', '--data', bag),
        'no such': ('evaluate', model, '--data', tmp_path / 'nowhere'),
        'is a file': ('info', model / 'model.yaml'),
        'checksum': ('info', damaged),
        'no model.yaml': ('info', tmp_path),
    }
    for words, argv in cases.items():
        line = fails(capsys, *argv)
        assert words in line, line
    assert not (model / 'report.html').exists()


def test_demo_refuses_a_folder_that_is_not_its_own(capsys, tmp_path):
    (tmp_path / 'thesis.tex').write_text('x')
    assert 'was not made by the demo' in fails(capsys, 'demo', '--out', tmp_path)
    assert leftovers(tmp_path) == ['thesis.tex']


def test_demo_refuses_a_missing_bag_before_anything_is_trained(capsys, tmp_path):
    line = fails(capsys, 'demo', '--out', tmp_path / 'o', '--bag', tmp_path / 'nowhere')
    assert 'nowhere' in line


def test_bench_training_reports_cases(capsys, monkeypatch):
    argv = ('bench', 'training', '--batch', 16, '--steps', 1, '--threads', 1)
    data = succeeds(capsys, *argv, '--models', '128x3', '--methods', 'ours')
    assert data['cases'][0]['samples_per_s'] > 0
    assert "'64x2' must be one of" in fails(capsys, 'bench', 'training', '--models', '64x2')
    assert '--steps is 0' in fails(capsys, 'bench', 'training', '--steps', 0)


def test_ctrl_c_is_an_exit_code_and_no_traceback(monkeypatch, capsys, model):
    from dlnn_ros.cli import info

    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(info, 'run', interrupt)
    assert main(['info', str(model)]) == 130
    assert capsys.readouterr().err.strip() == 'dlnn: interrupted'


def test_import_of_torch_would_be_seen():
    done = subprocess.run(
        [sys.executable, '-X', 'importtime', '-c', 'import dlnn_ros.learning.train'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert TORCH.search(done.stderr)


def test_help_of_every_command_is_quick_and_says_something():
    for command in ('demo', 'data', 'train', 'evaluate', 'info', 'bench'):
        done = subprocess.run(
            [sys.executable, '-X', 'importtime', '-m', 'dlnn_ros.cli.main', command, '--help'],
            capture_output=True,
            text=True,
            check=True,
        )
        assert 'usage: dlnn' in done.stdout
        assert not TORCH.search(done.stderr)


def test_scores_say_in_which_view_they_are():
    from dlnn_ros.cli.info import score_line
    from dlnn_ros.cli.train import summary_text

    scores = {
        'view': 'recorded',
        'r2': {'a': 0.9},
        'r2_mean': 0.9,
        'served': {'r2': {'a': 0.8}, 'r2_mean': 0.8},
        'served_started': {'r2': {'a': None}, 'r2_mean': None},
    }
    assert (
        score_line('test', scores)
        == 'R2 test       0.9000 recorded, 0.8000 served, - served_started'
    )
    assert score_line('train', {}) == 'R2 train      - served'
    result = {
        'model': 'm',
        'kind': 'dlnn',
        'train_s': 1.0,
        'r2_mean': {'validation': 0.9},
        'scores': {'validation': scores},
    }
    assert summary_text(result).endswith('R2 as recorded: validation 0.9000')
