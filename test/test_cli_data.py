import json

from dlnn_ros.cli import main as cli
from dlnn_ros.config import Robot
from dlnn_ros.data import synthetic
from dlnn_ros.data.bags import read_bag, write_bag
from dlnn_ros.data.trajectory import Recording, RecordingSet
import numpy as np
import pytest

T = np.arange(300) * 0.01


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a runner of `dlnn data ...` alone: exit code, stdout, stderr."""
    parser = cli.make_parser(('data',))
    monkeypatch.setattr(cli, 'make_parser', lambda: parser)

    def run(*args):
        try:
            code = cli.main(['data', *map(str, args)])
        except SystemExit as error:
            code = error.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def bag(tmp_path):
    robot = Robot('two', ('x', 'y'), ('revolute', 'revolute'))
    made = []
    for k in range(3):
        q = np.sin(T[:, None] * [1, 2] + k)
        made.append(Recording(T, q, 3 * q, name=f'r{k}'))
    write_bag(tmp_path / 'bag', RecordingSet(robot, tuple(made)))
    return tmp_path / 'bag'


def test_info_prints_tables(run, bag):
    code, out, err = run('info', bag)
    assert (code, err) == (0, '')
    for text in ('r0', 'r2', 'joint', 'x', 'at rest', '100.0', 'joint side', '/joint_states'):
        assert text in out
    assert 'warning' not in out


def test_info_as_json(run, bag):
    code, out, _ = run('info', bag, '--json')
    data = json.loads(out)
    assert code == 0
    assert [r['samples'] for r in data['recordings']] == [300] * 3
    assert data['joints']['y']['tau'][1] == pytest.approx(3, abs=1e-2)
    assert data['bags'][0]['messages'] == 900
    assert data['warnings'] == []


def test_info_warns(run, bag, tmp_path):
    robot = tmp_path / 'robot.yaml'
    robot.write_text(
        'name: r\njoints: [y]\nkinds: [revolute]\n'
        'limits: {position_lower: [-0.1], position_upper: [0.1]}\n'
    )
    code, out, _ = run('info', bag, '--robot', robot)
    assert code == 0
    assert 'warning: y: ' in out
    assert 'outside the limits' in out


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_convert(run, bag, tmp_path, storage):
    out_dir = tmp_path / 'out'
    code, out, _ = run('convert', bag, '--out', out_dir, '--storage', storage, '--json')
    assert code == 0
    assert json.loads(out)['samples'] == 900
    assert any(
        p.suffix == {'mcap': '.mcap', 'sqlite3': '.db3'}[storage] for p in out_dir.iterdir()
    )
    converted, original = read_bag(out_dir), read_bag(bag)
    for a, b in zip(converted.recordings, original.recordings, strict=True):
        assert a.name == b.name
        np.testing.assert_array_equal(a.q, b.q)


@pytest.mark.data
def test_convert_real_recordings(run, data_dir, tmp_path):
    folder = data_dir / 'kuka_kr300_iros2021'
    specs = [f'kuka-250hz:{folder / f"traj_{k}_data.mat"}' for k in 'ABC']
    code, out, err = run('convert', *specs, '--out', tmp_path / 'kuka250')
    assert (code, err) == (0, '')
    assert '3 recordings, 7503 messages' in out
    code, out, _ = run('info', tmp_path / 'kuka250', '--json')
    data = json.loads(out)
    assert data['effort_kind'] == 'motor'
    assert data['warnings'] == data['notes'] == []


@pytest.mark.data
def test_real_ros1_bag_is_refused(run, data_dir):
    code, out, err = run('info', data_dir / 'pr2_ros1_bag')
    assert (code, out) == (2, '')
    assert 'rosbags-convert --src' in err
    assert err.count('\n') == 1


def test_mistakes_are_one_line_and_leave_nothing(run, bag, tmp_path):
    for args, expected in (
        (('info', tmp_path / 'none'), 'no such bag'),
        (('info', bag, '--topic', 'x'), 'topic /x is not in the bag'),
        (('info', bag, '--robot', 'nobody'), 'config/robots/nobody.yaml: not found'),
        (('convert', tmp_path / 'none', '--out', tmp_path / 'o'), 'no such bag'),
        (('convert', bag, '--out', bag), 'exists already'),
        (('synth', '--out', bag), 'exists already'),
        (('synth', '--out', tmp_path / 'o', '--rate', -1), 'rate'),
    ):
        code, out, err = run(*args)
        assert (code, out) == (2, '')
        assert expected in err
        assert err.count('\n') == 1
    assert [p.name for p in tmp_path.iterdir()] == ['bag']


def test_usage_errors(run):
    assert run()[0] == 2
    assert run('info')[0] == 2
    assert run('convert', 'x')[0] == 2


def test_synth_passes_its_options_on(run, tmp_path, monkeypatch):
    seen = []

    def make(settings, progress=None):
        seen.append(settings)
        progress('working')
        robot = Robot('one', ('x',), ('revolute',))
        q = np.sin(T)[:, None]
        return RecordingSet(robot, (Recording(T, q, q, name='traj_00', role='train'),))

    monkeypatch.setattr(synthetic, 'make_recordings', make)
    options = ('--trajectories', 5, '--duration', 7.5, '--rate', 100, '--seed', 3)
    code, out, err = run('synth', '--out', tmp_path / 's', *options, '--json')
    assert code == 0
    assert json.loads(out)['recordings'] == [{'name': 'traj_00', 'role': 'train', 'samples': 300}]
    assert err == 'working\n'
    (s,) = seen
    assert (s.robot, s.trajectories, s.duration_s, s.rate_hz, s.seed) == ('kr300', 5, 7.5, 100, 3)


@pytest.mark.slow
def test_synth_for_real(run, tmp_path):
    options = ('--trajectories', 3, '--duration', 4, '--json')
    code, _, _ = run('synth', '--out', tmp_path / 's', *options)
    assert code == 0
    roles = [r.role for r in read_bag(tmp_path / 's').recordings]
    assert roles == ['train', 'validation', 'test']
