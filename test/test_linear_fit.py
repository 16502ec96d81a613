"""Partly non-negative least squares: exact on a closed form, equal to a dense solver."""

from dlnn_ros.dynamics.linear_friction import LinearDissipation
from dlnn_ros.dynamics.trigonometric import TrigonometricConservative
from dlnn_ros.learning import linear_fit
from dlnn_ros.learning.linear_fit import accumulate, assign, held_out_losses, LinearProblem, Motion
import numpy as np
import pytest
from scipy.optimize import lsq_linear
import torch

# Columns of unit size with a condition number of some hundred, squared by the normal equations.
RTOL_EXACT = 1e-8
VISCOUS, COULOMB = (0.7, 0.3), (2.0, 0.9)
SCALE = 3.0


class Memory:
    def set_weights(self, weights):
        self.weights = weights


class Model:
    """What the fit needs of a model of two revolute joints."""

    def __init__(self, with_memory=False, velocities=(), degree=2):
        self.conservative = TrigonometricConservative([True] * 2, [1.0] * 2, degree, degree)
        self.conservative.double()
        self.dissipation = LinearDissipation(2, velocities).double()
        self.memory = Memory() if with_memory else None
        self.torque_scale = SCALE

    @torch.no_grad()
    def torque(self, motion):
        q, qd, qdd, context, _ = motion
        tau = self.conservative.inverse(q, qd, qdd)
        tau = tau + self.dissipation(q, qd, None, context[..., 0])
        if self.memory is not None:
            tau = tau + (self.memory.weights * context[..., 1:]).sum(-1)
        return self.torque_scale * tau


def pendulum(q, qd, qdd):
    """Return the torque of a planar arm with two links, from its closed form."""
    m1, m2, l1, r1, r2, I1, I2, gravity = 3.0, 2.0, 0.6, 0.3, 0.25, 0.2, 0.1, 9.81
    q1, q2 = q.T
    v1, v2 = qd.T
    a1, a2 = qdd.T
    h = m2 * l1 * r2
    M11 = I1 + I2 + m1 * r1**2 + m2 * (l1**2 + r2**2) + 2 * h * np.cos(q2)
    M12 = I2 + m2 * r2**2 + h * np.cos(q2)
    M22 = I2 + m2 * r2**2
    g2 = m2 * r2 * gravity * np.cos(q1 + q2)
    g1 = (m1 * r1 + m2 * l1) * gravity * np.cos(q1) + g2
    tau1 = M11 * a1 + M12 * a2 - h * np.sin(q2) * (2 * v1 * v2 + v2**2) + g1
    tau2 = M12 * a1 + M22 * a2 + h * np.sin(q2) * v1**2 + g2
    return np.stack([tau1, tau2], 1) + VISCOUS * qd + COULOMB * np.sign(qd)


def make_motion(rng, samples=400, elements=0):
    q, qd, qdd = 2 * rng.normal(size=(3, samples, 2))
    memory = rng.uniform(-1, 1, (samples, 2, elements))
    context = np.concatenate([np.sign(qd)[..., None], memory], -1)
    return Motion(*map(torch.from_numpy, (q, qd, qdd, context, pendulum(q, qd, qdd))))


def fit(model, motion, ridge, counts=1.0):
    weight = SCALE / motion.tau.numpy().std(0) * counts
    solution = accumulate(model, motion, weight).solve(ridge)
    assign(model, solution)
    return solution


def relative_error(model, motion):
    error = (model.torque(motion) - motion.tau).abs().max()
    return float(error / motion.tau.abs().max())


def test_two_link_arm_is_recovered_exactly(rng):
    model = Model()
    fit(model, make_motion(rng), ridge=1e-14)
    assert relative_error(model, make_motion(rng)) < RTOL_EXACT
    np.testing.assert_allclose(
        SCALE * model.dissipation.viscous.detach(), VISCOUS, rtol=RTOL_EXACT
    )
    np.testing.assert_allclose(
        SCALE * model.dissipation.coulomb.detach(), COULOMB, rtol=RTOL_EXACT
    )


def test_recovery_check_fails_without_products_of_two_joints(rng):
    # cos(q1 + q2) needs them.
    model = Model(degree=1)
    fit(model, make_motion(rng), ridge=1e-14)
    assert relative_error(model, make_motion(rng)) > 1e-2


def test_memory_and_unused_laws_get_their_weights(rng):
    model = Model(with_memory=True, velocities=(0.1,))
    motion = make_motion(rng, elements=1)
    weights = torch.tensor([[1.5], [0.0]], dtype=torch.float64)
    held = SCALE * (weights * motion.context[..., 1:]).sum(-1)
    fit(model, motion._replace(tau=motion.tau + held), ridge=1e-14)
    np.testing.assert_allclose(model.memory.weights, weights, atol=1e-7)
    np.testing.assert_allclose(model.dissipation.stribeck.detach(), 0.0, atol=1e-7)


def test_friction_that_gives_energy_is_not_learned(rng):
    model = Model()
    motion = make_motion(rng)
    pushed = motion.tau - 2 * torch.tensor(VISCOUS) * motion.qd
    solution = fit(model, motion._replace(tau=pushed), ridge=1e-9)
    assert (solution.friction[:, 0] == 0).all()
    assert (solution.friction[:, 1] > 0).all()


def test_samples_that_do_not_count_have_no_effect(rng):
    clean = make_motion(rng)
    counts = rng.random(clean.tau.shape) < 0.7
    motion = clean._replace(tau=clean.tau + 50.0 * torch.from_numpy(~counts))
    model = Model()
    fit(model, motion, 1e-14, counts=counts)
    assert relative_error(model, clean) < RTOL_EXACT
    fit(model, motion, 1e-14)
    assert relative_error(model, clean) > 1e-2


# ---- against a dense solver

RIDGE = 1e-3


def make_dense(rng, n=3, K=7, F=4, samples=60):
    regressor = rng.normal(size=(samples, n, K)) * 10.0 ** rng.uniform(-2, 2, K)
    friction = rng.normal(size=(samples, n, F)) * 10.0 ** rng.uniform(-2, 2, (n, F))
    regressor[:, 0, 2] = 0.0  # a column that does not act on one joint
    tau = rng.normal(size=(samples, n))
    return regressor, friction, tau, rng.uniform(0.5, 2.0, (samples, n))


def solve_dense(regressor, friction, tau, weight):
    """Return the solution by scipy's bounded least squares on all rows at once."""
    samples, n, K = regressor.shape
    F = friction.shape[2]
    rows = np.zeros((samples, n, K + n * F))
    rows[..., :K] = regressor
    for i in range(n):
        rows[:, i, K + i * F : K + (i + 1) * F] = friction[:, i]
    A = (rows * weight[..., None]).reshape(-1, K + n * F)
    rms = np.sqrt((A**2).sum(0) / samples)
    stacked = np.concatenate([A / np.sqrt(samples), np.diag(np.sqrt(RIDGE) * rms)])
    y = np.concatenate([(tau * weight).ravel() / np.sqrt(samples), np.zeros(K + n * F)])
    lower = np.concatenate([np.full(K, -np.inf), np.zeros(n * F)])
    found = lsq_linear(stacked / rms, y, (lower, np.inf), 'bvls', tol=1e-14).x / rms
    return found[:K], found[K:].reshape(n, F)


def solve_chunked(parts, chunk):
    samples, n, K = parts[0].shape
    problem = LinearProblem(n, K, parts[1].shape[2])
    for start in range(0, samples, chunk):
        problem.add(*(part[start : start + chunk] for part in parts))
    return problem, problem.solve(RIDGE)


def test_solution_equals_the_dense_one_with_active_constraints(rng):
    parts = make_dense(rng)
    problem, found = solve_chunked(parts, 1000)
    free, friction = solve_dense(*parts)
    np.testing.assert_allclose(found.free, free, rtol=1e-8)
    np.testing.assert_allclose(found.friction, friction, rtol=1e-8, atol=1e-10)
    assert (found.friction >= 0).all()
    assert 0 < (found.friction == 0).sum() < friction.size
    regressor, columns, tau, weight = parts
    error = (regressor @ free + (columns * friction).sum(-1) - tau) * weight
    np.testing.assert_allclose(problem.loss(found), np.mean(error**2), rtol=1e-9)


def test_dense_comparison_fails_without_the_constraint(rng, monkeypatch):
    monkeypatch.setattr(linear_fit, 'nnls', lambda R, r: (np.linalg.solve(R, r), 0.0))
    parts = make_dense(rng)
    friction = solve_chunked(parts, 1000)[1].friction
    assert not np.allclose(friction, solve_dense(*parts)[1], rtol=1e-8, atol=1e-10)


def test_chunks_do_not_change_the_solution(rng, monkeypatch):
    parts = make_dense(rng)
    whole, chunked = (solve_chunked(parts, chunk)[1] for chunk in (1000, 7))
    for a, b in zip(whole, chunked, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    motion = make_motion(rng, 100)
    once = fit(Model(), motion, 1e-6)
    monkeypatch.setattr(linear_fit, 'CHUNK', 9)
    for a, b in zip(once, fit(Model(), motion, 1e-6), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_what_cannot_be_solved_is_refused(rng):
    with pytest.raises(ValueError, match='no samples'):
        LinearProblem(1, 1, 1).solve(1e-3)
    regressor, friction, tau, weight = make_dense(rng)
    twice = np.concatenate([regressor, regressor], -1)
    problem = LinearProblem(3, twice.shape[2], 4)
    problem.add(twice, friction, tau, weight)
    with pytest.raises(ValueError, match=r'do not determine .* ridge 0; increase it'):
        problem.solve(0.0)
    assert np.isfinite(problem.solve(1e-6).free).all()


def test_each_group_is_judged_by_the_others(rng):
    """As by hand; and a group that contradicts the others is seen."""
    model = Model()
    motions = [make_motion(rng, 50) for _ in range(3)]
    motions[2] = motions[2]._replace(tau=-motions[2].tau)
    problems = [accumulate(model, m, np.ones(2)) for m in motions]
    expected = []
    for k in range(3):
        others = [m for i, m in enumerate(motions) if i != k]
        joined = Motion(*(torch.cat(x) for x in zip(*others, strict=True)))
        expected.append(problems[k].loss(accumulate(model, joined, np.ones(2)).solve(1e-6)))
    (loss,) = held_out_losses(problems, [1e-6])
    assert loss == pytest.approx(np.mean(expected), rel=1e-6)
    assert held_out_losses(problems[:2], [1e-6])[0] < 1e-3 * loss
