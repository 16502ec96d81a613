from dlnn_ros.config import Effort, Limits, load_robot, Robot
from dlnn_ros.data.benchmarks import kuka_250hz, kuka_shifted
from dlnn_ros.data.quality import check_effort, inspect
from dlnn_ros.data.trajectory import Recording, RecordingSet
from dlnn_ros.dynamics.rigid_body import RigidBody
import numpy as np
import pytest

T = np.arange(2500) * 0.004
ROBOT = Robot('two', ('A1', 'A2'), ('revolute', 'revolute'))


def motion(n=2):
    k = np.arange(1, n + 1)
    w = 0.8 * k
    q = 0.5 * np.sin(T[:, None] * w + k)
    return q, 0.5 * w * np.cos(T[:, None] * w + k), -(w**2) * q


def recording(q=None, tau=None, **more):
    q = motion()[0] if q is None else q
    return Recording(T, q, 3 * q if tau is None else tau, **more)


def warnings(*recordings, robot=ROBOT):
    return inspect(RecordingSet(robot, recordings)).warnings


# --- J13: effort that carries no information ---


def test_good_effort_passes():
    check_effort(ROBOT, [recording()])
    assert warnings(recording()) == ()


def test_constant_effort_is_refused_with_joints_and_value():
    tau = motion()[0] * [1, 0] + [0, 12.3]
    with pytest.raises(ValueError, match=r'effort is constant.*: A2 \(always 12\.3\)$'):
        check_effort(ROBOT, [recording(tau=tau)])
    with pytest.raises(ValueError, match=r'A1 \(always 0\), A2 \(always 0\)'):
        check_effort(ROBOT, [recording(tau=0 * tau), recording(tau=0 * tau)])
    # In one recording of several a joint may well hold still.
    check_effort(ROBOT, [recording(tau=tau * [1, 0] + np.sin(T)[:, None]), recording()])


def test_effort_frozen_on_the_way_is_refused_with_the_time():
    tau = motion()[0].copy()
    tau[1250:, 1] = 12.3
    with pytest.raises(ValueError, match=r'of A2 is frozen at 12.3 from 5.000 s to 9.996 s'):
        check_effort(ROBOT, [recording(tau=tau)], 'b')
    assert any('A2 is frozen at 12.3' in w for w in warnings(recording(tau=tau)))
    # At rest an effort may keep its value.
    q = motion()[0].copy()
    q[1250:] = q[1250]
    check_effort(ROBOT, [recording(q, tau)])


def test_missing_effort_is_refused():
    tau = np.full((len(T), 2), np.nan)
    r = recording(tau=tau, valid=np.zeros(len(T), bool))
    with pytest.raises(ValueError, match='bag: no sample has an effort'):
        check_effort(ROBOT, [r], 'bag')
    quality = inspect(RecordingSet(ROBOT, (r,)))
    assert quality.joints['A1'].effort == 'missing'
    assert quality.joints['A1'].tau is None
    assert any('no sample has an effort' in w for w in quality.warnings)


def test_zero_and_constant_effort_are_told_apart():
    quality = inspect(RecordingSet(ROBOT, (recording(tau=np.ones((len(T), 2)) * [0, 5]),)))
    assert [j.effort for j in quality.joints.values()] == ['zero', 'constant']


# --- figures ---


def test_figures_of_a_recording(rng):
    t = np.cumsum(rng.uniform(0.003, 0.005, 2500))
    q = 0.5 * np.sin(t)[:, None] * [1, 2]
    q[100] = q[99]
    valid = np.arange(2500) >= 10
    r = Recording(t, q, q, valid=valid, name='n', group='g', role='test')
    (figures,) = inspect(RecordingSet(ROBOT, (r,))).recordings
    assert (figures.name, figures.group, figures.role) == ('n', 'g', 'test')
    assert (figures.samples, figures.valid, figures.has_velocity) == (2500, 2490, False)
    assert figures.duration_s == pytest.approx(t[-1] - t[0])
    assert figures.rate_hz == pytest.approx(250, rel=0.02)
    assert figures.jitter_ms == pytest.approx(2 / np.sqrt(12), rel=0.05)
    assert figures.longest_period_ms == pytest.approx(5, rel=0.01)
    assert figures.repeated_share == pytest.approx(1 / 2499, rel=0.1)


def test_ranges_and_share_at_rest():
    q, qd, qdd = motion()
    q = np.concatenate([q, np.repeat(q[-1:], 2500, axis=0)])
    t = np.arange(5000) * 0.004
    quality = inspect(RecordingSet(ROBOT, (Recording(t, q, 3 * q),)))
    joint = quality.joints['A2']
    np.testing.assert_allclose(joint.q, (-0.5, 0.5), atol=1e-3)
    np.testing.assert_allclose(joint.qd, (qd[:, 1].min(), qd[:, 1].max()), rtol=0.02)
    assert joint.qdd[0] < -0.9 * np.abs(qdd[:, 1]).max()
    np.testing.assert_allclose(joint.tau, (-1.5, 1.5), atol=1e-2)
    assert quality.rest_share == pytest.approx(0.5, abs=0.02)


# --- U3, J12: units and velocities ---


def test_degrees_are_suspected():
    q = np.degrees(motion()[0])
    found = warnings(recording(q))
    assert sum('looks like degrees' in w for w in found) == 2
    turning = Robot('two', ('A1', 'A2'), ('continuous', 'prismatic'))
    assert not any('degrees' in w for w in warnings(recording(q), robot=turning))


def test_positions_outside_the_limits_are_told():
    limits = Limits((-0.4, -1.0), (0.4, 1.0))
    robot = Robot('two', ('A1', 'A2'), ('revolute', 'revolute'), limits=limits)
    (found,) = warnings(recording(), robot=robot)
    assert found.startswith('A1: ')
    assert 'outside the limits [-0.4, 0.4]' in found


@pytest.mark.parametrize(
    ('factor', 'expected'),
    [(1, None), (57.29578, 'deg/s'), (0, 'always 0'), (-1, '-1 times'), (0.5, '0.5 times')],
)
def test_velocity_is_compared_with_the_position(factor, expected):
    found = warnings(recording(velocity=factor * motion()[1]))
    assert bool(found) == (expected is not None)
    assert all(expected in w for w in found)


def test_joints_that_hardly_move_are_named():
    q = motion()[0] * [1, 0.01]
    (found,) = warnings(recording(q))
    assert found.startswith('A2: hardly moves')


# --- U1: what effort means ---


@pytest.fixture(scope='module')
def arm():
    """Return a robot with a URDF, a motion and its torque on the joint side."""
    robot = load_robot('kr300')
    rng = np.random.default_rng(5)
    w = rng.uniform(0.3, 1.5, 6)
    phase = rng.uniform(0, 6, 6)
    q = 0.5 * np.sin(T[:, None] * w + phase) + robot.position_offset
    qd = 0.5 * w * np.cos(T[:, None] * w + phase)
    qdd = -0.5 * w**2 * np.sin(T[:, None] * w + phase)
    body = RigidBody.from_robot(robot)
    tau = body.inverse_dynamics(q, qd, qdd) + 300 * np.tanh(20 * qd)
    return robot, q, tau / robot.gear_ratio, body.gravity(q) / robot.gear_ratio


def effort_warnings(robot, q, tau):
    found = warnings(Recording(T, q, tau), robot=robot)
    return [w for w in found if 'effort follows' in w or 'declared to be' in w]


def test_effort_as_declared_raises_no_suspicion(arm):
    robot, q, tau, _ = arm
    assert effort_warnings(robot, q, tau) == []


def test_effort_without_gravity_and_in_other_units_is_suspected(arm):
    robot, q, tau, gravity = arm
    assert any("'no_gravity'" in w for w in effort_warnings(robot, q, tau - gravity))
    assert any('motor current' in w for w in effort_warnings(robot, q, tau / 5))
    assert any('other sign' in w for w in effort_warnings(robot, q, -tau))
    declared = Robot(**{**vars(robot), 'effort': Effort('no_gravity')})
    found = effort_warnings(declared, q, tau * robot.gear_ratio)
    assert any('declared to be without gravity' in w for w in found)
    assert effort_warnings(declared, q, (tau - gravity) * robot.gear_ratio) == []


def test_efforts_above_the_limits_are_told(arm):
    robot, q, tau, _ = arm
    found = warnings(Recording(T, q, tau * robot.gear_ratio), robot=robot)
    assert any("above the limit 25; is their kind 'motor'?" in w for w in found)


@pytest.mark.data
def test_real_recordings_raise_no_suspicion(data_dir):
    sets = [kuka_250hz(p) for p in sorted((data_dir / 'kuka_kr300_iros2021').glob('traj_*.mat'))]
    name = 'forward_identification_without_raw_data_shifted.mat'
    sets.append(kuka_shifted(data_dir / 'kuka_kr300_benchmark_forward' / name))
    for s in sets:
        check_effort(s.robot, s.recordings)
        assert inspect(s).warnings == ()
