from dataclasses import fields, replace
from itertools import pairwise

from dlnn_ros.config import from_mapping, Limits, load_robot, Robot, to_mapping
from dlnn_ros.data.excitation import Box, make_motion, rest_at
from dlnn_ros.data.synthetic import _make_box, make_recordings, record, simulate, Synthetic
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal
import pytest
import yaml

pytest.importorskip('pinocchio')

SMALL = Synthetic(trajectories=3, duration_s=6.0)
SHORT = Synthetic(trajectories=3, duration_s=4.0)


@pytest.fixture(scope='module')
def simulation():
    return simulate(SMALL)


@pytest.fixture(scope='module')
def recordings(simulation):
    return record(simulation, SMALL)


@pytest.fixture(scope='module')
def short():
    return simulate(SHORT)


@pytest.fixture(scope='module')
def fine():
    """A simulation recorded at every one of its steps."""
    return simulate(replace(SHORT, rate_hz=1000.0))


def box_of(robot, is_within_torque=lambda motion: True):
    lower, upper = np.array(robot.limits.position_lower), np.array(robot.limits.position_upper)
    velocity = np.array(robot.limits.velocity)
    return Box(lower, upper, velocity, np.full(robot.n, 2.5), is_within_torque)


@pytest.mark.parametrize('stop_and_go', [0.0, 0.4, 1.0])
@pytest.mark.parametrize('duration_s', [4.0, 11.0])
def test_motion_is_smooth_and_inside_its_box(rng, stop_and_go, duration_s):
    box = box_of(load_robot('kr300'))
    for _ in range(3):
        motion = make_motion(rng, box, duration_s, 0.001, stop_and_go)
        assert len(motion.q) == round(duration_s / 0.001)
        assert (motion.q >= box.lower).all()
        assert (motion.q <= box.upper).all()
        # A longer stop-and-go move is rounded to the time grid: one sample in 800.
        assert (np.abs(motion.qd) <= box.velocity * 1.002).all()
        assert (np.abs(motion.qdd) <= box.acceleration * 1.004).all()
        assert abs(motion.qd).max() > 0.05
        for end in (0, -1):
            assert_allclose(motion.qd[end], 0, atol=1e-12)
            assert_allclose(motion.qdd[end], 0, atol=1e-12)
        # Derivatives belong to the positions: error of a central difference, h^2 q''' / 6.
        assert_allclose(np.gradient(motion.q, 0.001, axis=0)[1:-1], motion.qd[1:-1], atol=0.01)
        assert_allclose(np.gradient(motion.qd, 0.001, axis=0)[1:-1], motion.qdd[1:-1], atol=0.1)


def test_motion_without_torque_says_so(rng):
    box = box_of(load_robot('kr300'), is_within_torque=lambda motion: False)
    with pytest.raises(ValueError, match='effort limits can hold'):
        make_motion(rng, box, 5.0, 0.001, 0.4)
    weak = box_of(load_robot('kr300'), is_within_torque=lambda motion: len(motion.q) == 1)
    with pytest.raises(ValueError, match='no motion inside the effort limits'):
        make_motion(rng, weak, 5.0, 0.001, 0.4)


def test_rest_is_rest():
    motion = rest_at(np.arange(3.0), 4)
    assert_array_equal(motion.q, np.tile(np.arange(3.0), (4, 1)))
    assert not motion.qd.any()


def test_limits_are_respected(simulation):
    robot = simulation.robot
    assert (simulation.q > robot.limits.position_lower).all()
    assert (simulation.q < robot.limits.position_upper).all()
    assert (np.abs(simulation.qd) < robot.limits.velocity).all()
    effort = np.abs(simulation.tau / robot.gear_ratio)
    assert (effort <= robot.limits.effort).all()
    # Never saturated: the controller keeps its authority.
    assert (effort < 0.99 * np.array(robot.limits.effort)).all()


def test_motion_stays_within_reach_of_home(simulation):
    way = np.abs(simulation.q - simulation.robot.position_offset).max((0, 1))
    assert (way < SMALL.reach + 0.01).all()
    assert (way > 0.4 * SMALL.reach).all()
    far = replace(simulation.robot, position_offset=(0.0,) * 6)
    with pytest.raises(ValueError, match=r'home position of joint_a2 lies outside'):
        _make_box(replace(SMALL, reach=0.05), far, None, None, None, 1e-3)


def test_motion_obeys_the_equation_of_motion(simulation):
    """While it slides, tau = RNEA + friction; semi-implicit Euler at 1 kHz is that exact."""
    s = simulation
    tau = s.rigid_body.inverse_dynamics(s.q, s.qd, s.qdd) + s.friction.torque(s.qd)
    slides = (np.abs(s.qd) > 0.1).all(-1)
    assert slides.sum() > 100
    error = np.abs(tau - s.tau)[slides].max(0)
    bound = 0.01 * np.abs(s.tau).max((0, 1))
    assert (error < bound).all(), error
    without_viscous = np.abs(tau - s.friction.viscous * s.qd - s.tau)[slides].max(0)
    assert (without_viscous > bound).all()


def test_rest_phases_have_no_velocity(simulation):
    s = simulation
    # The first 0.4 s are a pause, and so are the last.
    for part in (slice(25, 95), slice(-25, None)):
        assert_array_equal(s.qd[:, part], 0.0)
        assert_array_equal(np.diff(s.q[:, part], axis=1), 0.0)
    at_rest = (s.qd == 0).all(-1)
    assert 0.05 < at_rest.mean() < 0.6
    assert (np.abs(s.qd).max((0, 1)) > 0.1).all()


def test_recordings_start_in_balance_with_held_friction(simulation):
    s = simulation
    held = s.friction_torque[:, 0] / s.friction.breakaway
    assert (np.abs(held) <= 1.0).all()
    assert np.abs(held).mean() > 0.2
    assert held.min() < -0.3 < 0.3 < held.max()
    assert_array_equal(s.qd[:, :80], 0.0)
    assert_array_equal(s.friction_torque[:, 1:80], s.friction_torque[:, :79])
    # Another recording holds another torque.
    assert np.abs(np.diff(held, axis=0)).min() > 1e-3


def test_friction_at_rest_depends_on_the_past(simulation):
    """What a joint holds has the sign of its arrival, which no function of (q, qd) can tell."""
    s = simulation
    pause = 50
    arrivals = []
    for k, i in np.ndindex(len(s.qd), s.qd.shape[2]):
        qd, share = s.qd[k, :, i], s.friction_torque[k, :, i] / s.friction.breakaway[i]
        rests = np.abs(qd) < 1e-4
        for j in np.flatnonzero(np.diff(rests.astype(int)) == 1):
            before = qd[:j][np.abs(qd[:j]) > 5e-3]
            if len(before) and rests[j + 1 : j + pause].all() and j + pause < len(qd):
                arrivals.append((np.sign(before[-1]), share[j + pause]))
    sign, held = np.array(arrivals).T
    assert len(held) > 20
    assert min((sign > 0).sum(), (sign < 0).sum()) > 5
    assert (sign * held > 0.3).all()
    assert (np.abs(held) <= 1.0 + 1e-3).all()


def test_friction_torque_completes_the_equation_of_motion(fine):
    s = fine
    rest = s.tau - s.rigid_body.inverse_dynamics(s.q, s.qd, s.qdd)
    assert_allclose(s.friction_torque, rest, rtol=0, atol=1e-8 * np.abs(s.tau).max())
    slides = np.abs(s.qd) > 0.1
    steady = s.friction.torque(s.qd)
    scale = s.friction.breakaway.min()
    # Viscous friction is that of the step's end.
    assert_allclose(s.friction_torque[slides], steady[slides], rtol=0, atol=0.1 * scale)


def test_every_joint_reverses(simulation):
    sign = np.sign(simulation.qd)
    reversals = ((sign[:, 1:] * sign[:, :-1]) <= 0).sum((0, 1))
    assert (reversals > 3).all()


def test_power_balance(fine):
    """Energy put in is stored or lost in friction, at every time."""
    s = fine
    dt = s.t[1]
    energy = s.rigid_body.energy(s.q, s.qd)
    # The drive torque acts over the step after its sample, as does the velocity at its end.
    work = np.cumsum((s.tau * np.roll(s.qd, -1, axis=1)).sum(-1)[:, :-1], axis=1) * dt
    stored = energy[:, 1:] - energy[:, :1]
    lost = work - stored
    scale = np.abs(stored).max()
    assert (lost > -1e-3 * scale).all()
    assert (lost[:, -1] > 0.05 * scale).all()
    assert not (-work - stored > -1e-3 * scale).all()
    friction = np.cumsum((s.friction.torque(s.qd) * s.qd).sum(-1)[:, 1:], axis=1) * dt
    assert_allclose(lost, friction, rtol=0, atol=0.02 * lost.max())


def test_recordings_have_names_roles_and_rate(recordings):
    parts = recordings.recordings
    assert [r.name for r in parts] == ['traj_00', 'traj_01', 'traj_02']
    assert [r.role for r in parts] == ['train', 'validation', 'test']
    for before, after in pairwise(parts):
        assert after.t[0] > before.t[-1] + 1.0
    for r in parts:
        assert r.q.shape == (1500, 6)
        assert r.rate_hz == pytest.approx(250.0)
    assert recordings.robot == load_robot('kr300')


def test_sensors_add_noise_of_the_given_size(simulation, recordings):
    robot = simulation.robot
    q = np.stack([r.q for r in recordings.recordings]) - simulation.q
    # Noise and rounding are independent: variances add.
    expected = np.hypot(SMALL.encoder_noise, SMALL.encoder_step / np.sqrt(12))
    assert_allclose(q.std((0, 1)), expected, rtol=0.1)
    effort = np.stack([r.tau for r in recordings.recordings]) - simulation.tau / robot.gear_ratio
    assert_allclose(effort.std((0, 1)), 0.01 * np.array(robot.limits.effort), rtol=0.05)


def test_steps_of_the_encoder_are_visible(simulation):
    coarse = record(simulation, replace(SMALL, encoder_step=1e-3)).recordings[0].q / 1e-3
    assert_allclose(coarse, np.round(coarse), rtol=0, atol=1e-6)
    ideal = replace(SMALL, encoder_step=0.0, encoder_noise=0.0, effort_noise=0.0)
    exact = record(simulation, ideal).recordings[0]
    assert_array_equal(exact.q, simulation.q[0])
    assert_array_equal(exact.tau, simulation.tau[0] / simulation.robot.gear_ratio)


def test_same_seed_same_recording_other_seed_another(short):
    """Neither depends on how many recordings there are."""
    lines = []
    first = record(short, SHORT).recordings
    longer = make_recordings(replace(SHORT, trajectories=4), lines.append).recordings
    other = make_recordings(replace(SHORT, seed=1)).recordings
    for a, b, c in zip(first, longer, other, strict=False):
        assert_array_equal(a.q, b.q)
        assert_array_equal(a.tau, b.tau)
        assert np.abs(a.q - c.q).max() > 0.1
    assert lines[0] == 'motion 1 of 4 planned'
    assert lines[-1] == 'simulated 90 %'


def test_effort_is_what_the_robot_says(tmp_path, simulation):
    """Joint-side and gravity-free torque of the same motion."""
    ideal = replace(SMALL, encoder_step=0.0, encoder_noise=0.0, effort_noise=0.0)
    robot = simulation.robot
    effort = from_mapping(type(robot.effort), {'kind': 'no_gravity'}, 'effort')
    free = record(simulation._replace(robot=replace(robot, effort=effort)), ideal)
    expected = simulation.tau[0] - simulation.rigid_body.gravity(simulation.q[0])
    assert_allclose(free.recordings[0].tau, expected)


def test_any_robot_with_a_urdf_can_be_recorded(tmp_path):
    """A small arm with a prismatic joint and no rotor inertia or counterbalance."""
    (tmp_path / 'crane.urdf').write_text(
        '<robot name="crane"><link name="base"/>'
        '<joint name="turn" type="continuous"><parent link="base"/><child link="arm"/>'
        '<axis xyz="0 0 1"/><dynamics damping="0.5" friction="0.4"/></joint>'
        '<link name="arm"><inertial><origin xyz="0.3 0 0"/><mass value="4"/>'
        '<inertia ixx="0.1" iyy="0.2" izz="0.2" ixy="0" ixz="0" iyz="0"/></inertial></link>'
        '<joint name="lift" type="prismatic"><parent link="arm"/><child link="hook"/>'
        '<origin xyz="0.6 0 0"/><axis xyz="0 0 1"/>'
        '<limit lower="-0.4" upper="0.4" effort="60" velocity="0.5"/>'
        '<dynamics damping="2" friction="3"/></joint>'
        '<link name="hook"><inertial><mass value="2"/>'
        '<inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial></link>'
        '</robot>'
    )
    limits = Limits((-3.0, -0.4), (3.0, 0.4), (1.5, 0.5), (30.0, 60.0))
    robot = Robot(
        'crane', ('turn', 'lift'), ('continuous', 'prismatic'), limits=limits, urdf='crane.urdf'
    )
    path = tmp_path / 'crane.yaml'
    path.write_text(yaml.safe_dump(to_mapping(robot)))
    settings = Synthetic(robot=str(path), trajectories=3, duration_s=4.0, rate_hz=100.0)
    made = make_recordings(settings)
    assert made.robot.joints == robot.joints
    tau = np.concatenate([r.tau for r in made.recordings])
    assert_allclose(tau[:, 1].mean(), 2 * 9.81, rtol=0.1)

    weak = replace(robot, limits=replace(limits, effort=(30.0, 10.0)))
    path.write_text(yaml.safe_dump(to_mapping(weak)))
    with pytest.raises(ValueError, match='no pose found that the effort limits can hold'):
        make_recordings(settings)
    path.write_text(yaml.safe_dump(to_mapping(replace(robot, limits=Limits()))))
    with pytest.raises(ValueError, match='has no limits for position_lower, position_upper'):
        make_recordings(settings)
    stuck = replace(robot, limits=replace(limits, velocity=(0.0, 0.5)))
    path.write_text(yaml.safe_dump(to_mapping(stuck)))
    with pytest.raises(ValueError, match='limits of turn leave no room to move'):
        make_recordings(settings)


BAD = {
    'trajectories': 2,
    'duration_s': 1.0,
    'rate_hz': 5.0,
    'seed': -1,
    'stop_and_go': 1.5,
    'reach': 0.0,
    'velocity_fraction': 0.0,
    'acceleration': -1.0,
    'breakaway': 0.5,
    'stribeck_velocity': 0.0,
    'presliding': -1e-3,
    'encoder_noise': -1.0,
    'encoder_step': -1.0,
    'effort_noise': -1.0,
}


def test_every_number_has_a_rule():
    assert set(BAD) == {f.name for f in fields(Synthetic)} - {'robot'}


@pytest.mark.parametrize(('name', 'value'), BAD.items())
def test_settings_are_checked(name, value):
    with pytest.raises(ValueError, match=f'{name} must be .*, got {value}'):
        replace(SMALL, **{name: value})


def effect(short, name, value):
    changed = simulate(replace(SHORT, **{name: value}))
    return changed.q.shape != short.q.shape or np.abs(short.q - changed.q).max() > 1e-7


@pytest.mark.parametrize(('name', 'value'), [('breakaway', 2.0), ('presliding', 1e-3)])
def test_friction_has_an_effect(short, name, value):
    assert effect(short, name, value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('rate_hz', 125.0),
        ('stop_and_go', 0.0),
        ('reach', 0.3),
        ('velocity_fraction', 0.1),
        ('acceleration', 0.5),
        ('stribeck_velocity', 0.2),
    ],
)
def test_every_setting_has_an_effect(short, name, value):
    assert effect(short, name, value)
