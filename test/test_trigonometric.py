"""Properties of the model that is linear in its parameters, and broken ones that lack them."""

from dlnn_ros.dynamics.linear_friction import LinearDissipation
from dlnn_ros.dynamics.trigonometric import TrigonometricConservative
from dlnn_ros.dynamics.trigonometric_terms import make_terms
from dlnn_ros.runtime.backends.numpy_backend import Checked
from dlnn_ros.runtime.backends.numpy_trigonometric import Trigonometric
import numpy as np
import pytest
import tolerances
import torch

import models

B = 32
VELOCITIES = (0.01, 0.3)
# joints, degree of M, degree of V, whether there is gravity
CASES = {
    'three': ('rrr', 2, 3, True),
    'prismatic': ('rprp', 2, 2, True),
    'full': ('rrpr', 4, 4, True),
    'no_gravity': ('rr', 1, 1, False),
    'constant_mass': ('rr', 0, 1, True),
    'nothing_but_mass': ('rp', 0, 0, True),
    'one_joint': ('r', 2, 2, True),
}


def settings(name):
    joints, mass_degree, potential_degree, has_gravity = CASES[name]
    scale = [0.7 + 0.1 * i for i in range(len(joints))]
    return [j == 'r' for j in joints], scale, mass_degree, potential_degree, has_gravity


def make(name, cls=TrigonometricConservative):
    torch.manual_seed(4)
    conservative = cls(*settings(name)).double()
    with torch.no_grad():
        for p in conservative.parameters():
            p.copy_(torch.randn_like(p))
    return (conservative, *models.states(conservative.n, B))


def make_friction(n):
    torch.manual_seed(5)
    friction = LinearDissipation(n, VELOCITIES).double()
    with torch.no_grad():
        for p in friction.parameters():
            p.copy_(torch.randn_like(p))
    return friction


def assert_close(a, b, rtol, of=None):
    limit = rtol * max([1.0, *(float(x.detach().abs().max()) for x in of or (a, b))])
    worst = float((a - b).detach().abs().max())
    assert worst <= limit, f'differs by {worst:.3g}, allowed {limit:.3g}'


def difference(function, q):
    """Return the derivative of a function of q by central differences, joints on axis 1."""
    h = 1e-6
    steps = h * torch.eye(q.shape[1], dtype=q.dtype)
    return torch.stack([(function(q + e) - function(q - e)) / (2 * h) for e in steps], 1)


# ---- the properties, as checks that a model passes or not


def check_regressor(conservative, q, qd, qdd):
    parameters = (conservative.mass_coefficients, conservative.potential_coefficients)
    tau = conservative.regressor(q, qd, qdd) @ torch.cat(parameters)
    assert_close(tau, conservative.inverse(q, qd, qdd), tolerances.RTOL_F64)


def check_terms_sum(conservative, q, qd, qdd):
    M, c, g = conservative.terms(q, qd)
    total = (M @ qdd.unsqueeze(-1)).squeeze(-1) + c + g
    assert_close(total, conservative.inverse(q, qd, qdd), tolerances.RTOL_F64)


def check_mass_matrix(conservative, q, qd, qdd):
    M = conservative.terms(q, qd).M
    assert torch.equal(M, M.mT)
    assert_close(M, conservative.mass_matrix(q), tolerances.RTOL_F64)
    dM = difference(conservative.mass_matrix, q)  # (B, k, i, j)
    for i in range(conservative.n):
        # Depends on the joints after the smaller index alone.
        assert float(dM[:, : i + 1, i, i:].abs().max()) < tolerances.RTOL_FINITE_DIFFERENCE


def check_coriolis(conservative, q, qd, qdd):
    dM = difference(conservative.mass_matrix, q)
    expected = torch.einsum('bkij,bk,bj->bi', dM, qd, qd)
    expected -= 0.5 * torch.einsum('bkij,bi,bj->bk', dM, qd, qd)
    c = conservative.terms(q, qd).c
    assert_close(c, expected, tolerances.RTOL_FINITE_DIFFERENCE)


def check_gravity(conservative, q, qd, qdd):
    expected = difference(conservative.potential, q)
    of = (expected, conservative.potential(q))
    assert_close(conservative.terms(q, qd).g, expected, tolerances.RTOL_FINITE_DIFFERENCE, of)


def check_power_balance(conservative, q, qd, qdd):
    def energy(s):
        position, velocity = q + s * qd + 0.5 * s * s * qdd, qd + s * qdd
        M = conservative.mass_matrix(position)
        kinetic = 0.5 * torch.einsum('bi,bij,bj->b', velocity, M, velocity)
        return kinetic + conservative.potential(position)

    h = 1e-6
    rate = (energy(h) - energy(-h)) / (2 * h)
    power = (qd * conservative.inverse(q, qd, qdd)).sum(-1)
    assert_close(rate, power, tolerances.RTOL_FINITE_DIFFERENCE, (rate, power, energy(0.0)))


def check_friction(friction, q, qd):
    activation = torch.tanh(1e3 * qd)
    d = friction(q, qd, None, activation)
    assert float((qd * d).min()) >= 0
    coefficients = friction.coefficients().clamp_min(0)
    expected = (friction.features(qd, activation) * coefficients).sum(-1)
    assert_close(d, expected, tolerances.RTOL_F64)


CHECKS = [
    check_regressor,
    check_terms_sum,
    check_mass_matrix,
    check_coriolis,
    check_gravity,
    check_power_balance,
]


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('check', CHECKS)
@torch.no_grad()
def test_property(name, check):
    check(*make(name))


@torch.no_grad()
def test_friction_is_passive_for_any_coefficients():
    q, qd, _ = models.states(3, 200)
    check_friction(make_friction(3), q, qd)


def test_torque_can_be_differentiated():
    conservative, q, qd, qdd = make('prismatic')
    q.requires_grad_()
    conservative.inverse(q, qd, qdd).square().sum().backward()
    assert float(q.grad.abs().max()) > 0
    assert all(float(p.grad.abs().max()) > 0 for p in conservative.parameters())


@pytest.mark.parametrize(
    ('n', 'degrees', 'masses', 'potentials'),
    # One joint: M constant. Two: M_00, M_01 of 1 + 2 terms each, M_11 constant.
    [(1, (2, 2), 1, 2), (2, (2, 2), 7, 8), (6, (2, 3), 581, 232)],
)
def test_numbers_of_terms(n, degrees, masses, potentials):
    terms = make_terms(n, *degrees, True)
    assert (len(terms.mass_entry), len(terms.potential_product)) == (masses, potentials)
    assert len(np.unique(terms.factors, axis=0)) == len(terms.factors)
    pairs = np.stack([terms.mass_entry, terms.mass_product], 1)
    assert len(np.unique(pairs, axis=0)) == len(pairs)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match='mass_degree is -1, must be >= 0'):
        make_terms(2, -1, 1, True)
    with pytest.raises(ValueError, match=r'stribeck_velocities \(0.1, 0.0\) must be > 0'):
        LinearDissipation(2, (0.1, 0.0))


# ---- without torch


def worst_difference(name, flip=None):
    """Return the largest difference of the numpy form to the torch one, relative."""
    conservative, q, qd, qdd = make(name)
    friction = make_friction(conservative.n)
    params = {f'conservative.{k}': p for k, p in conservative.named_parameters()}
    params |= {f'dissipation.{k}': p for k, p in friction.named_parameters()}
    params = {k: p.detach().numpy().copy() for k, p in params.items()}
    if flip:
        params[flip] *= -1
    checked = Checked('test', params)
    served = Trigonometric(*settings(name), VELOCITIES, checked)
    checked.check_all_used()
    activation = torch.tanh(10 * qd)
    with torch.no_grad():
        expected = [conservative.inverse(q, qd, qdd), friction(q, qd, None, activation)]
    found = [
        [served(*x) for x in zip(q.numpy(), qd.numpy(), qdd.numpy(), strict=True)],
        [served.dissipate(*x) for x in zip(qd.numpy(), activation.numpy(), strict=True)],
    ]
    pairs = zip(found, expected, strict=True)
    return max(float(np.abs(a - b.numpy()).max() / b.abs().max()) for a, b in pairs)


@pytest.mark.parametrize('name', CASES)
def test_numpy_equals_torch(name):
    # Sums of some dozen products in another order: a few hundred roundings.
    assert worst_difference(name) < 1e-13


@pytest.mark.parametrize('flip', ['conservative.mass_coefficients', 'dissipation.coulomb'])
def test_parity_check_fails_on_other_parameters(flip):
    assert worst_difference('three', flip) > 0.1


# ---- broken models must fail


class WrongSlope(TrigonometricConservative):
    """The derivative of cos has the wrong sign."""

    def _row(self, constant, sin, cos, first, second):
        return super()._row(constant, sin, cos.abs(), first, second)


class NoCoriolis(TrigonometricConservative):
    def _rate(self, products, qd):
        return 0 * super()._rate(products, qd)


class Unhalved(TrigonometricConservative):
    """Kinetic energy without its half on the diagonal, in the equations but not in M."""

    def _energy_weights(self, qd):
        return qd[self.rows] * qd[self.columns]


class Upper(TrigonometricConservative):
    def _fill(self, entries):
        return super()._fill(entries).triu()


class Coupled(TrigonometricConservative):
    """The mass matrix depends on the first joint."""

    def mass_matrix(self, q):
        return super().mass_matrix(q) * (2 + torch.sin(q[:, :1, None]))

    def terms(self, q, qd):
        return super().terms(q, qd)._replace(M=self.mass_matrix(q))


class NoGravity(TrigonometricConservative):
    def regressor(self, q, qd, qdd):
        columns = super().regressor(q, qd, qdd)
        columns[..., len(self.mass_coefficients) :] = 0
        return columns


@pytest.mark.parametrize(
    ('broken', 'failing'),
    [
        (WrongSlope, [check_coriolis, check_gravity, check_power_balance]),
        (NoCoriolis, [check_coriolis, check_power_balance]),
        (Unhalved, [check_coriolis, check_power_balance]),
        (Upper, [check_regressor, check_mass_matrix, check_coriolis]),
        (Coupled, [check_terms_sum, check_mass_matrix, check_power_balance]),
        (NoGravity, [check_regressor]),
    ],
)
@torch.no_grad()
def test_checks_fail_on_broken_model(broken, failing):
    model = make('three', broken)
    for check in failing:
        with pytest.raises(AssertionError):
            check(*model)


@torch.no_grad()
def test_friction_check_fails_on_a_negative_coefficient():
    class Signed(LinearDissipation):
        def forward(self, q, qd, aux, activation):
            return (self.features(qd, activation) * self.coefficients()).sum(-1)

    friction = Signed(3, VELOCITIES).double()
    friction.load_state_dict(make_friction(3).state_dict())
    q, qd, _ = models.states(3, 200)
    with pytest.raises(AssertionError):
        check_friction(friction, q, qd)
