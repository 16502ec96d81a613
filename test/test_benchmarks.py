from dlnn_ros.data.benchmarks import (
    kuka_250hz,
    kuka_forward,
    kuka_inverse,
    kuka_shifted,
    REST_DEG,
)
import numpy as np
import pytest
from scipy.io import savemat

HOME_DEG = np.array([0, -90, 90, 0, 0, 0])
PERIOD = 20  # samples per motion in the small files
LENGTH = 6 * PERIOD


def recorded(rng, recordings, short=0):
    """Return torque and position (6, N) of motions that start and end at home."""
    n = recordings * LENGTH
    phase = np.arange(n) % PERIOD / (PERIOD - 1)
    size = np.repeat(rng.uniform(5, 20, (6, n // PERIOD)), PERIOD, axis=1)
    y = size * np.sin(np.pi * phase) ** 2
    u = rng.uniform(-5, 5, (6, n))
    return u[:, : n - short], y[:, : n - short]


def without(x, sample):
    """Leave out one sample of every motion, as the converter of the shifted copy did."""
    return np.delete(x, np.arange(sample % PERIOD, x.shape[1], PERIOD), axis=1)


@pytest.fixture
def forward(rng, tmp_path):
    u, y = recorded(rng, 4, short=8)
    u_test, y_test = recorded(rng, 1)
    content = {'u_train': u, 'y_train': y, 'u_test': u_test, 'y_test': y_test}

    def save(**changes):
        mat = {k: v for k, v in {**content, **changes}.items() if v is not None}
        path = tmp_path / 'forward.mat'
        savemat(path, mat)
        return path, mat

    return save


def test_forward_file_is_cut_into_recordings_with_roles(forward):
    path, mat = forward()
    recordings = kuka_forward(path).recordings
    assert [r.role for r in recordings] == ['train', 'train', 'validation', 'validation', 'test']
    assert [len(r.t) for r in recordings] == [LENGTH] * 3 + [LENGTH - 8, LENGTH]
    q = np.concatenate([r.q for r in recordings[:4]])
    np.testing.assert_allclose(np.degrees(q), mat['y_train'].T + HOME_DEG, atol=1e-9)
    np.testing.assert_array_equal(recordings[4].tau, mat['u_test'].T)
    assert recordings[1].rate_hz == pytest.approx(10)


def test_number_of_samples_is_not_assumed(forward, rng):
    u, y = recorded(rng, 1)
    path, _ = forward(u_train=u, y_train=y)
    assert [r.role for r in kuka_forward(path).recordings] == ['train', 'test']
    u, y = recorded(rng, 2)
    path, _ = forward(u_train=u, y_train=y)
    assert [r.role for r in kuka_forward(path).recordings] == ['train', 'validation', 'test']


def test_recordings_must_be_cut_at_rest(forward):
    path, mat = forward()
    y = mat['y_train'].copy()
    y[2, LENGTH:] += 2 * REST_DEG
    path, _ = forward(y_train=y)
    with pytest.raises(ValueError, match=f'moves by 0.4 deg at sample {LENGTH}'):
        kuka_forward(path)


@pytest.mark.parametrize(
    ('changes', 'match'),
    [
        ({'u_train': None}, "no variable 'u_train'; the file has y_train, u_test, y_test"),
        ({'u_train': np.zeros((5, 30))}, r'u_train has shape \(5, 30\).*expected.*\(6, N\)'),
        ({'y_test': np.zeros((6, 30))}, 'y_test has 30 columns, expected 120'),
        ({'y_test': 'text'}, 'y_test has shape .* expected numbers'),
    ],
)
def test_wrong_content_is_one_clear_line(forward, changes, match):
    path, _ = forward(**changes)
    with pytest.raises(ValueError, match=match) as error:
        kuka_forward(path)
    assert str(path) in str(error.value)
    assert '\n' not in str(error.value)


def test_missing_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match='no such file'):
        kuka_forward(tmp_path / 'none.mat')
    bad = tmp_path / 'bad.mat'
    for content in (b'', b'nonsense' * 100):
        bad.write_bytes(content)
        with pytest.raises(ValueError, match='not a readable MATLAB file'):
            kuka_forward(bad)
    # The head of an HDF5-based file.
    bad.write_bytes(b'MATLAB 7.3 MAT-file'.ljust(124) + b'\x00\x02IM' + b'\x00' * 600)
    with pytest.raises(ValueError, match='save it with -v7'):
        kuka_forward(bad)


def test_inverse_file_brings_its_derivatives(rng, tmp_path):
    mat = {}
    for part, count in (('train', 3), ('test', 1)):
        tau, q = recorded(rng, count)
        mat[f'y_{part}'] = tau
        mat[f'u_{part}'] = np.concatenate([q, rng.normal(size=q.shape), rng.normal(size=q.shape)])
    path = tmp_path / 'inverse.mat'
    savemat(path, mat)
    dataset = kuka_inverse(path)
    assert [t.recording.role for t in dataset] == ['train', 'train', 'validation', 'test']
    test = dataset.trajectories[-1]
    np.testing.assert_allclose(test.qd, np.radians(mat['u_test'][6:12]).T)
    np.testing.assert_allclose(test.qdd, np.radians(mat['u_test'][12:]).T)
    np.testing.assert_allclose(np.degrees(test.q), mat['u_test'][:6].T + HOME_DEG, atol=1e-9)
    np.testing.assert_array_equal(test.recording.velocity, test.qd)


@pytest.fixture
def shifted(rng, tmp_path):
    """Return a shifted copy made from known recordings, and those."""
    mat, truth = {}, {}
    for part, count in (('train', 3), ('val', 1), ('test', 1)):
        u, y = recorded(rng, count)
        truth[part] = u.copy(), y
        mat[f'u_{part}'] = without(u, PERIOD - 1)
        mat[f'y_{part}'] = without(y, 0)
    mat['u_val'][:, -8:] = 0
    path = tmp_path / 'shifted.mat'
    savemat(path, mat)
    return path, mat, truth


def test_shifted_copy_pairs_torque_and_position_of_one_time(shifted):
    path, _, truth = shifted
    recordings = kuka_shifted(path).recordings
    assert [r.role for r in recordings] == ['train', 'train', 'validation', 'validation', 'test']
    u, y = truth['test']
    r = recordings[-1]
    i = np.rint(r.t * 10).astype(int)
    np.testing.assert_allclose(np.degrees(r.q), y.T[i] + HOME_DEG, atol=1e-9)
    np.testing.assert_array_equal(r.tau[r.valid], u.T[i[r.valid]])
    # One sample per motion lacks position, another one torque.
    assert len(r.t) == LENGTH - 6
    assert r.valid.sum() == LENGTH - 12
    assert np.isnan(r.tau[~r.valid]).all()


def test_padding_of_the_shifted_copy_is_not_valid(shifted):
    path, _, truth = shifted
    r = kuka_shifted(path).recordings[3]
    assert r.valid.sum() == LENGTH - 12 - 8
    np.testing.assert_array_equal(
        r.tau[r.valid], truth['val'][0].T[np.rint(r.t * 10).astype(int)][r.valid]
    )


def test_columns_of_the_shifted_copy_must_be_whole_recordings(shifted, tmp_path):
    _, mat, _ = shifted
    path = tmp_path / 'cut.mat'
    savemat(path, {**mat, 'u_train': mat['u_train'][:, :-1], 'y_train': mat['y_train'][:, :-1]})
    with pytest.raises(ValueError, match='not a multiple of the 114 of u_test'):
        kuka_shifted(path)


def rec(n=50, **changes):
    t = np.arange(n) * 0.004
    wave = np.sin(t)[None] * np.arange(1, 7)[:, None]
    fields = {
        'time_cont': t[:, None],
        'act_pos_mot_deg': wave,
        'act_pos_se_deg': wave + 72,
        'act_vel_mot_deg_per_s': 2 * wave,
        'act_torque_abs_nm': 3 * wave,
        'act_torque_rel_nm': 4 * wave,
    }
    return {k: v for k, v in {**fields, **changes}.items() if v is not None}


def test_fast_recordings_use_motor_encoder_and_total_torque(tmp_path):
    savemat(tmp_path / 'traj.mat', {'rec': rec()})
    (r,) = kuka_250hz(tmp_path / 'traj.mat').recordings
    fields = rec()
    np.testing.assert_allclose(np.degrees(r.q).T, fields['act_pos_mot_deg'] + HOME_DEG[:, None])
    np.testing.assert_allclose(np.degrees(r.velocity).T, fields['act_vel_mot_deg_per_s'])
    np.testing.assert_array_equal(r.tau.T, fields['act_torque_abs_nm'])
    assert (r.name, r.role) == ('traj', '')


@pytest.mark.parametrize(
    ('content', 'match'),
    [
        ({'x': 1}, 'struct rec lacks time_cont'),
        ({'rec': rec(act_torque_abs_nm=None)}, 'struct rec lacks act_torque_abs_nm'),
        ({'rec': rec(act_pos_mot_deg=np.zeros((6, 49)))}, 'has 49 columns, expected 50'),
    ],
)
def test_fast_recordings_are_checked(tmp_path, content, match):
    savemat(tmp_path / 'traj.mat', content)
    with pytest.raises(ValueError, match=match):
        kuka_250hz(tmp_path / 'traj.mat')


@pytest.mark.data
def test_real_shifted_copy(data_dir):
    name = 'forward_identification_without_raw_data_shifted.mat'
    recordings = kuka_shifted(data_dir / 'kuka_kr300_benchmark_forward' / name).recordings
    assert [r.role for r in recordings] == ['train'] * 9 + ['validation'] * 2 + ['test']
    assert [int(r.valid.sum()) for r in recordings] == [6 * 604] * 10 + [6 * 604 - 8, 6 * 604]
    for r in recordings:
        # Home at both ends of each of the six motions (0.02 deg), so the cuts are right.
        ends = np.abs(np.degrees(r.q) - HOME_DEG)[[0, 604, 605, 1209, -1]]
        assert ends.max() < 0.05
        assert r.t[-1] == pytest.approx(363.5)


@pytest.mark.data
def test_real_shifted_copy_is_paired_at_the_right_shift(data_dir):
    # A linear model explains the torque best where torque and position belong together.
    name = 'forward_identification_without_raw_data_shifted.mat'
    r = kuka_shifted(data_dir / 'kuka_kr300_benchmark_forward' / name).recordings[-1]
    qd = np.gradient(r.q, r.t, axis=0)
    A = np.concatenate([np.sin(r.q), np.cos(r.q), qd, np.sign(qd)], axis=1)
    tau = np.where(r.valid[:, None], r.tau, 0)

    def residual(shift):
        b = np.roll(tau, shift, axis=0)[3:-3]
        x = np.linalg.lstsq(A[3:-3], b, rcond=None)[0]
        return ((A[3:-3] @ x - b) ** 2).mean(axis=0) / b.var(axis=0)

    errors = [residual(shift).mean() for shift in (-2, -1, 0, 1, 2)]
    assert int(np.argmin(errors)) == 2


@pytest.mark.data
@pytest.mark.parametrize('name', 'ABC')
def test_real_fast_recordings(data_dir, name):
    path = data_dir / 'kuka_kr300_iros2021' / f'traj_{name}_data.mat'
    (r,) = kuka_250hz(path).recordings
    assert r.q.shape == (2501, 6)
    assert r.rate_hz == pytest.approx(250, rel=1e-6)
    # Motor velocity is the derivative of motor position.
    derived = np.gradient(r.q, r.t, axis=0)
    assert np.corrcoef(derived.ravel(), r.velocity.ravel())[0, 1] > 0.99
