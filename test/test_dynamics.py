"""Properties of every model, for random weights and states, and broken models that lack them."""

from dlnn_ros.dynamics.dlnn import LagrangianModel
import pytest
import tolerances
import torch

import models

DTYPES = [torch.float64, torch.float32]
RTOL = {torch.float64: tolerances.RTOL_F64, torch.float32: tolerances.RTOL_F32}
B = 64


def scale(*tensors):
    return max(float(t.detach().abs().max()) for t in tensors)


def assert_close(a, b, rtol, of=None):
    limit = rtol * scale(*(of or (a, b)))
    worst = float((a - b).detach().abs().max())
    assert worst <= limit, f'differs by {worst:.3g}, allowed {limit:.3g}'


def lagrangian(name, dtype=torch.float64):
    """Return a model and B states; a model with memory with its elements bent at random."""
    model = models.make(name, dtype)
    q, qd, qdd = models.states(model.n, B, dtype)
    if name in models.MEMORY_CASES:
        model = models.Bent(model, models.context(model, qd)[..., 1:])
    return model, q, qd, qdd


# ---- the properties, as checks that a model passes or not


def check_mass_matrix(model, q, qd, qdd):
    M = model.terms(q, qd).M
    assert_close(M, M.mT, RTOL[q.dtype])
    assert float(torch.linalg.eigvalsh(M.double()).min()) > 0
    assert_close(M, model.mass_matrix(q), RTOL[q.dtype])


def check_passive(model, q, qd, qdd):
    d = model.terms(q, qd).d
    assert float((qd * d).sum(-1).min()) >= 0
    assert float(model.terms(q, torch.zeros_like(qd)).d.abs().max()) == 0


def check_coriolis(model, q, qd, qdd):
    """c = Mdot qd - grad(qd'M qd)/2 against finite differences; zero at rest; no work."""
    h = 1e-6
    n = model.n
    c = model.terms(q, qd).c
    dM = torch.stack(
        [
            (model.mass_matrix(q + h * e) - model.mass_matrix(q - h * e)) / (2 * h)
            for e in torch.eye(n, dtype=q.dtype)
        ],
        1,
    )  # (B, k, i, j) = dM_ij / dq_k
    expected = torch.einsum('bkij,bk,bj->bi', dM, qd, qd) - 0.5 * torch.einsum(
        'bkij,bi,bj->bk', dM, qd, qd
    )
    assert_close(c, expected, tolerances.RTOL_FINITE_DIFFERENCE)
    assert float(model.terms(q, torch.zeros_like(qd)).c.abs().max()) == 0


def check_gravity(model, q, qd, qdd):
    h = 1e-6
    still = torch.zeros_like(q)
    expected = torch.stack(
        [
            (model.energy(q + h * e, still) - model.energy(q - h * e, still)) / (2 * h)
            for e in torch.eye(model.n, dtype=q.dtype)
        ],
        -1,
    )
    assert_close(
        model.terms(q, qd).g,
        expected,
        tolerances.RTOL_FINITE_DIFFERENCE,
        of=(model.energy(q, qd),),
    )


def check_power_balance(model, q, qd, qdd):
    """dE/dt along the motion, by differences of the energy, is qd'(tau - d)."""
    h = 1e-6

    def energy(s):
        return model.energy(q + s * qd + 0.5 * s * s * qdd, qd + s * qdd)

    rate = (energy(h) - energy(-h)) / (2 * h)
    tau = model.inverse_dynamics(q, qd, qdd)
    expected = (qd * (tau - model.terms(q, qd).d)).sum(-1)
    of = (energy(0.0), expected)
    assert_close(rate, expected, tolerances.RTOL_FINITE_DIFFERENCE, of)
    balance = model.power_balance(q, qd, qdd)
    assert_close(balance.energy_rate, rate, tolerances.RTOL_FINITE_DIFFERENCE, of)


def check_forward_inverts_inverse(model, q, qd, qdd):
    rtol = tolerances.RTOL_F64_SOLVE
    tau = model.inverse_dynamics(q, qd, qdd)
    assert_close(model.forward_dynamics(q, qd, tau), qdd, rtol)
    again = model.inverse_dynamics(q, qd, model.forward_dynamics(q, qd, qdd))
    assert_close(again, qdd, rtol, of=(tau, again))


def check_terms_sum(model, q, qd, qdd):
    M, c, g, d = model.terms(q, qd)
    total = (M @ qdd.unsqueeze(-1)).squeeze(-1) + c + g + d
    assert_close(model.inverse_dynamics(q, qd, qdd), total, RTOL[q.dtype])


def check_periodic(model, q, qd, qdd):
    turn = torch.zeros(model.n, dtype=q.dtype)
    conservative = model.conservative
    is_network = hasattr(conservative, 'encoding')
    turn[conservative.encoding.revolute if is_network else conservative.is_revolute] = 2 * torch.pi
    shifted = model.inverse_dynamics(q + 3 * turn, qd, qdd)
    assert_close(shifted, model.inverse_dynamics(q, qd, qdd), 10 * RTOL[q.dtype])


CHECKS_ANY_DTYPE = [check_mass_matrix, check_passive, check_terms_sum, check_periodic]
CHECKS_F64 = [
    check_coriolis,
    check_gravity,
    check_power_balance,
    check_forward_inverts_inverse,
]


@pytest.mark.parametrize('name', models.LAGRANGIAN)
@pytest.mark.parametrize('dtype', DTYPES, ids=['f64', 'f32'])
@pytest.mark.parametrize('check', CHECKS_ANY_DTYPE)
@torch.no_grad()
def test_property(name, dtype, check):
    check(*lagrangian(name, dtype))


@pytest.mark.parametrize('name', models.LAGRANGIAN)
@pytest.mark.parametrize('check', CHECKS_F64)
@torch.no_grad()
def test_property_in_float64(name, check):
    check(*lagrangian(name))


@pytest.mark.parametrize('name', models.LAGRANGIAN)
@torch.no_grad()
def test_float32_terms_are_the_float64_ones(name):
    """Carries the finite differences above, which float32 is too coarse for, over to it."""
    double, single = models.make(name), models.make(name, torch.float32)
    double.load_state_dict(single.state_dict())
    q, qd, qdd = models.states(double.n, B, torch.float32)
    for exact, rounded in zip(
        double.terms(q.double(), qd.double()), single.terms(q, qd), strict=True
    ):
        assert rounded.dtype == torch.float32
        assert float((exact - rounded).abs().max()) <= tolerances.RTOL_F32 * scale(exact)
    assert float(single.terms(q, torch.zeros_like(qd)).c.abs().max()) == 0
    tau = single.inverse_dynamics(q, qd, qdd)
    assert_close(single.forward_dynamics(q, qd, tau), qdd, tolerances.RTOL_F32_SOLVE)


@pytest.mark.parametrize('name', models.LAGRANGIAN)
@torch.no_grad()
def test_torque_alone_determines_the_terms(name):
    """Eq. (11): M from the slope in qdd, g at rest, c from M, and d is what is left."""
    model, q, qd, _ = lagrangian(name)
    zero = torch.zeros_like(q)
    at_rest = model.inverse_dynamics(q, zero, zero)

    def mass(q):
        units = torch.eye(model.n, dtype=q.dtype)
        rest = model.inverse_dynamics(q, zero, zero)
        return torch.stack([model.inverse_dynamics(q, zero, zero + e) - rest for e in units], -1)

    h = 1e-6
    dM = torch.stack(
        [(mass(q + h * e) - mass(q - h * e)) / (2 * h) for e in torch.eye(model.n, dtype=q.dtype)],
        1,
    )
    c = torch.einsum('bkij,bk,bj->bi', dM, qd, qd) - 0.5 * torch.einsum(
        'bkij,bi,bj->bk', dM, qd, qd
    )
    M, _, g, d = model.terms(q, qd)
    assert_close(mass(q), M, tolerances.RTOL_F64_SOLVE)
    assert_close(at_rest, g, tolerances.RTOL_F64, of=(at_rest, M))
    left = model.inverse_dynamics(q, qd, zero) - c - at_rest
    assert_close(left, d, 100 * tolerances.RTOL_FINITE_DIFFERENCE, of=(left, at_rest, M))


@pytest.mark.parametrize('name', models.MEMORY_CASES)
@pytest.mark.parametrize('dtype', DTYPES, ids=['f64', 'f32'])
@torch.no_grad()
def test_bent_elements_leave_the_properties(name, dtype):
    bent, *state = lagrangian(name, dtype)
    check_terms_sum(bent, *state)
    check_periodic(bent, *state)
    check_passive(models.Bent(bent.model, torch.zeros_like(bent.y)), *state)
    is_positive = name != 'linear_memory'  # M of a linear model is whatever the fit made it
    if is_positive:
        check_mass_matrix(bent, *state)
    if dtype == torch.float64:
        check_coriolis(bent, *state)
        check_gravity(bent, *state)
        check_power_balance(bent, *state)
        if is_positive:
            check_forward_inverts_inverse(bent, *state)


@pytest.mark.parametrize('name', models.MEMORY_CASES)
@torch.no_grad()
def test_float32_terms_with_memory_are_the_float64_ones(name):
    double, single = models.make(name), models.make(name, torch.float32)
    double.load_state_dict(single.state_dict())
    q, qd, _ = models.states(double.n, B, torch.float32)
    context = models.context(single, qd)
    exact = double.terms(q.double(), qd.double(), context=context.double())
    for a, b in zip(exact, single.terms(q, qd, context=context), strict=True):
        assert b.dtype == torch.float32
        assert_close(b.double(), a, tolerances.RTOL_F32)


@pytest.mark.parametrize('name', models.MEMORY_CASES)
@torch.no_grad()
def test_memory_adds_its_force_and_nothing_else(name):
    bent, q, qd, qdd = lagrangian(name)
    model, context = bent.model, bent.context(qd)
    straight = models.Bent(model, torch.zeros_like(bent.y))
    added = bent.inverse_dynamics(q, qd, qdd) - straight.inverse_dynamics(q, qd, qdd)
    assert_close(added, model.memory_torque(q, context), RTOL[q.dtype])
    for a, b in zip(bent.terms(q, qd)[:3], straight.terms(q, qd)[:3], strict=True):
        assert torch.equal(a, b)
    assert scale(added) > 0.01 * scale(bent.inverse_dynamics(q, qd, qdd))
    with pytest.raises(ValueError, match='this model has memory: its torque needs a state'):
        model.inverse_dynamics(q, qd, qdd)
    with pytest.raises(ValueError, match='this model has memory: its torque needs the context'):
        model.terms(q, qd)


@pytest.mark.parametrize('name', models.MEMORY_CASES)
def test_memory_torque_follows_from_what_is_stored(name):
    """d_mem = grad_q S + sum_j (dS/dy_j) / zeta_j, in units of the joint."""
    model = models.make(name)
    q, qd, _ = models.states(model.n, B)
    context = models.context(model, qd).requires_grad_()
    q.requires_grad_()
    along_q, along_y = torch.autograd.grad(
        model.stored_energy(q, context).sum(),
        (q, context),
        allow_unused=True,
        materialize_grads=True,
    )
    expected = along_q + (along_y[..., 1:] / model.memory.parameter('zeta')).sum(-1)
    assert_close(model.memory_torque(q, context), expected, tolerances.RTOL_F64)


@torch.no_grad()
def test_friction_follows_the_sign_of_motion_that_the_context_gives():
    """A low-passed recording shows the jump of Coulomb friction smeared."""
    for name in ('dlnn', 'memory', 'linear_memory'):
        model = models.make(name)
        q, qd, qdd = models.states(model.n, B)
        context = model.context(model.initial_state(q[0]), q, qd, torch.ones(B)).values
        none, half = context.clone(), context.clone()
        none[..., 0], half[..., 0] = 0.0, 0.5 * context[..., 0]
        full, half, none = (model.torque(q, qd, qdd, c) for c in (context, half, none))
        assert_close(half - none, 0.5 * (full - none), RTOL[q.dtype], of=(full,))
        assert float(((full - none) * qd).min()) >= -RTOL[q.dtype] * scale(full)
        assert scale(full - none) > 1e-3 * scale(full)


# ---- each check fails on a model that lacks the property


class SkewMass(LagrangianModel):
    def terms(self, q, qd, aux=None):
        t = super().terms(q, qd, aux)
        return t._replace(M=t.M + 0.1 * torch.triu(torch.ones_like(t.M), 1))


class NegativeMass(LagrangianModel):
    def terms(self, q, qd, aux=None):
        t = super().terms(q, qd, aux)
        return t._replace(M=t.M - 1e3 * torch.eye(self.n, dtype=q.dtype))


class Driving(LagrangianModel):
    def terms(self, q, qd, aux=None):
        t = super().terms(q, qd, aux)
        return t._replace(d=-t.d)


class FrictionAtRest(LagrangianModel):
    def terms(self, q, qd, aux=None):
        t = super().terms(q, qd, aux)
        return t._replace(d=t.d + 1e-6)


class NoCoriolis(LagrangianModel):
    def terms(self, q, qd, aux=None):
        t = super().terms(q, qd, aux)
        return t._replace(c=torch.zeros_like(t.c))


class HalfGravity(LagrangianModel):
    def terms(self, q, qd, aux=None):
        t = super().terms(q, qd, aux)
        return t._replace(g=0.5 * t.g)


class LeakyInverse(LagrangianModel):
    def inverse_dynamics(self, q, qd, qdd, aux=None):
        return super().inverse_dynamics(q, qd, qdd, aux) + 1e-3 * q


class NotPeriodic(LagrangianModel):
    def inverse_dynamics(self, q, qd, qdd, aux=None):
        return super().inverse_dynamics(q, qd, qdd, aux) + 1e-2 * q


@pytest.mark.parametrize(
    ('broken', 'check'),
    [
        (SkewMass, check_mass_matrix),
        (NegativeMass, check_mass_matrix),
        (Driving, check_passive),
        (FrictionAtRest, check_passive),
        (NoCoriolis, check_coriolis),
        (HalfGravity, check_gravity),
        (LeakyInverse, check_power_balance),
        (LeakyInverse, check_forward_inverts_inverse),
        (NoCoriolis, check_terms_sum),
        (NotPeriodic, check_periodic),
    ],
)
@torch.no_grad()
def test_check_fails_on_broken_model(broken, check):
    model, *state = lagrangian('dlnn')
    model.__class__ = broken
    with pytest.raises(AssertionError):
        check(model, *state)


# ---- what holds for every kind


@pytest.mark.parametrize('name', models.ALL_CASES)
@pytest.mark.parametrize('dtype', DTYPES, ids=['f64', 'f32'])
@torch.no_grad()
def test_batch_equals_loop_and_keeps_shape_and_dtype(name, dtype):
    model = models.make(name, dtype)
    q, qd, qdd = models.states(model.n, 12, dtype)
    context = models.context(model, qd)
    batch = model.torque(q, qd, qdd, context)
    each = [None] * 12 if context is None else context
    loop = torch.stack([model.torque(*s) for s in zip(q, qd, qdd, each, strict=True)])
    assert batch.dtype == dtype
    assert batch.shape == q.shape
    assert_close(batch, loop, RTOL[dtype])
    lead = [a.reshape(3, 4, *a.shape[1:]) for a in (q, qd, qdd, context) if a is not None]
    assert_close(model.torque(*lead).reshape(12, -1), batch, RTOL[dtype])
    if context is None:
        assert torch.equal(model.inverse_dynamics(q, qd, qdd), batch)


@pytest.mark.parametrize('name', models.ALL_CASES)
@torch.no_grad()
def test_torque_is_affine_in_acceleration_where_physics_says_so(name):
    model = models.make(name)
    q, qd, qdd = models.states(model.n, 8)
    context = models.context(model, qd)
    zero, one, two = (model.torque(q, qd, k * qdd, context) for k in range(3))
    bend = scale(two - 2 * one + zero) / scale(two)
    assert (bend < tolerances.RTOL_F64) == (name != 'mlp')


@pytest.mark.parametrize('name', models.ALL_CASES)
def test_stepping_equals_the_sequence(name):
    model = models.make(name)
    q, qd, qdd, dt = models.motion(model.n, 10)
    state = model.initial_state(q[0])
    assert state.shape == (model.n, model.state_size)
    whole = model.sequence(state, q, qd, qdd, dt)
    taus = []
    for k in range(10):
        tau, state = model.step(state, q[k], qd[k], qdd[k], dt[k])
        taus.append(tau)
    assert_close(torch.stack(taus), whole.tau, tolerances.RTOL_F64)
    assert whole.state.shape == state.shape


@pytest.mark.parametrize('name', models.ALL_CASES)
def test_every_parameter_is_trained_by_the_torque(name):
    model = models.make(name)
    motion = models.motion(model.n, B)
    model.sequence(model.initial_state(motion[0][0]), *motion).tau.square().sum().backward()
    silent = [k for k, p in model.named_parameters() if float(p.grad.abs().max()) == 0]
    assert silent == []


@pytest.mark.parametrize('name', [*models.LAGRANGIAN, *models.MEMORY_CASES])
def test_training_gradient_matches_finite_differences(name):
    """The hand-written tangent, gradient and GELU derivative against differences of the loss."""
    model = models.make(name)
    motion = models.motion(model.n, B)
    state = model.initial_state(motion[0][0])
    parameters = list(model.parameters())
    torch.manual_seed(5)
    direction = [torch.randn_like(p) for p in parameters]

    def loss():
        return model.sequence(state, *motion).tau.square().mean()

    gradient = torch.autograd.grad(loss(), parameters)
    analytic = sum((g * d).sum() for g, d in zip(gradient, direction, strict=True))
    h = 1e-6
    values = []
    for sign in (1, -2):
        with torch.no_grad():
            for p, d in zip(parameters, direction, strict=True):
                p.add_(sign * h * d)
            values.append(loss())
    difference = (values[0] - values[1]) / (2 * h)
    assert_close(analytic, difference, 10 * tolerances.RTOL_FINITE_DIFFERENCE)


def test_dropout_keeps_value_tangent_and_gradient_of_one_function():
    from dlnn_ros.dynamics.networks import JetMLP

    torch.manual_seed(0)
    net = JetMLP(3, 2, 16, 2, dropout=0.5).double().train()
    x, xdot = torch.randn(2, 5, 3, dtype=torch.float64)
    torch.manual_seed(1)
    jet = net.jet(x, xdot)
    h = 1e-6
    values = []
    for s in (h, -h):
        torch.manual_seed(1)
        values.append(net(x + s * xdot))
    assert_close(jet.ydot, (values[0] - values[1]) / (2 * h), tolerances.RTOL_FINITE_DIFFERENCE)
    ybar = torch.ones_like(jet.y)
    along = (net.gradient(jet.slopes, ybar) * xdot).sum()
    assert_close(along, jet.ydot.sum(), tolerances.RTOL_F64)


def test_wrong_number_of_joints_is_named():
    model = models.make('dlnn')
    q = torch.zeros(10, 6, dtype=torch.float64)
    with pytest.raises(ValueError, match=r'shape \(10, 6\).* 3 joints'):
        model.inverse_dynamics(q, q, q)


def test_auxiliary_input_changes_friction_only_and_is_required():
    from dlnn_ros.dynamics.architecture import DlnnConfig, Scales
    from dlnn_ros.dynamics.dlnn import make_dlnn

    scales = Scales(1.0, (1.0,) * 2, (1.0,) * 2, (1.0,) * 2)
    model = (
        make_dlnn(DlnnConfig(width=8, depth=1, aux_size=1), scales, (True, True)).double().eval()
    )
    q, qd, qdd = models.states(2, 4)
    cold, hot = torch.zeros(4, 1, dtype=torch.float64), torch.ones(4, 1, dtype=torch.float64)
    a, b = model.terms(q, qd, cold), model.terms(q, qd, hot)
    assert torch.equal(a.M, b.M)
    assert torch.equal(a.g, b.g)
    assert not torch.equal(a.d, b.d)
    with pytest.raises(ValueError, match='1 auxiliary input'):
        model.inverse_dynamics(q, qd, qdd)
