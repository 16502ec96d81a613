from dlnn_ros.config import Effort, Robot
from dlnn_ros.data.bags import write_bag
from dlnn_ros.data.derivatives import Derivatives
from dlnn_ros.data.sources import load_dataset, load_recordings, load_with_reports
from dlnn_ros.data.trajectory import Recording, RecordingSet
import numpy as np
import pytest
from scipy.io import savemat

T = np.arange(400) * 0.01
ROBOT = Robot('two', ('x', 'y'), ('revolute', 'revolute'), Effort('motor', (10.0, 20.0)))


def recordings(names, roles=(), robot=ROBOT, scale=1.0):
    made = []
    for k, name in enumerate(names):
        q = np.sin(T[:, None] * [1, 2] + k)
        role = roles[k] if roles else ''
        made.append(Recording(T, q, scale * q, np.cos(q), name=name, role=role))
    return RecordingSet(robot, tuple(made))


@pytest.fixture
def bag(tmp_path):
    def make(name, names=('a', 'b', 'c'), **more):
        write_bag(tmp_path / name, recordings(names, **more))
        return str(tmp_path / name)

    return make


@pytest.fixture
def inverse(rng, tmp_path):
    mat = {}
    for part, n in (('train', 200), ('test', 100)):
        motion = 1 - np.cos(np.arange(n) * 2 * np.pi / 100)
        motion = motion * np.arange(1, 7)[:, None]
        mat[f'u_{part}'] = np.concatenate([motion, rng.normal(size=(12, n))])
        mat[f'y_{part}'] = rng.normal(size=(6, n))
    savemat(tmp_path / 'inverse.mat', mat)
    return f'kuka-inverse:{tmp_path / "inverse.mat"}', mat


def test_a_data_set_from_bags_has_derivatives_and_roles(bag):
    dataset = load_dataset([bag('one')])
    assert dataset.robot == ROBOT
    assert {t.recording.role for t in dataset} == {'train', 'validation', 'test'}
    t = dataset.trajectories[0]
    exact = np.cos(T[: len(t.t), None] * [1, 2]) * [1, 2]
    # The low-pass forgets some of the curvature in the first and last 0.2 s.
    np.testing.assert_allclose(t.qd[20:-20], exact[20:-20], atol=5e-3)
    tau = dataset.role('train').samples().tau
    np.testing.assert_array_equal(tau[: len(t.t)], t.tau * [10, 20])


def test_derivatives_are_chosen_by_the_caller(bag):
    path = bag('one')
    methods = {
        load_dataset([path], derivatives=Derivatives(m)).trajectories[0].method
        for m in ('auto', 'central', 'spline')
    }
    assert len(methods) == 3


def test_names_and_groups_are_unique_over_the_sources(bag):
    loaded = load_recordings([bag('one'), bag('two', ('a', 'z', 'y'))])
    assert [r.name for r in loaded.recordings] == ['0/a', 'b', 'c', '1/a', 'z', 'y']
    assert [r.group for r in loaded.recordings] == ['0/a', 'b', 'c', '1/a', 'z', 'y']
    assert len(load_with_reports([bag('three'), bag('four')]).reports) == 2


def test_roles_of_a_bag_are_kept(bag):
    path = bag('one', roles=('test', 'train', 'validation'))
    assert [t.recording.role for t in load_dataset([path])] == ['test', 'train', 'validation']


def test_sources_of_different_robots_are_refused(bag):
    other = Robot('two', ('x', 'y'), ('revolute', 'revolute'))
    paths = [bag('one'), bag('two', robot=other)]
    with pytest.raises(ValueError, match=r"two: robot 'two' differs .* in effort; name one"):
        load_recordings(paths)
    assert load_recordings(paths, robot=other).robot == other


def test_inverse_file_keeps_its_derivatives(inverse):
    spec, mat = inverse
    dataset = load_dataset([spec])
    assert {t.recording.role for t in dataset} == {'train', 'validation', 'test'}
    expected = np.radians(mat['u_test'][12:]).T
    np.testing.assert_array_equal(dataset.trajectories[-1].qdd, expected)
    loaded = load_recordings([spec])
    expected = np.radians(mat['u_test'][6:12]).T
    np.testing.assert_array_equal(loaded.recordings[-1].velocity, expected)


def test_a_benchmark_is_not_taken_for_another_robot(inverse):
    with pytest.raises(ValueError, match=r"with joints joint_a1.*not of 'two' with x, y"):
        load_recordings([inverse[0]], robot=ROBOT)
    with pytest.raises(ValueError, match='not of'):
        load_dataset([inverse[0]], robot=ROBOT)


def test_effort_that_teaches_nothing_is_refused_for_learning_only(bag):
    path = bag('flat', scale=0.0)
    assert load_recordings([path]).recordings
    with pytest.raises(ValueError, match=r'flat: effort is constant.*x \(always 0\)'):
        load_dataset([path])


def test_what_bags_lost_is_noted(tmp_path):
    keep = np.delete(np.arange(400), [50, 51, 200])
    whole = recordings(('a', 'b', 'c')).recordings
    thin = [Recording(T[keep], r.q[keep], r.tau[keep], name=r.name) for r in whole]
    write_bag(tmp_path / 'bag', RecordingSet(ROBOT, tuple(thin)))
    (note,) = load_dataset([str(tmp_path / 'bag')]).notes
    assert 'about 9 messages are missing' in note


@pytest.mark.parametrize(
    ('specs', 'match'),
    [
        ([], 'no data given'),
        (['kuka-forwrd:x.mat'], "kind 'kuka-forwrd' is not known; known kinds: kuka-forward"),
        (['C:/nowhere'], "kind 'C' is not known"),
    ],
)
def test_wrong_specs_are_refused(specs, match):
    for load in (load_recordings, load_dataset):
        with pytest.raises(ValueError, match=match):
            load(specs)


def test_missing_files_are_refused():
    with pytest.raises(FileNotFoundError, match=r'nowhere\.mat: no such file'):
        load_recordings(['kuka-shifted:nowhere.mat'])
    with pytest.raises(FileNotFoundError, match='no such bag'):
        load_recordings(['nowhere'])
    with pytest.raises(TypeError, match='must be a list'):
        load_recordings('nowhere')


def test_a_colon_in_a_path_is_no_kind(bag):
    assert load_recordings([bag('a:b')]).recordings


@pytest.mark.data
def test_real_benchmark(data_dir):
    name = 'forward_identification_without_raw_data_shifted.mat'
    spec = f'kuka-shifted:{data_dir / "kuka_kr300_benchmark_forward" / name}'
    dataset = load_dataset([spec])
    sizes = {r: len(dataset.role(r).samples().q) for r in ('train', 'validation', 'test')}
    assert sizes == {'train': 54 * 604, 'validation': 12 * 604 - 8, 'test': 6 * 604}
    # Slow motion: at most 67 deg/s.
    assert np.degrees(np.abs(dataset.samples().qd).max()) < 68
