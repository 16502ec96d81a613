"""Friction with memory, Eq. (19): passive whatever the weights and the motion, and exact."""

import math
from typing import NamedTuple

from dlnn_ros.dynamics.architecture import (
    DlnnMemoryConfig,
    Element,
    LinearMemoryConfig,
    make_config,
    MemoryConfig,
)
from dlnn_ros.dynamics.memory import BOUNDS, FrictionMemory, linear_recurrence
import numpy as np
import pytest
from scipy.integrate import solve_ivp
import tolerances
import torch

import models

ELEMENTS = (
    Element(1e-5),
    Element(1e-4, 1e-3),
    Element(1e-3, 1e-2, 4.0),
    Element(1e-2, None, 0.05),
    Element(0.08, 1.0),
)
J = len(ELEMENTS)
REVOLUTE = (True, False)
DTYPES = [torch.float64, torch.float32]


def make(elements=ELEMENTS, dtype=torch.float64, seed=0, cls=FrictionMemory, **options):
    """Return elements of two joints, random in all that is learned of them."""
    torch.manual_seed(seed)
    memory = cls(MemoryConfig(elements, **options), REVOLUTE, (0.5, 0.5))
    with torch.no_grad():
        for p in memory.parameters():
            p.add_(0.5 * torch.randn_like(p))
        memory.raw_weight.normal_(0.0, 2.0)
    return memory.to(dtype)


def one(zeta, slip_velocity=None, relaxation_s=None):
    """Return a single element of weight one on one joint."""
    config = MemoryConfig((Element(zeta, slip_velocity, relaxation_s),))
    memory = FrictionMemory(config, (True,), (1.0,)).double()
    memory.set_weights(torch.ones(1, 1, dtype=torch.float64))
    return memory


class Motion(NamedTuple):
    """Path of two joints; the elements start bent by y at the position q0."""

    q0: torch.Tensor
    y0: torch.Tensor
    q: torch.Tensor
    qd: torch.Tensor
    dt: torch.Tensor

    @property
    def state(self):
        return torch.cat([self.y0, self.q0.unsqueeze(-1)], -1)

    @property
    def dq(self):
        return torch.diff(self.q, dim=-2, prepend=self.q0.unsqueeze(-2))


def wild_motion(rng, samples=2000, elements=J):
    """Stops, reversals, steps and speeds of any size, speeds unlike the steps, irregular time."""
    shape = samples, 2
    ways = 10.0 ** rng.uniform(-9, 1, shape) * rng.choice([-1.0, 1.0], shape)
    ways[rng.random(shape) < 0.2] = 0.0
    runs = rng.random(shape) < 0.5  # half of the motion goes on as before
    for k in range(1, samples):
        ways[k] = np.where(runs[k], np.copysign(ways[k], ways[k - 1]), ways[k])
    speed = 10.0 ** rng.uniform(-8, 3, shape)
    speed[rng.random(shape) < 0.2] = 0.0
    dt = 10.0 ** rng.uniform(-6, 2, samples)
    dt[rng.random(samples) < 0.05] = 0.0
    q0 = rng.normal(size=2)
    arrays = q0, rng.uniform(-1, 1, (2, elements)), q0 + ways.cumsum(0), speed, dt
    return Motion(*map(torch.from_numpy, arrays))


def smooth_motion(rng, samples=1500, period=0.004, size=0.02, elements=J):
    """Slow sines that turn, and stand still in the middle."""
    t = period * np.arange(1, samples + 1)
    moving = np.clip(np.abs(t - t[-1] / 2) - 0.4, 0, None)
    frequency, phase = rng.uniform(1, 3, (2, 1, 2)) + [[[0.0]], [[4.0]]]
    angle = frequency * moving[:, None] + phase
    q = size * np.sin(angle)
    qd = np.gradient(q, period, axis=0)
    dt = np.full(samples, period)
    arrays = q[0], rng.uniform(-1, 1, (2, elements)), q, qd, dt
    return Motion(*map(torch.from_numpy, arrays))


# ---- passivity, as checks that elements pass or not


def new_force(memory, motion, y):
    return memory.force(motion.q, y)


@torch.no_grad()
def check_takes_in(memory, motion, force=new_force):
    """
    Each joint takes in what its elements store, at every sample and in total, to rounding.

    What is taken in and stored is counted in float64 from the states and forces as computed.
    Those are wrong by some roundings of states of size one, that is, of w (zeta + |dq|) in the
    energy of a sample.
    """
    run = memory.run(motion.state, motion.q, motion.qd, motion.dt)
    weight = memory.weight(motion.q).double()
    zeta = memory.parameter('zeta').double()
    states = torch.cat([motion.y0[None], run.y.double()])
    weights = torch.cat([memory.weight(motion.q0[None]).double(), weight])
    stored = (weights * zeta * states.square()).sum(-1) / 2
    put_in = force(memory, motion, run.y).double() * motion.dq
    surplus = put_in - torch.diff(stored, dim=0)
    way = motion.dq.abs().unsqueeze(-1)
    allowed = 8 * torch.finfo(run.y.dtype).eps * (weight.abs() * (zeta + way)).sum(-1)
    worst = float((surplus / allowed).min())
    assert worst >= -1, f'a sample gives {-worst:.3g} times the rounding'
    worst = float((surplus.cumsum(0) / allowed.cumsum(0)).min())
    assert worst >= -1, f'the motion gives {-worst:.3g} times the rounding'
    total = memory.stored(motion.q, run.y).double()
    np.testing.assert_allclose(total, stored[1:].sum(-1), rtol=1e-5)


def check_power(memory, q, qd, y):
    """`qd'd_mem - dS/dt >= 0` along the equation of motion of the elements, and what it is."""
    q, y = q.clone().requires_grad_(), y.clone().requires_grad_()
    zeta, slip, relax = (memory.parameter(name) for name in BOUNDS)
    way = qd.unsqueeze(-1)
    h = 1 / (1 + way.abs() / slip)
    rate = way / zeta - way.abs() * y / (zeta * h) - y / relax
    along_q, along_y = torch.autograd.grad(
        memory.stored(q, y).sum(), (q, y), allow_unused=True, materialize_grads=True
    )
    stored_rate = (along_q * qd).sum(-1) + (along_y * rate).sum((-1, -2))
    supplied = (qd * memory.force(q, y)).sum(-1)
    surplus = supplied - stored_rate
    scale = (memory.weight(q).abs() * (way.abs() + zeta * (rate * y).abs())).sum((-1, -2))
    given = float((-surplus - tolerances.RTOL_F64 * scale).max().detach())
    assert given <= 0, f'gives {given:.3g} more than rounding'
    lost = memory.weight(q) * (way.abs() * y.square() / h + zeta * y.square() / relax)
    difference = (surplus - lost.sum((-1, -2))).abs() - tolerances.RTOL_F64 * scale
    assert float(difference.max().detach()) <= 0


def bent_states(rng, elements=ELEMENTS, batch=500):
    """Return q, qd of any size and y, for two joints."""
    qd = 10.0 ** rng.uniform(-6, 1, (batch, 2)) * rng.choice([-1.0, 0.0, 1.0], (batch, 2))
    qd[0] = [1e-3, -1e-3]  # not all at rest
    y = rng.uniform(-1, 1, (batch, 2, len(elements)))
    return tuple(map(torch.from_numpy, (rng.normal(size=(batch, 2)), qd, y)))


@pytest.mark.parametrize('dtype', DTYPES, ids=['f64', 'f32'])
@pytest.mark.parametrize('learned', [False, True], ids=['fixed', 'learned'])
def test_memory_takes_in_what_it_stores(rng, dtype, learned):
    for seed in range(4):
        memory = make(dtype=dtype, seed=seed, learned=learned)
        check_takes_in(memory, wild_motion(rng))
        check_takes_in(memory, smooth_motion(rng))


@pytest.mark.parametrize('options', [{}, {'learned': True}, {'weight_width': 16}], ids=str)
def test_memory_takes_in_what_it_stores_at_every_instant(rng, options):
    for seed in range(4):
        check_power(make(seed=seed, **options), *bent_states(rng))


@torch.no_grad()
def surplus_of_position_weights(samples, cls=FrictionMemory):
    """Return what elements with large ways took in and did not store, over all samples."""
    memory = make((Element(3.0), Element(1.0, 1.0)), cls=cls, weight_width=16)
    motion = smooth_motion(np.random.default_rng(1), samples, 6.0 / samples, 0.5, 2)
    y = memory.run(motion.state, motion.q, motion.qd, motion.dt).y
    put_in = (memory.force(motion.q, y) * motion.dq).sum()
    before = memory.stored(motion.q0[None], motion.y0[None])
    return float(put_in - memory.stored(motion.q[-1:], y[-1:]) + before)


def test_weights_of_the_position_take_in_what_they_store_in_the_limit_of_fine_samples():
    """What they store changes with q to first order in the step: their error halves with it."""
    surplus = np.array([surplus_of_position_weights(n) for n in (1000, 2000, 4000, 8000)])
    limit = 2 * surplus[-1] - surplus[-2]
    assert limit > 0
    change = np.diff(surplus)
    np.testing.assert_allclose(change[1:] / change[:-1], 0.5, atol=0.1)
    wrong = surplus_of_position_weights(8000, NoStorageGradient)
    assert abs(wrong - limit) > 10 * abs(surplus[-1] - limit)


# ---- the checks fail on elements that are not passive


class NegativeWeight(FrictionMemory):
    def weight(self, q):
        w = super().weight(q).clone()
        w[:, :, 1] *= -1
        return w

    def force(self, q, y):
        return (self.weight(q) * y).sum(-1)


class LimitLeftOut(FrictionMemory):
    """Bends over the way zeta where that is zeta h."""

    def coefficients(self, dq, qd, dt):
        keep, drive = super().coefficients(dq, 0 * qd, dt)
        h = 1.0 / (1.0 + qd.abs().unsqueeze(-1) / self.parameter('slip_velocity'))
        return keep, drive * h


class SignFlipped(FrictionMemory):
    def coefficients(self, dq, qd, dt):
        return super().coefficients(-dq, qd, dt)


class NoStorageGradient(FrictionMemory):
    def force(self, q, y):
        return (self.weight(q) * y).sum(-1)


class DrivenAtRest(FrictionMemory):
    """Bends without a way."""

    def coefficients(self, dq, qd, dt):
        keep, drive = super().coefficients(dq, qd, dt)
        return keep, drive + 1e-6


def old_force(memory, motion, y):
    return memory.force(motion.q, torch.cat([motion.y0[None].to(y.dtype), y[:-1]]))


@pytest.mark.parametrize(
    ('cls', 'motion'),
    [
        (NegativeWeight, wild_motion),
        (NegativeWeight, smooth_motion),
        (SignFlipped, wild_motion),
        (SignFlipped, smooth_motion),
        (LimitLeftOut, wild_motion),
        (DrivenAtRest, wild_motion),
    ],
)
def test_check_fails_on_wrong_elements(rng, cls, motion):
    with pytest.raises(AssertionError, match='times the rounding'):
        check_takes_in(make(cls=cls), motion(rng))


@pytest.mark.parametrize('motion', [wild_motion, smooth_motion])
def test_check_fails_with_the_force_of_the_old_state(rng, motion):
    with pytest.raises(AssertionError, match='times the rounding'):
        check_takes_in(make(), motion(rng), old_force)


def test_weights_of_the_speed_have_no_storage(rng):
    """Bent slowly and let go fast, elements give more than they took."""
    motion = smooth_motion(rng, elements=2)
    factor = 1 + 10 * motion.qd.abs()

    class OfSpeed(FrictionMemory):
        def weight(self, q):
            w = super().weight(q)
            return w if len(w) == 1 else w * factor.unsqueeze(-1)

        def force(self, q, y):
            return (self.weight(q) * y).sum(-1)

    slow = (Element(1.0), Element(0.5))
    check_takes_in(make(slow), motion)
    with pytest.raises(AssertionError, match='times the rounding'):
        check_takes_in(make(slow, cls=OfSpeed), motion)


def test_instant_check_fails_on_wrong_elements(rng):
    states = bent_states(rng)
    with pytest.raises(AssertionError, match='more than rounding'):
        check_power(make(cls=NegativeWeight), *states)


def test_instant_check_fails_without_the_storage_gradient(rng):
    """Over ways of radians the weights change while the elements stay bent."""
    elements = (Element(10.0), Element(30.0, 1.0))
    states = bent_states(rng, elements)
    check_power(make(elements, weight_width=16), *states)
    with pytest.raises(AssertionError, match='more than rounding'):
        check_power(make(elements, cls=NoStorageGradient, weight_width=16), *states)


# ---- the sample update is the exact solution


def pull(memory, ways, speed, period, y0=0.0):
    """Return y of a single element, (N,), pulled by ways."""
    ways, period = (torch.as_tensor(x, dtype=torch.float64) for x in (ways, period))
    q = ways.cumsum(0).unsqueeze(-1)
    qd = torch.full_like(q, speed)
    state = torch.tensor([[y0, 0.0]], dtype=torch.float64)
    return memory.run(state, q, qd, period.expand(len(ways))).y[:, 0, 0]


@torch.no_grad()
def test_every_sample_is_updated_as_written(rng):
    """y+ = (s h + (y - s h) exp(-|dq| / (zeta h))) exp(-dt / T), in NumPy."""
    memory, motion = make(), wild_motion(rng, 300)
    found = memory.run(motion.state, motion.q, motion.qd, motion.dt).y
    zeta, slip, relax = (memory.parameter(name).numpy() for name in BOUNDS)
    y = motion.y0.numpy()
    for k in range(300):
        dq, qd, dt = (x[k].numpy() for x in (motion.dq, motion.qd, motion.dt))
        dq, qd = dq[:, None], qd[:, None]
        limit = np.sign(dq) / (1 + np.abs(qd) / slip)
        decay = np.exp(-np.abs(dq) * (1 + np.abs(qd) / slip) / zeta)
        y = (limit + (y - limit) * decay) * np.exp(-dt / relax)
        np.testing.assert_allclose(found[k], y, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize('speed', [0.375, -0.375])
def test_steady_pull_reaches_the_limit(speed):
    memory = one(1e-3, slip_velocity=0.125)
    ways = np.full(2000, speed * 1e-3)
    y = pull(memory, ways, speed, 1e-3)
    assert float(y[-1]) == pytest.approx(np.sign(speed) / (1 + 3), rel=1e-12)
    # Faster than that it falls, at rest it stays.
    rest = pull(memory, 0 * ways, 0.0, 1e-3, float(y[-1]))
    assert torch.equal(rest, y[-1].expand(len(ways)))


def test_zeta_is_the_way_constant():
    zeta, slip = 2.0**-9, 2.0**-7  # of those that float32, in which they are kept, holds exactly
    y = pull(one(zeta), [1e-9, zeta - 1e-9, zeta], slip, 1e-3)
    np.testing.assert_allclose(y[1:], 1 - np.exp([-1.0, -2.0]), rtol=1e-12)
    assert float(y[0]) == pytest.approx(1e-9 / zeta, rel=1e-6)
    # With a falling limit the way falls with it: slope 1/zeta at the start all the same.
    y = pull(one(zeta, slip), [1e-9, zeta / 2 - 1e-9], slip, 1e-3)
    assert float(y[0]) == pytest.approx(1e-9 / zeta, rel=2e-6)
    assert float(y[1]) == pytest.approx(0.5 * (1 - np.exp(-1.0)), rel=1e-12)


def test_element_relaxes_in_time_only():
    y = pull(one(1e-3, None, 4.0), np.zeros(3), 0.0, [1.0, 3.0, 4.0], 0.8)
    np.testing.assert_allclose(y, 0.8 * np.exp([-0.25, -1.0, -2.0]), rtol=1e-12)
    y = pull(one(1e-3), np.zeros(3), 0.0, [1.0, 3.0, 1e6], 0.8)
    assert torch.equal(y, torch.full_like(y, 0.8))


@pytest.mark.parametrize('pieces', [1, 2, 7, 500])
def test_straight_motion_may_be_cut_anywhere(rng, pieces):
    cuts = np.sort(rng.uniform(0, 3e-3, pieces - 1))
    ways = np.diff(cuts, prepend=0.0, append=3e-3)
    whole = pull(one(1e-3, 0.1), [3e-3], 0.05, 0.06, -0.6)[-1]
    assert float(pull(one(1e-3, 0.1), ways, 0.05, ways / 0.05, -0.6)[-1]) == pytest.approx(
        float(whole), rel=tolerances.RTOL_F64
    )
    rest = pull(one(1e-3, 0.1, 2.0), 0 * ways, 0.0, 1e3 * ways, -0.6)[-1]
    assert float(rest) == pytest.approx(-0.6 * np.exp(-1.5), rel=tolerances.RTOL_F64)


def test_samples_converge_to_the_differential_equation():
    """First order: the speed of a sample and its relaxation are taken at its end."""
    zeta, slip, relax = 5e-3, 0.02, 2.0
    end = 4.0  # a sine of 0.02 rad turns twice by then

    def rate(t, y):
        qd = 0.04 * np.cos(2 * t)
        h = 1 / (1 + abs(qd) / slip)
        return (qd - abs(qd) * y / h) / zeta - y / relax

    exact = solve_ivp(rate, (0, end), [0.0], rtol=1e-10, atol=1e-12, max_step=0.01).y[0, -1]
    memory = one(zeta, slip, relax)
    errors = []
    for samples in (250, 500, 1000, 2000, 4000):
        t = torch.linspace(0, end, samples + 1, dtype=torch.float64)[1:]
        q, qd = 0.02 * torch.sin(2 * t).unsqueeze(-1), 0.04 * torch.cos(2 * t).unsqueeze(-1)
        dt = torch.full((samples,), end / samples, dtype=torch.float64)
        y = memory.run(torch.zeros(1, 2, dtype=torch.float64), q, qd, dt).y[-1, 0, 0]
        errors.append(abs(float(y) - exact))
    order = np.polyfit(np.log([250, 500, 1000, 2000, 4000]), np.log(errors), 1)[0]
    assert -1.2 < order < -0.9, f'order {-order:.3g}, errors {errors}'
    assert errors[-1] < 1e-3 * abs(exact)


# ---- along a path


@pytest.mark.parametrize('samples', [1, 2, 3, 4, 5, 13, 97, 100, 101])
@pytest.mark.parametrize('lead', [(), (3,), (2, 3)], ids=str)
def test_recurrence_is_the_plain_loop(samples, lead):
    generator = torch.Generator().manual_seed(samples)
    keep, drive = torch.rand(2, *lead, samples, 2, 4, generator=generator, dtype=torch.float64)
    start = torch.rand(*lead, 2, 4, generator=generator, dtype=torch.float64)
    expected, y = [], start
    for k in range(samples):
        y = keep[..., k, :, :] * y + drive[..., k, :, :]
        expected.append(y)
    found = linear_recurrence(keep, drive, start)
    np.testing.assert_allclose(found, torch.stack(expected, -3), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize('samples', [1, 2, 3, 7, 12])
def test_gradient_of_the_recurrence(samples):
    generator = torch.Generator().manual_seed(samples)
    shape = 2, samples, 1, 3
    keep, drive = torch.rand(2, *shape, generator=generator, dtype=torch.float64)
    start = torch.rand(2, 1, 3, generator=generator, dtype=torch.float64)
    arguments = tuple(x.requires_grad_() for x in (keep, drive, start))
    assert torch.autograd.gradcheck(linear_recurrence, arguments, fast_mode=True)


@pytest.mark.parametrize('options', [{}, {'learned': True}], ids=str)
@torch.no_grad()
def test_sequence_is_stepping_is_a_batch(rng, options):
    memory = make(**options)
    motions = [wild_motion(rng, 53), smooth_motion(rng, 53)]
    whole = [memory.run(m.state, m.q, m.qd, m.dt) for m in motions]
    batch = Motion(*(torch.stack(x) for x in zip(*motions, strict=True)))
    together = memory.run(batch.state, batch.q, batch.qd, batch.dt)
    limits = {'rtol': 1e-12, 'atol': 1e-13}
    for k, (motion, run) in enumerate(zip(motions, whole, strict=True)):
        assert run.state.shape == motion.state.shape
        np.testing.assert_allclose(together.y[k], run.y, **limits)
        np.testing.assert_allclose(together.state[k], run.state, **limits)
        state = motion.state
        for i in range(53):
            step = slice(i, i + 1)
            y, state = memory.run(state, motion.q[step], motion.qd[step], motion.dt[step])
            np.testing.assert_allclose(y[0], run.y[i], **limits)
        np.testing.assert_allclose(state, run.state, **limits)


@torch.no_grad()
def test_float32_elements_follow_a_float64_path(rng):
    """Ways of a millionth beside a position of 100, which float32 cannot tell."""
    exact, rounded = make(), make(dtype=torch.float32)
    motion = smooth_motion(rng, size=1e-6)
    motion = motion._replace(q0=motion.q0 + 100, q=motion.q + 100)
    rest = motion.state, motion.q, motion.qd, motion.dt
    a, b = exact.run(*rest), rounded.run(*rest)
    assert b.y.dtype == torch.float32
    assert b.state.dtype == torch.float64
    assert float((a.y - b.y).abs().max()) < 1e-4
    assert torch.equal(a.state[:, -1], b.state[:, -1])


@torch.no_grad()
def test_response_is_what_is_left_of_the_start(rng):
    memory = make()
    for motion in (wild_motion(rng, 101), smooth_motion(rng, 101, 0.02, 1e-3)):
        rest = motion.q, motion.qd, motion.dt
        straight = motion._replace(y0=torch.zeros_like(motion.y0))
        left = memory.response(straight.state, *rest)
        expected = memory.run(straight.state, *rest).y + left * motion.y0
        run = memory.run(motion.state, *rest)
        np.testing.assert_allclose(run.y, expected, rtol=1e-12, atol=1e-13)
    assert 0.01 < float(left[-1].max()) < 1  # it had not died out


# ---- what is learned


def test_gradients_reach_what_is_learned_and_match_differences(rng):
    memory = make(learned=True)
    motion = smooth_motion(rng, 200, 0.02)
    target = torch.from_numpy(rng.normal(size=(200, 2)))

    def loss():
        y = memory.run(motion.state, motion.q, motion.qd, motion.dt).y
        return (memory.force(motion.q, y) - target).square().mean()

    names, parameters = zip(*memory.named_parameters(), strict=True)
    assert set(names) == {'raw_weight', *(f'raw_{name}' for name in BOUNDS)}
    gradient = torch.autograd.grad(loss(), parameters)
    for name, g in zip(names, gradient, strict=True):
        field = name.removeprefix('raw_')
        for j, element in enumerate(ELEMENTS):
            is_free = getattr(element, field, 0.0) is not None
            assert bool((g[:, j] != 0).all()) == is_free, (name, j)
    h = 1e-6
    for p, g in zip(parameters, gradient, strict=True):
        direction = torch.from_numpy(rng.normal(size=p.shape))
        values = []
        with torch.no_grad():
            for way in (h, -2 * h):
                p.add_(way * direction)
                values.append(float(loss()))
            p.add_(h * direction)
        difference = (values[0] - values[1]) / (2 * h)
        analytic = float((g * direction).sum())
        assert analytic == pytest.approx(difference, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize('dtype', DTYPES, ids=['f64', 'f32'])
@pytest.mark.parametrize('raw', [-1e30, -40.0, 40.0, 1e30])
@torch.no_grad()
def test_learned_elements_stay_within_bounds(dtype, raw):
    memory = make(learned=True, dtype=dtype)
    slack = 1 + 10 * torch.finfo(dtype).eps
    for name, (lower, upper) in BOUNDS.items():
        getattr(memory, f'raw_{name}').fill_(raw)
        found = memory.parameter(name)
        assert found.shape == (2, J)
        is_free = [getattr(element, name) is not None for element in ELEMENTS]
        assert torch.equal(found.isfinite(), torch.tensor(is_free).expand(2, -1))
        free = found[:, is_free]
        assert float(free.min()) >= lower / slack
        assert float(free.max()) <= upper * slack


def test_learned_elements_start_at_the_given_ones():
    fixed = FrictionMemory(MemoryConfig(ELEMENTS[:4]), REVOLUTE, (1.0, 1.0))
    learned = FrictionMemory(MemoryConfig(ELEMENTS[:4], learned=True), REVOLUTE, (1.0, 1.0))
    for name in BOUNDS:
        # The logit of float32 near its ends.
        np.testing.assert_allclose(
            learned.parameter(name).detach(), fixed.parameter(name).expand(2, -1), rtol=1e-4
        )


def test_constant_weights_are_set_exactly(rng):
    memory = make()
    weight = torch.from_numpy(10.0 ** rng.uniform(-12, 2, (2, J)))
    weight[0, 1] = 0.0
    memory.set_weights(weight)
    found = memory.weight(torch.zeros(3, 2, dtype=torch.float64)).detach()
    assert found.shape == (3, 2, J)
    np.testing.assert_allclose(found[0], weight, rtol=1e-10, atol=1e-30)
    assert float(found.min()) > 0


@pytest.mark.parametrize('name', ['memory', 'memory_learned', 'linear_memory'])
@torch.no_grad()
def test_start_holds_the_measured_torque_as_far_as_it_can(name, rng):
    model = models.make(name)
    n = model.n
    q = torch.from_numpy(rng.normal(size=(40, n)))
    still, zero = torch.zeros_like(q), model.initial_state(q)
    assert float(zero[..., :-1].abs().max()) == 0
    assert torch.equal(zero[..., -1], q)
    gravity = model.step(zero, q, still, still, 0.0).tau
    most = model.torque_scale * model.memory.weight(q).sum(-1)
    share = torch.from_numpy(rng.uniform(-2, 2, (40, n)))
    state = model.initial_state(q, gravity + share * most)
    assert float(state[..., :-1].abs().max()) <= 1
    held = model.step(state, q, still, still, 0.0).tau
    np.testing.assert_allclose(
        held, gravity + share.clamp(-1, 1) * most, rtol=1e-10, atol=1e-10 * float(most.max())
    )
    alone = model.initial_state(q[3], (gravity + share * most)[3])
    np.testing.assert_allclose(alone, state[3], rtol=1e-10, atol=1e-12)


# ---- settings


def described(memory_options, rng_seed=4):
    """Return the force of a memory with these settings along one motion."""
    config = make_config('dlnn_memory', {'memory': memory_options}, 'test').memory
    torch.manual_seed(0)
    memory = FrictionMemory(config, REVOLUTE, (0.5, 0.5)).double()
    size = len(config.elements)
    motion = smooth_motion(np.random.default_rng(rng_seed), 300, 0.02, 0.5, size)
    run = memory.run(motion.state, motion.q, motion.qd, motion.dt)
    return memory, memory.force(motion.q, run.y).detach()


BASE = {'elements': [{'zeta': 1e-2, 'slip_velocity': 0.5, 'relaxation_s': 1.0}]}


@pytest.mark.parametrize(
    'change',
    [
        {'elements': [{**BASE['elements'][0], 'zeta': 2e-2}]},
        {'elements': [{**BASE['elements'][0], 'slip_velocity': None}]},
        {'elements': [{**BASE['elements'][0], 'slip_velocity': 0.1}]},
        {'elements': [{**BASE['elements'][0], 'relaxation_s': None}]},
        {'elements': [{**BASE['elements'][0], 'relaxation_s': 0.2}]},
        {'elements': BASE['elements'] * 2},
        {'weight_width': 4},
    ],
    ids=str,
)
def test_every_setting_has_an_effect(change):
    force = described(BASE)[1]
    other = described({**BASE, **change})[1]
    assert float((other - force).abs().max()) > 1e-3 * float(force.abs().max())


def test_learned_is_what_makes_elements_parameters():
    fixed, a = described(BASE)
    learned, b = described({**BASE, 'learned': True})
    assert [name for name, _ in fixed.named_parameters()] == ['raw_weight']
    assert len(list(learned.parameters())) == 4
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ('build', 'message'),
    [
        (lambda: Element(0.0), r'zeta is 0.0, must be 1e-09 to 1e\+09'),
        (lambda: Element(float('inf')), r'zeta is inf, must be 1e-09 to 1e\+09'),
        (lambda: Element(1e-40), r'zeta is 1e-40, must be 1e-09 to 1e\+09'),
        (lambda: LinearMemoryConfig(ridge=math.inf), 'ridge is inf, must be finite'),
        (lambda: LinearMemoryConfig(coulomb_gain=math.inf), 'coulomb_gain is inf, must be finite'),
        (lambda: LinearMemoryConfig(stribeck_velocities=(math.inf,)), 'must be finite and > 0'),
        (lambda: DlnnMemoryConfig(coulomb_gain=math.inf), 'coulomb_gain is inf, must be finite'),
        (lambda: Element(float('nan')), r'zeta is nan, must be 1e-09 to 1e\+09'),
        (lambda: Element(1.0, -1.0), r'slip_velocity is -1.0, must be 1e-09 to 1e\+09'),
        (lambda: Element(1.0, None, 0.0), r'relaxation_s is 0.0, must be 1e-09 to 1e\+09'),
        (lambda: MemoryConfig(()), r'elements is empty; .* needs at least one'),
        (lambda: MemoryConfig(weight_width=-1), r'weight_width is -1, must be >= 0'),
        (lambda: DlnnMemoryConfig(dissipative=False), r'dissipative is false, which a model'),
        (
            lambda: LinearMemoryConfig(memory=MemoryConfig(learned=True)),
            r'memory: learned elements .* use model dlnn_memory',
        ),
        (
            lambda: LinearMemoryConfig(memory=MemoryConfig(weight_width=4)),
            r'memory: .* weights that depend on q are not linear',
        ),
        (
            lambda: make_config('dlnn_memory', {'memory': {'elements': [{'zetta': 1.0}]}}, 'x'),
            r"x: memory: elements.* unknown key 'zetta'; did you mean 'zeta'\?",
        ),
        (
            lambda: make_config('dlnn_memory', {'memory': {'elements': [{'zeta': -1.0}]}}, 'x'),
            r'x: memory: elements.* zeta is -1.0, must be 1e-09 to 1e\+09',
        ),
    ],
)
def test_wrong_settings_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
