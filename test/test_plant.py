"""The simulated arm; what a joint on springs does is checked on a single mass."""

from types import SimpleNamespace

from dlnn_ros.config import load_robot
from dlnn_ros.dynamics import plant as plant_module
from dlnn_ros.dynamics.plant import Friction, Plant, State, YIELD
from dlnn_ros.dynamics.rigid_body import RigidBody
import numpy as np
from numpy.testing import assert_allclose, assert_array_equal
import pytest

pytest.importorskip('pinocchio')


@pytest.fixture(scope='module')
def plants():
    body = RigidBody.from_robot(load_robot('kr300'))
    dry, viscous = body.dry_friction, body.damping
    zero = np.zeros(6)
    return {
        'none': Plant(body, Friction(zero, zero, zero), 1e-3),
        'dry': Plant(body, Friction(zero, dry, 1.5 * dry), 1e-3),
        'full': Plant(body, Friction(viscous, dry, 1.5 * dry), 1e-3),
        'huge': Plant(body, Friction(viscous, 20 * dry, 30 * dry), 1e-3),
        'springs': Plant(body, Friction(viscous, dry, 1.5 * dry, presliding=3e-4), 1e-3),
        'soft': Plant(body, Friction(zero, dry, 1.5 * dry, presliding=1e-2), 1e-3),
    }


START = np.array([[0.0, -1.2, 1.4, 0.3, 0.5, -0.2], [0.4, -1.0, 1.0, -0.3, 0.9, 0.2]])


def stored(plant, springs):
    """Compute the energy of the springs."""
    return (springs**2 / (2 * plant.friction.stiffness())).sum((-3, -1))


def run(plant, state, tau, steps):
    """Advance under the torque tau(step, drift); return the path."""
    states = [state]
    for i in range(steps):
        terms = plant.terms(state.q, state.qd)
        state = plant.step(state, tau(i, terms.drift), terms)
        states.append(state)
    return State(*(np.stack(x) for x in zip(*states, strict=True)))


def coast(plant, steps=300, qd=0.5):
    start = plant.make_state(START, np.full((2, 6), qd))
    return run(plant, start, lambda i, drift: np.zeros((2, 6)), steps)


@pytest.mark.parametrize('kind', ['dry', 'full', 'huge', 'springs', 'soft'])
def test_friction_dissipates(plants, kind):
    plant = plants[kind]
    q, qd, springs = coast(plant)
    energy = plant.rigid_body.energy(q, qd) + stored(plant, springs)
    assert (np.diff(energy, axis=0) < 1e-6 * np.abs(energy).max()).all()
    frictionless = plants['none'].rigid_body.energy(*coast(plants['none'])[:2])
    kept = np.abs(frictionless[-1] - frictionless[0])
    assert (energy[0] - energy[-1] > 10 * kept).all()


def test_joints_stick_below_and_slip_above_the_breakaway_torque(plants):
    plant = plants['full']
    q, rest = START, np.zeros((2, 6))
    hold = plant.terms(q, rest).drift
    state = plant.make_state(q)
    just_below, just_above = (hold + f * plant.friction.breakaway for f in (0.99, 1.01))
    assert_array_equal(plant.step(state, just_below, plant.terms(q, rest)).qd, 0.0)
    assert_array_equal(plant.step(state, just_below, plant.terms(q, rest)).q, q)
    assert (plant.step(state, just_above, plant.terms(q, rest)).qd > 0.0).all()


def test_step_solves_its_inclusion(plants, rng):
    """Residual = friction level against the motion, or less than it at rest."""
    plant = plants['dry']
    h = plant.time_step_s
    for _ in range(50):
        qd = rng.normal(size=(2, 6)) * rng.choice([0.0, 1e-4, 1e-2, 1.0], (2, 6))
        tau = rng.normal(size=(2, 6)) * 2000
        M, drift = terms = plant.terms(START, qd)
        v = plant.step(plant.make_state(START, qd), tau, terms).qd
        F = plant.friction.level(qd)
        residual = tau - drift - np.einsum('kij,kj->ki', M, v - qd) / h
        moves = v != 0
        tolerance = 1e-6 * np.abs(tau).max()
        assert_allclose(residual[moves], (F * np.sign(v))[moves], rtol=0, atol=tolerance)
        assert (np.abs(residual) <= F + tolerance).all()


def draw_springs(rng, plant, shape=(2, 6)):
    """Draw forces that are admissible at rest, some at their limit."""
    share = np.clip(rng.uniform(-1.3, 1.3, (3, *shape)), -1, 1)
    return share * plant.friction.limit(np.zeros(shape))


@pytest.mark.parametrize('newton_steps', [1, 8])
@pytest.mark.parametrize('kind', ['springs', 'soft'])
def test_step_with_springs_solves_its_equation(plants, rng, monkeypatch, kind, newton_steps):
    """By Newton steps, and by sweeps where those are cut short."""
    swept = []
    sweep = plant_module._solve_by_sweeps
    monkeypatch.setattr(
        plant_module, '_solve_by_sweeps', lambda *args: swept.append(1) or sweep(*args)
    )
    monkeypatch.setattr(plant_module, 'MAX_NEWTON_STEPS', newton_steps)
    # That a slow joint counts as rest is an error of up to 1e3 kg m^2 x 1e-6 rad/s / 1 ms.
    monkeypatch.setattr(plant_module, 'CREEP', 0.0)
    plant = plants[kind]
    h = plant.time_step_s
    for _ in range(50):
        qd = rng.normal(size=(2, 6)) * rng.choice([0.0, 1e-4, 1e-2, 1.0], (2, 6))
        tau = rng.normal(size=(2, 6)) * 2000
        M, drift = terms = plant.terms(START, qd)
        state = State(START, qd, draw_springs(rng, plant))
        _, v, springs = plant.step(state, tau, terms)
        limit = plant.friction.limit(qd)
        wanted = state.springs + plant.friction.stiffness() * h * v
        assert_allclose(springs, np.clip(wanted, -limit, limit), rtol=1e-12)
        left = tau - drift - np.einsum('kij,kj->ki', M, v - qd) / h - springs.sum(0)
        left -= plant.friction.viscous * v
        # Sweeps stop at 1e-11 rad/s, with 1e3 kg m^2 over 1 ms.
        assert_allclose(left, 0.0, atol=1e-3)
    assert bool(swept) == (newton_steps == 1)


@pytest.mark.parametrize('kind', ['full', 'springs'])
def test_batch_equals_single(plants, kind):
    plant = plants[kind]
    two = coast(plant, steps=100)
    one = plant.make_state(START[1:], np.full((1, 6), 0.5))
    one = run(plant, one, lambda i, drift: np.zeros((1, 6)), 100)
    for a, b in zip(two, one, strict=True):
        assert_array_equal(a[..., 1, :], b[..., 0, :])


def test_fast_terms_equal_the_checked_ones(plants, rng):
    body = plants['full'].rigid_body
    qd = rng.normal(size=(2, 6))
    M, drift = body.mass_and_drift(START, qd)
    assert_allclose(M, body.mass_matrix(START), rtol=1e-12, atol=1e-9)
    expected = body.inverse_dynamics(START, qd, np.zeros(6))
    assert_allclose(drift, expected, rtol=1e-10, atol=1e-9)


def test_friction_is_checked():
    one = np.ones(2)
    with pytest.raises(ValueError, match='must not be negative'):
        Friction(-one, one, one)
    with pytest.raises(ValueError, match='must not be smaller than Coulomb'):
        Friction(one, one, 0.5 * one)
    with pytest.raises(ValueError, match='stribeck_velocity must be positive'):
        Friction(one, one, one, 0.0)
    with pytest.raises(ValueError, match='presliding must not be negative'):
        Friction(one, one, one, presliding=-1e-3)
    with pytest.raises(ValueError, match='time_step_s must be in'):
        Plant(None, Friction(one, one, one), 0.01)


MASS, LEVEL, PRESLIDING = 5.0, 100.0, 3e-4


def make_mass(presliding=PRESLIDING, breakaway=1.0, viscous=0.0, time_step_s=1e-3):
    """One joint that carries a mass, without gravity."""
    body = SimpleNamespace(
        n=1, mass_and_drift=lambda q, qd: (np.full((len(q), 1, 1), MASS), np.zeros_like(q))
    )
    level = np.array([LEVEL])
    friction = Friction(np.array([viscous]), level, breakaway * level, 0.02, presliding)
    return Plant(body, friction, time_step_s)


def pull(plant, tau, duration_s):
    """Pull the mass from rest with the force tau(t)."""
    h = plant.time_step_s
    start = plant.make_state(np.zeros((1, 1)))
    path = run(plant, start, lambda i, _: np.full((1, 1), tau(i * h)), round(duration_s / h))
    return State(path.q[:, 0, 0], path.qd[:, 0, 0], path.springs[..., 0, 0])


def virgin(x):
    """Force over the way from relaxed springs."""
    yields = PRESLIDING * YIELD
    return LEVEL / 3 * np.minimum(np.abs(x)[..., None] / yields, 1).sum(-1) * np.sign(x)


def test_slow_motion_below_breakaway_draws_a_loop():
    """Branches are the virgin curve, twice as large (Masing); the area is the energy lost."""
    path = pull(make_mass(), lambda t: 0.8 * LEVEL * np.sin(np.pi * t), 3.25)
    force = path.springs.sum(-1)
    first = slice(0, 450)
    assert_allclose(force[first], virgin(path.q[first]), rtol=0, atol=1e-9 * LEVEL)
    loop = slice(501, 2501)
    q, f = path.q[loop], force[loop]
    top = q.max()
    assert_allclose(virgin(top), 0.8 * LEVEL, rtol=5e-3)
    down, up = np.diff(q, append=q[-1]) < 0, np.diff(q, append=q[-1]) > 0
    # Inertia and the step are what is left: 1 % of the level.
    tolerance = 0.01 * LEVEL
    masing = 0.8 * LEVEL - 2 * virgin((top - q) / 2)
    assert_allclose(f[down], masing[down], rtol=0, atol=tolerance)
    assert np.abs(f[up] - masing[up]).max() > 20 * tolerance
    rising = 2 * virgin((q + top) / 2) - 0.8 * LEVEL
    assert_allclose(f[up], rising[up], rtol=0, atol=tolerance)
    area = (f[1:] * np.diff(q)).sum()
    expected = (4 * LEVEL / 3 * np.maximum(top - PRESLIDING * YIELD, 0)).sum()
    assert_allclose(area, expected, rtol=0.02)


def walk(plant, *ways):
    springs, limit = np.zeros((3, 1, 1)), plant.friction.limit(np.zeros((1, 1)))
    for way in ways:
        springs = plant.stretch(springs, np.full((1, 1), way * PRESLIDING), limit)
    return springs.sum()


def test_memory_is_not_local():
    """At the same place with the same direction, force depends on earlier turns; loops close."""
    plant = make_mass()
    # An inner loop is forgotten when the motion passes its start.
    assert_allclose(walk(plant, 0.5, -0.2, 0.3), walk(plant, 0.6), rtol=1e-12)
    assert_allclose(walk(plant, 0.5, -0.2, 0.2), walk(plant, 0.5), rtol=1e-12)
    assert abs(walk(plant, 0.5, -0.2, 0.1) - walk(plant, 0.4)) > 0.1 * LEVEL
    assert abs(walk(plant, 0.9, -0.6, 0.1) - walk(plant, 0.3, 0.1)) > 0.5 * LEVEL


def test_what_a_joint_holds_at_rest_depends_on_its_arrival():
    """A controller without integral action brings the mass to one place from both sides."""
    plant = make_mass(breakaway=1.2, viscous=50.0)
    start = plant.make_state(np.array([[-0.1], [0.1]]))
    stiffness, damping = 36.0**2 * MASS, 2 * 36.0 * MASS
    state = start
    for _ in range(1500):
        tau = -stiffness * state.q - damping * state.qd
        state = plant.step(state, tau, plant.terms(state.q, state.qd))
    assert_array_equal(state.qd, 0.0)
    held = state.springs.sum(0)
    # The springs balance the controller, but for what a speed below CREEP could change.
    assert_allclose(held, -stiffness * state.q, rtol=0, atol=1e-3 * LEVEL)
    assert held[0] > 0.5 * LEVEL
    assert held[1] < -0.5 * LEVEL


def test_springs_hold_up_to_breakaway_and_then_slide():
    plant = make_mass(breakaway=1.2, viscous=50.0)
    held, slid = (
        pull(plant, lambda t, f=f: f * 1.2 * LEVEL * min(t, 1.0), 2.0) for f in (0.97, 1.03)
    )
    assert_array_equal(held.qd[-200:], 0.0)
    assert 0.5 * PRESLIDING < held.q[-1] < PRESLIDING
    assert slid.qd[-1] > 0.1


def test_springs_give_back_no_more_than_they_took(rng):
    """Work less stored energy is lost in every step, for any way and any change of the limits."""
    plant = make_mass(breakaway=1.5)
    shape = (100, 1)
    springs = draw_springs(rng, plant, shape)
    gains = []
    for _ in range(200):
        way = rng.normal(size=shape) * PRESLIDING * rng.choice([0.0, 0.03, 0.3, 3.0], shape)
        limit = plant.friction.limit(0.02 * rng.normal(size=shape))
        new = plant.stretch(springs, way, limit)
        # Of each spring.
        kept = (new**2 - springs**2) / (2 * plant.friction.stiffness())
        lost = new * way - kept
        late = springs * way - kept
        gains.append((lost.min(), late.min()))
        springs = new
    least, late = np.min(gains, axis=0)
    scale = LEVEL * PRESLIDING
    assert least > -1e-12 * scale
    # The force before the step is not passive.
    assert late < -0.1 * scale


def test_stiff_springs_become_rigid_friction():
    rigid, *soft = (
        pull(make_mass(p, 1.2, 50.0), lambda t: 2 * LEVEL * np.sin(6 * t), 1.5)
        for p in (0.0, 1e-3, 1e-5, 1e-7)
    )
    assert 0.02 < (rigid.qd == 0).mean() < 0.5
    assert rigid.qd.min() < -0.5 < 0.5 < rigid.qd.max()
    far = [np.abs(rigid.q - s.q).max() for s in soft]
    assert far[0] > 1e-4
    assert far[1] < 0.03 * far[0]
    # Below, rest begins and ends a step earlier or later.
    assert far[2] < 2e-6


def test_error_falls_with_the_time_step():
    """To first order, over a stop."""

    def follow(time_step_s):
        plant = make_mass(1e-3, 1.0, 50.0, time_step_s)
        path = pull(plant, lambda t: 2 * LEVEL * np.sin(6 * t), 0.8)
        return path.q[:: round(1.6e-3 / time_step_s)]

    finest = follow(2e-4)
    errors = [np.abs(follow(h) - finest).max() for h in (1.6e-3, 8e-4, 4e-4)]
    assert errors[0] < 0.005 * np.abs(finest).max()
    assert errors[1] < 0.5 * errors[0]
    assert errors[2] < 0.5 * errors[1]
