import builtins
from dataclasses import replace
import sys
import types

from dlnn_ros.config import Counterbalance, from_mapping, load_robot, Robot, share_path, to_mapping
from dlnn_ros.dynamics.rigid_body import (
    counterbalance_energy,
    counterbalance_torque,
    find_urdf,
    read_urdf,
    RigidBody,
)
import numpy as np
from numpy.testing import assert_allclose
import pytest
from tolerances import RTOL_F64, RTOL_F64_SOLVE, RTOL_FINITE_DIFFERENCE

pytest.importorskip('pinocchio')

INERTIAL = (
    '<inertial><origin xyz="0.1 0.02 0.2"/><mass value="{mass}"/>'
    '<inertia ixx="{ixx}" iyy="0.3" izz="0.2" ixy="0.01" ixz="0" iyz="0"/></inertial>'
)
BODY = INERTIAL.format(mass=2.0, ixx=0.4)


def arm(
    kinds=('revolute', 'revolute', 'revolute'),
    axes=('0 0 1', '0 1 0', '1 0 0'),
    inertial=BODY,
    dynamics='',
    extra='',
):
    """Return a URDF of a serial chain link_0 - joint_1 - link_1 - ..."""
    text = '<robot name="arm"><link name="link_0"/>'
    for i, (kind, axis) in enumerate(zip(kinds, axes, strict=True), 1):
        text += (
            f'<joint name="joint_{i}" type="{kind}"><parent link="link_{i - 1}"/>'
            f'<child link="link_{i}"/><origin xyz="0.1 0 0.4"/><axis xyz="{axis}"/>'
            f'<limit lower="-3" upper="3" effort="9" velocity="2"/>{dynamics}</joint>'
            f'<link name="link_{i}">{inertial}</link>'
        )
    return text + extra + '</robot>'


JOINTS = ('joint_1', 'joint_2', 'joint_3')
FINGER = (
    '<joint name="finger" type="prismatic"><parent link="link_3"/><child link="finger_link"/>'
    '<origin xyz="0.1 0 0.2"/><axis xyz="1 0 0"/>'
    '<limit lower="0" upper="0.1" effort="9" velocity="1"/></joint><link name="finger_link">'
    + INERTIAL.format(mass=0.7, ixx=0.3)
    + '</link>'
)


@pytest.fixture(scope='module')
def kr300():
    return RigidBody.from_robot(load_robot('kr300'))


@pytest.fixture
def states(rng):
    lower, upper = (
        np.array(x)
        for x in (
            load_robot('kr300').limits.position_lower,
            load_robot('kr300').limits.position_upper,
        )
    )
    q = rng.uniform(lower, upper, (20, 6))
    return q, rng.normal(size=(20, 6)), rng.normal(size=(20, 6))


def test_single_joint_equals_the_closed_form(rng):
    """A point-like body on a horizontal axis: (I + m l^2) qdd + m g0 l cos q."""
    body = RigidBody(
        '<robot name="p"><link name="a"/><joint name="j" type="revolute"><parent link="a"/>'
        '<child link="b"/><axis xyz="0 -1 0"/><limit effort="1" velocity="1"/></joint>'
        '<link name="b"><inertial><origin xyz="0.5 0 0"/><mass value="3"/>'
        '<inertia ixx="0.1" iyy="0.2" izz="0.3" ixy="0" ixz="0" iyz="0"/></inertial></link>'
        '</robot>',
        ['j'],
    )
    q, qd, qdd = rng.normal(size=(3, 7, 1))
    expected = (0.2 + 3 * 0.25) * qdd + 3 * 9.81 * 0.5 * np.cos(q)
    assert_allclose(body.inverse_dynamics(q, qd, qdd), expected, rtol=RTOL_F64, atol=1e-12)


def test_mass_matrix_is_symmetric_positive_definite(kr300, states):
    M = kr300.mass_matrix(states[0])
    assert_allclose(M, np.swapaxes(M, -1, -2), rtol=0, atol=1e-9)
    assert np.linalg.eigvalsh(M).min() > 0


def test_inverse_dynamics_is_the_sum_of_its_terms(kr300, states):
    q, qd, qdd = states
    M = kr300.mass_matrix(q)
    total = np.einsum('...ij,...j->...i', M, qdd) + kr300.coriolis(q, qd) + kr300.gravity(q)
    tau = kr300.inverse_dynamics(q, qd, qdd)
    assert_allclose(total, tau, rtol=RTOL_F64, atol=RTOL_F64 * abs(tau).max())


@pytest.mark.parametrize('friction', [False, True])
def test_forward_inverts_inverse(states, friction):
    body = RigidBody.from_robot(load_robot('kr300'), friction=friction)
    q, qd, qdd = states
    tau = body.inverse_dynamics(q, qd, qdd)
    assert_allclose(body.forward_dynamics(q, qd, tau), qdd, rtol=0, atol=RTOL_F64_SOLVE)


def power_mismatch(body, q, qd, qdd, extra=0.0):
    """Return qd'tau - dE/dt, dE/dt by a central difference along the motion."""
    h = 1e-5
    ahead = body.energy(q + h * qd + h * h / 2 * qdd, qd + h * qdd)
    behind = body.energy(q - h * qd + h * h / 2 * qdd, qd - h * qdd)
    tau = body.inverse_dynamics(q, qd, qdd) + extra
    return (qd * tau).sum(-1) - (ahead - behind) / (2 * h)


def test_power_is_the_rate_of_energy(kr300, states):
    q, qd, qdd = states
    scale = abs(qd * kr300.inverse_dynamics(q, qd, qdd)).sum(-1).max()
    # The energy of about 1e5 J loses digits in the difference.
    tolerance = 10 * RTOL_FINITE_DIFFERENCE * scale
    assert abs(power_mismatch(kr300, q, qd, qdd)).max() < tolerance
    assert abs(power_mismatch(kr300, q, qd, qdd, extra=1e-3 * qd * scale)).max() > tolerance


def test_gravity_is_the_gradient_of_the_potential(kr300, states):
    q, h = states[0], 1e-5
    step = h * np.eye(6)
    ahead = kr300.potential_energy(q[:, None] + step)
    behind = kr300.potential_energy(q[:, None] - step)
    g = kr300.gravity(q)
    assert_allclose((ahead - behind) / (2 * h), g, rtol=0, atol=1e-5 * abs(g).max())


def test_no_coriolis_torque_at_rest(kr300, states):
    assert abs(kr300.coriolis(states[0], 0 * states[1])).max() < 1e-9


def test_batch_equals_loop_and_leading_axes_broadcast(kr300, states):
    q, qd, qdd = states
    tau = kr300.inverse_dynamics(q, qd, qdd)
    assert_allclose(tau, [kr300.inverse_dynamics(*x) for x in zip(*states, strict=True)])
    wide = kr300.inverse_dynamics(q[:, None], qd[None, :3], np.zeros(6))
    assert wide.shape == (20, 3, 6)
    assert_allclose(wide[4, 2], kr300.inverse_dynamics(q[4], qd[2], np.zeros(6)))
    assert kr300.energy(q[:, None], qd[None, :3]).shape == (20, 3)
    assert kr300.mass_matrix(q.reshape(4, 5, 6)).shape == (4, 5, 6, 6)


def test_counterbalance_torque_is_the_gradient_of_its_energy():
    spring = load_robot('kr300').counterbalance
    q, h = np.linspace(-2.4, 0.0, 50), 1e-6
    slope = (counterbalance_energy(spring, q + h) - counterbalance_energy(spring, q - h)) / (2 * h)
    assert_allclose(counterbalance_torque(spring, q), slope, rtol=0, atol=1e-2)
    assert abs(slope).max() > 4000


def test_counterbalance_lightens_the_second_axis(kr300):
    robot = load_robot('kr300')
    bare = RigidBody.from_robot(replace(robot, counterbalance=None))
    q = np.array([0, -0.5, 0.5, 0, 0, 0])
    assert abs(kr300.gravity(q)[1]) < 0.8 * abs(bare.gravity(q)[1])
    assert 'counterbalance' in kr300.content
    assert 'counterbalance' not in bare.content


def test_armature_adds_inertia_to_its_joint():
    with_rotor = RigidBody(arm(), JOINTS, armature=(0.5, 0, 0))
    without = RigidBody(arm(), JOINTS)
    q, qd, qdd = np.full(3, 0.3), np.full(3, 0.1), np.array([2.0, 0, 0])
    change = with_rotor.inverse_dynamics(q, qd, qdd) - without.inverse_dynamics(q, qd, qdd)
    assert_allclose(change, [1.0, 0, 0], atol=1e-12)
    assert_allclose(with_rotor.mass_matrix(q) - without.mass_matrix(q), np.diag([0.5, 0, 0]))


def test_urdf_friction_enters_only_on_request():
    text = arm(dynamics='<dynamics damping="1" friction="2"/>')
    q, qd, zero = np.zeros(3), np.array([0.5, -0.5, 0]), np.zeros(3)
    rigid = RigidBody(text, JOINTS)
    rubbing = RigidBody(text, JOINTS, friction=True)
    change = rubbing.inverse_dynamics(q, qd, zero) - rigid.inverse_dynamics(q, qd, zero)
    assert_allclose(change, [2.5, -2.5, 0], atol=1e-12)
    assert rigid.content.endswith('no friction')
    assert 'friction of the URDF' in rubbing.content


def test_continuous_joint_equals_revolute_joint(rng):
    """Kinova-like: every other joint continuous, which Pinocchio stores as (cos, sin)."""
    q, qd, qdd = 5 * rng.normal(size=(3, 9, 3))
    mixed = RigidBody(arm(('continuous', 'revolute', 'continuous')), JOINTS)
    plain = RigidBody(arm(), JOINTS)
    tau = plain.inverse_dynamics(q, qd, qdd)
    assert_allclose(mixed.inverse_dynamics(q, qd, qdd), tau, rtol=RTOL_F64, atol=1e-9)
    assert_allclose(mixed.mass_matrix(q), plain.mass_matrix(q), atol=1e-12)
    assert_allclose(mixed.energy(q, qd), plain.energy(q, qd), rtol=RTOL_F64)
    assert_allclose(mixed.gravity(q + 2 * np.pi), mixed.gravity(q), atol=1e-9)


def test_joint_order_is_the_callers(rng):
    kinds = ('continuous', 'prismatic', 'revolute')
    order = [2, 0, 1]
    q, qd, qdd = rng.normal(size=(3, 9, 3))
    plain = RigidBody(arm(kinds), JOINTS)
    mixed = RigidBody(arm(kinds), [JOINTS[i] for i in order])
    tau = mixed.inverse_dynamics(q[:, order], qd[:, order], qdd[:, order])
    assert_allclose(tau, plain.inverse_dynamics(q, qd, qdd)[:, order], atol=1e-12)
    M = plain.mass_matrix(q)[:, order][:, :, order]
    assert_allclose(mixed.mass_matrix(q[:, order]), M, atol=1e-12)


def test_locked_gripper_keeps_its_mass():
    text = arm(extra=FINGER)
    q = np.array([0.1, 0.6, -0.3])
    closed = RigidBody(text, JOINTS)
    opened = RigidBody(text, JOINTS, locked={'finger': 0.04})
    bare = RigidBody(arm(), JOINTS)
    full = RigidBody(text, (*JOINTS, 'finger'))
    assert_allclose(closed.gravity(q), full.gravity([*q, 0.0])[:3], atol=1e-12)
    assert_allclose(opened.gravity(q), full.gravity([*q, 0.04])[:3], atol=1e-12)
    assert abs(opened.gravity(q) - closed.gravity(q)).max() > 0.1
    assert abs(bare.gravity(q) - closed.gravity(q)).max() > 0.1


def test_locking_position_of_a_continuous_joint():
    text = arm(('revolute', 'continuous', 'revolute'))
    full = RigidBody(text, JOINTS)
    part = RigidBody(text, ('joint_1', 'joint_3'), locked={'joint_2': 0.7})
    assert_allclose(part.gravity([0.2, 0.3]), full.gravity([0.2, 0.7, 0.3])[[0, 2]], atol=1e-12)


def test_gravity_vector_is_the_robots():
    down = RigidBody(arm(), JOINTS)
    up = RigidBody(arm(), JOINTS, gravity=(0, 0, 9.81))
    q = np.array([0.1, 0.6, -0.3])
    assert_allclose(up.gravity(q), -down.gravity(q), atol=1e-12)


@pytest.mark.parametrize(
    'inertial',
    [
        '',
        INERTIAL.format(mass=0.0, ixx=0.4),
        INERTIAL.format(mass=-1.0, ixx=0.4),
        INERTIAL.format(mass=1.0, ixx=-0.4),
        INERTIAL.format(mass=1.0, ixx='lots'),
        '<inertial><mass value="1"/></inertial>',
        '<inertial><mass value="1"/><inertia ixx="0" iyy="0" izz="0" ixy="0" ixz="0" iyz="0"/>'
        '</inertial>',
    ],
    ids=['none', 'no mass', 'negative mass', 'indefinite', 'text', 'no inertia', 'zero inertia'],
)
def test_links_without_a_sane_inertia_are_named(inertial):
    text = arm().replace(
        f'<link name="link_2">{BODY}',
        f'<link name="link_2">{inertial}',
    )
    with pytest.raises(ValueError, match=r'link_2; '):
        RigidBody(text, JOINTS)


def test_massless_frames_are_no_reason_to_refuse():
    frame = (
        '<joint name="tool_fixed" type="fixed"><parent link="link_3"/><child link="tool"/></joint>'
        '<link name="tool"/>'
    )
    RigidBody(arm(extra=frame), JOINTS)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', 'empty'),
        (' \n', 'empty'),
        ('\ufeff <', 'not well-formed XML'),
        (arm()[:-20], 'not well-formed XML'),
        ('<sdf version="1.7"/>', r'root element is <sdf>, expected <robot>'),
        (arm(extra='<link name="other"/>'), r'2 root links \(link_0, other\)'),
        ('robot.urdf', 'robot.urdf: no such URDF file'),
        ('package://arm/robot.urdf', 'package:// addresses'),
        ('/', 'is a folder'),
    ],
)
def test_unusable_urdf_gives_one_clear_line(text, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        RigidBody(text, JOINTS)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    'prefix',
    [
        '',
        '\ufeff',
        '\n  ',
        '<?xml version="1.0" encoding="ascii"?>',
        '\ufeff<?xml version="1.0"?>',
    ],
)
def test_path_address_and_text_are_the_same(prefix, tmp_path):
    path = tmp_path / 'arm.urdf'
    path.write_text(prefix + arm(), encoding='utf-8')
    q = np.full(3, 0.4)
    expected = RigidBody(arm(), JOINTS).gravity(q)
    for source in (path, str(path), f'file://{path}', prefix + arm()):
        assert_allclose(RigidBody(source, JOINTS).gravity(q), expected)


def test_joints_must_exist_and_be_of_the_kind_the_robot_says():
    with pytest.raises(ValueError, match=r'no movable joint elbow; it has joint_1, joint_2'):
        RigidBody(arm(), ('joint_1', 'elbow'))
    with pytest.raises(ValueError, match=r'joint_2 is prismatic, the robot file says revolute'):
        RigidBody(arm(('revolute', 'prismatic', 'revolute')), JOINTS, kinds=('revolute',) * 3)
    with pytest.raises(ValueError, match=r'joint_2 is floating, which is not supported'):
        RigidBody(arm(('revolute', 'floating', 'revolute')), JOINTS)
    with pytest.raises(ValueError, match=r'cannot lock joint_1; joints to lock: finger'):
        RigidBody(arm(extra=FINGER), JOINTS, locked={'joint_1': 0.0})


def test_wrong_numbers_are_refused(kr300):
    with pytest.raises(ValueError, match=r'q has shape \(3, 5\), the rigid body has 6 joints'):
        kr300.gravity(np.zeros((3, 5)))
    with pytest.raises(ValueError, match='shapes do not broadcast: q'):
        kr300.inverse_dynamics(np.zeros((3, 6)), np.zeros((4, 6)), np.zeros(6))
    with pytest.raises(ValueError, match='qd has values that are not finite'):
        kr300.coriolis(np.zeros(6), np.full(6, np.nan))
    with pytest.raises(ValueError, match='armature has 2 numbers for 3 joints'):
        RigidBody(arm(), JOINTS, armature=(1.0, 1.0))
    spring = load_robot('kr300').counterbalance
    with pytest.raises(ValueError, match='counterbalance joint'):
        RigidBody(arm(), JOINTS, counterbalance=spring)


def test_robot_without_urdf_says_so(tmp_path):
    robot = replace(load_robot('kr300'), urdf=None)
    with pytest.raises(ValueError, match='names no URDF'):
        RigidBody.from_robot(robot)
    with pytest.raises(FileNotFoundError, match=r'gone\.urdf: not found; tried'):
        find_urdf(replace(robot, urdf='gone.urdf'))
    with pytest.raises(FileNotFoundError, match=r'gone\.urdf: no such file'):
        find_urdf(replace(robot, urdf=str(tmp_path / 'gone.urdf')))


def test_urdf_beside_a_robot_file_is_found(tmp_path):
    import yaml

    (tmp_path / 'mine.urdf').write_text(arm())
    robot = Robot('mine', JOINTS, ('revolute',) * 3, urdf='mine.urdf')
    (tmp_path / 'mine.yaml').write_text(yaml.safe_dump(to_mapping(robot)))
    assert RigidBody.from_robot(load_robot(tmp_path / 'mine.yaml')).n == 3


def test_missing_pinocchio_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == 'pinocchio':
            raise ImportError('No module named pinocchio')
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, '__import__', without)
    with pytest.raises(ImportError, match='pip install pin'):
        RigidBody(arm(), JOINTS)


def test_broken_pinocchio_says_where_it_lies(monkeypatch):
    fake = types.ModuleType('pinocchio')
    fake.__file__ = '/opt/other/pinocchio/__init__.py'
    monkeypatch.setitem(sys.modules, 'pinocchio', fake)
    with pytest.raises(ImportError, match=r'/opt/other/pinocchio.*pip install pin'):
        RigidBody(arm(), JOINTS)


def test_robot_file_survives_a_round_trip():
    robot = load_robot('kr300')
    assert isinstance(robot.counterbalance, Counterbalance)
    assert from_mapping(Robot, to_mapping(robot), 'x') == robot


def test_limits_of_robot_file_and_urdf_agree():
    from xml.etree import ElementTree

    robot = load_robot('kr300')
    root = ElementTree.fromstring(read_urdf(share_path('config/robots/kr300.urdf')).encode())
    limits = [j.find('limit') for j in root.iterfind('joint') if j.get('type') == 'revolute']
    for key, values in (
        ('lower', robot.limits.position_lower),
        ('upper', robot.limits.position_upper),
        ('velocity', robot.limits.velocity),
    ):
        assert_allclose([float(x.get(key)) for x in limits], values)
    joint_effort = np.array(robot.limits.effort) * robot.gear_ratio
    assert_allclose([float(x.get('effort')) for x in limits], joint_effort, rtol=1e-3)


def measured_motion(data_dir):
    """Return q, qd, qdd and joint torque of a real 250 Hz recording, zero-phase below 8 Hz."""
    scipy_io = pytest.importorskip('scipy.io')
    from scipy.signal import butter, sosfiltfilt

    path = data_dir / 'kuka_kr300_iros2021' / 'traj_A_data.mat'
    if not path.is_file():
        pytest.skip(f'{path} not found')
    rec = scipy_io.loadmat(path, squeeze_me=True)['rec']
    robot = load_robot('kr300')
    q = np.radians(rec['act_pos_mot_deg'].item().astype(float)).T + robot.position_offset
    tau = rec['act_torque_abs_nm'].item().T * robot.gear_ratio
    sos = butter(4, 8.0, fs=250.0, output='sos')
    q, tau = sosfiltfilt(sos, q, axis=0), sosfiltfilt(sos, tau, axis=0)
    qd = np.gradient(q, 0.004, axis=0)
    qdd = np.gradient(qd, 0.004, axis=0)
    inner = slice(50, -50)
    return robot, q[inner], qd[inner], qdd[inner], tau[inner]


@pytest.mark.data
def test_reference_explains_a_real_recording(data_dir):
    """Friction of the URDF was fitted on recordings B and C; this is A."""
    robot, q, qd, qdd, tau = measured_motion(data_dir)

    def r2(robot, friction=True):
        tau_rnea = RigidBody.from_robot(robot, friction=friction).inverse_dynamics(q, qd, qdd)
        return 1 - ((tau - tau_rnea) ** 2).sum(0) / ((tau - tau.mean(0)) ** 2).sum(0)

    # Measured .983 .933 .891 .882 .951 .960.
    assert (r2(robot) > [0.97, 0.91, 0.87, 0.86, 0.93, 0.94]).all(), r2(robot)
    assert r2(replace(robot, armature=())).mean() < r2(robot).mean() - 0.01
    assert r2(replace(robot, counterbalance=None))[1] < 0
    assert r2(robot, friction=False).mean() < 0.4
