from dataclasses import replace
import json

import datasets
from dlnn_ros.cli.main import main
from dlnn_ros.config import Robot
from dlnn_ros.data.bags import write_bag
from dlnn_ros.data.trajectory import RecordingSet
from dlnn_ros.dynamics.architecture import make_config
from dlnn_ros.dynamics.ensemble import EnsembleModel
from dlnn_ros.dynamics.kinds import make_model
from dlnn_ros.learning.checkpoint import load_model, model_tensors
from dlnn_ros.learning.evaluate import evaluate
from dlnn_ros.learning.model_folder import save_model
from dlnn_ros.learning.resume import ResumeFile
from dlnn_ros.learning.settings import TrainConfig
from dlnn_ros.learning.train import describe_ensemble, train
import numpy as np
import pytest
from resuming import check_resumed_run
import tolerances
import torch

import models

SMALL = {'width': 12, 'depth': 2, 'dissipation_width': 12, 'dissipation_depth': 1}
ELEMENTS = [
    {'zeta': 1e-3, 'slip_velocity': 0.01},
    {'zeta': 1e-2},
    {'zeta': 1e-3, 'relaxation_s': 4.0},
]
DEGREES = {'mass_degree': 1, 'potential_degree': 2}
FIXED = {'elements': ELEMENTS}
# kind and options of the members
CASES = {
    'dlnn': ('dlnn', SMALL),
    'lnn': ('lnn', SMALL),
    'fixed': ('dlnn_memory', {**SMALL, 'memory': FIXED}),
    'learned': ('dlnn_memory', {**SMALL, 'memory': {**FIXED, 'learned': True}}),
    'of_position': ('dlnn_memory', {**SMALL, 'memory': {**FIXED, 'weight_width': 6}}),
    'both': ('dlnn_memory', {**SMALL, 'memory': {**FIXED, 'learned': True, 'weight_width': 6}}),
    'linear_memory': ('linear_memory', {**DEGREES, 'memory': FIXED}),
    'linear_without_memory': (
        'linear_memory',
        {**DEGREES, 'memory': None},
    ),
}
WITH_MEMORY = ['fixed', 'learned', 'of_position', 'both', 'linear_memory']
POSITIVE = [name for name in CASES if not name.startswith('linear')]  # M > 0 by construction
PASSIVE = [name for name in CASES if name != 'lnn']
N = 2


def make(name: str, members: int = 3, seed: int = 0, sameness: bool = False) -> EnsembleModel:
    """Return a float64 ensemble with random weights."""
    kind, options = CASES[name]
    config = make_config(
        'ensemble', {'kind': kind, 'members': members, 'options': options}, 'test'
    )
    torch.manual_seed(seed)
    ensemble = make_model('ensemble', config, models.make_scales(N), [True] * N)
    with torch.no_grad():
        for p in ensemble.parameters():
            p.add_(0.5 * torch.randn_like(p))
        for name_, p in ensemble.named_parameters():
            if name_.endswith('memory.raw_weight'):
                p.add_(6.0)  # weights of the size of the torque unit
    if sameness:
        state = ensemble.member(0).state_dict()
        for k in range(1, members):
            ensemble.member(k).load_state_dict(state)
    return ensemble.double().eval().requires_grad_(False)


def walk(count: int = 400, seed: int = 2):
    """Return a path with stops, reversals and uneven stamps: q, qd, qdd (N, n), dt (N,)."""
    g = torch.Generator().manual_seed(seed)
    speed = torch.randn(count // 8, N, generator=g, dtype=torch.float64)
    speed = speed * (torch.rand(speed.shape, generator=g) > 0.3)
    scale = 10.0 ** (-2.0 * torch.rand(speed.shape, generator=g, dtype=torch.float64))
    qd = (speed * scale).repeat_interleave(8, 0)
    dt = 0.01 * (0.2 + torch.rand(len(qd), generator=g, dtype=torch.float64))
    q = torch.cumsum(qd * dt[:, None], 0)
    return q, qd, torch.randn(qd.shape, generator=g, dtype=torch.float64), dt


def assert_close(a, b, rtol=tolerances.RTOL_F64):
    a, b = (x.detach().numpy() for x in (a, b))
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1e-3, np.abs(b).max(initial=0)))


def run(model, start=None):
    q, qd, qdd, dt = walk()
    state = model.initial_state(q[0]) if start is None else start
    return model.sequence(state, q, qd, qdd, dt)


def smallest_surplus(model) -> float:
    """Return the least of energy put into the memory less what it stores [J], Eq. (19)."""
    q, qd, _, dt = walk()
    start = model.initial_state(q[0])
    context = model.context(start, q, qd, dt).values
    way = torch.diff(q, dim=0, prepend=q[:1])
    supplied = (model.memory_torque(q, context) * way).sum(-1)
    stored = model.stored_energy(q, context)
    before = torch.cat([torch.zeros(1, dtype=stored.dtype), stored[:-1]])
    return float((supplied - (stored - before)).min())


def least_dissipation(model) -> float:
    """Return the smallest qd'd of the friction without memory over random states."""
    q, qd, _ = models.states(N, 500)
    d = model.dissipation(q, qd, None, model.dissipation.activation(qd))
    return float((qd * d).sum(-1).min())


@pytest.mark.parametrize('name', CASES)
def test_torque_is_the_mean_of_the_members(name):
    ensemble = make(name)
    tau = torch.stack([run(ensemble.member(k)).tau for k in range(3)])
    assert_close(run(ensemble).tau, tau.mean(0))
    assert float((tau[0] - tau[1]).abs().max()) > 1e-3


@pytest.mark.parametrize('name', CASES)
def test_equal_members_are_the_member(name):
    ensemble = make(name, sameness=True)
    assert_close(run(ensemble).tau, run(ensemble.member(0)).tau)
    q, qd, _ = models.states(N, 20)
    assert_close(ensemble.energy(q, qd), ensemble.member(0).energy(q, qd))


@pytest.mark.parametrize('name', POSITIVE)
def test_mass_matrix_is_symmetric_and_positive_definite(name):
    M = make(name).mass_matrix(models.states(N, 200)[0])
    assert_close(M, M.transpose(1, 2))
    assert float(torch.linalg.eigvalsh(M).min()) > 0


@pytest.mark.parametrize('name', CASES)
def test_parts_belong_to_one_lagrangian(name):
    """C and g follow from the mean M and V, which is what makes the mean a Lagrangian model."""
    ensemble = make(name)
    q, qd, qdd = models.states(N, 8)
    context = None
    if ensemble.memory is not None:
        context = torch.zeros(8, N, 1 + ensemble.memory.size, dtype=q.dtype)
    step = 1e-6
    terms = ensemble.terms(q, qd, context=context)
    still = torch.zeros_like(qd)
    for i in range(N):
        shift = step * torch.eye(N, dtype=q.dtype)[i]
        slope = (ensemble.energy(q + shift, still) - ensemble.energy(q - shift, still)) / 2 / step
        assert_close(terms.g[:, i], slope, tolerances.RTOL_FINITE_DIFFERENCE)
    tau = (terms.M @ qdd.unsqueeze(-1)).squeeze(-1) + terms.c + terms.g + terms.d
    assert_close(ensemble.torque(q, qd, qdd, context), tau)
    assert_close(ensemble.mass_matrix(q), terms.M)
    supplied = ensemble.power_balance(q, qd, qdd, context=context)
    ahead, behind = (
        ensemble.energy(q + s * qd + s * s / 2 * qdd, qd + s * qdd) for s in (step, -step)
    )
    slope = (ahead - behind) / 2 / step
    assert_close(supplied.energy_rate, slope, tolerances.RTOL_FINITE_DIFFERENCE)


@pytest.mark.parametrize('name', POSITIVE)
def test_forward_dynamics_inverts_the_torque(name):
    ensemble = make(name)
    q, qd, qdd, dt = walk()
    context = ensemble.context(ensemble.initial_state(q[0]), q, qd, dt).values
    tau = ensemble.torque(q, qd, qdd, context)
    again = ensemble.forward_dynamics(q, qd, tau, context=context)
    assert_close(again, qdd, tolerances.RTOL_F64_SOLVE)


@pytest.mark.parametrize('name', PASSIVE)
def test_friction_takes_energy_out(name):
    assert least_dissipation(make(name)) >= 0


@pytest.mark.parametrize('name', ['fixed', 'learned', 'linear_memory'])
def test_memory_stores_no_more_than_is_put_in(name):
    # Rounding of differences of energies of about 1 J.
    assert smallest_surplus(make(name)) > -1e-12


@pytest.mark.parametrize('name', WITH_MEMORY)
def test_weights_of_the_memory_come_with_the_gradient_of_what_it_stores(name):
    """Weights that depend on q keep the inequality by it."""
    ensemble = make(name)
    q, qd, _, dt = walk(40)
    context = ensemble.context(ensemble.initial_state(q[0]), q, qd, dt).values
    y = context[..., 1:]
    weights = ensemble.memory.weight(q)
    assert float(weights.min()) >= 0
    gradient = ensemble.memory_torque(q, context) / ensemble.torque_scale - (weights * y).sum(-1)
    for i in range(N):
        shift = 1e-6 * torch.eye(N, dtype=q.dtype)[i]
        ahead, behind = (ensemble.memory.stored(q + s, y) for s in (shift, -shift))
        # The storage is of the size of zeta times the weight.
        np.testing.assert_allclose(gradient[:, i], (ahead - behind) / 2e-6, atol=1e-8)


def test_passivity_checks_fail_for_an_average_that_is_not_passive():
    ensemble = make('fixed')
    part = ensemble.member(1).dissipation
    forward = part.forward
    part.forward = lambda *args: -8.0 * forward(*args)
    assert least_dissipation(ensemble) < 0
    ensemble = make('fixed')
    force = ensemble.memory.force
    ensemble.memory.force = lambda q, y: force(q, y) - 2.0 * ensemble.member(1).memory.force(q, y)
    assert smallest_surplus(ensemble) < -1e-6


@pytest.mark.parametrize('name', CASES)
def test_steps_are_the_sequence(name):
    ensemble = make(name)
    q, qd, qdd, dt = walk(120)
    state = ensemble.initial_state(q[0])
    whole = ensemble.sequence(state, q, qd, qdd, dt)
    taus = []
    for k in range(len(q)):
        step = ensemble.step(state, q[k], qd[k], qdd[k], dt[k])
        state = step.state
        taus.append(step.tau)
    assert_close(torch.stack(taus), whole.tau)
    assert_close(state, whole.state)


@pytest.mark.parametrize('name', ['fixed', 'learned', 'linear_memory'])
def test_started_state_holds_the_torque(name):
    ensemble = make(name)
    q = models.states(N, 1)[0]
    still = torch.zeros_like(q)
    dt = torch.zeros(1, dtype=q.dtype)
    unbent = ensemble.initial_state(q[0])
    free = ensemble.sequence(unbent, q, still, still, dt).tau
    held = free + 0.3 * ensemble.torque_scale * ensemble.memory.weight(q).sum(-1)
    state = ensemble.initial_state(q[0], held[0])
    assert state.shape == unbent.shape == (N, ensemble.state_size)
    assert_close(ensemble.sequence(state, q, still, still, dt).tau, held)


@pytest.mark.parametrize(
    ('name', 'size'), [('dlnn', 0), ('fixed', 4), ('learned', 10), ('linear_memory', 4)]
)
def test_fixed_elements_share_their_state(name, size):
    assert make(name).state_size == size


@pytest.mark.parametrize('name', CASES)
def test_saved_ensemble_is_the_same(name, tmp_path):
    kind, options = CASES[name]
    robot = Robot('two', ('a', 'b'), ('revolute',) * N)
    member = models.describe(kind, options, robot, models.make_scales(N))
    ensemble = make(name)
    tensors = model_tensors(ensemble)
    assert {key.split('.')[1] for key in tensors} == {'0', '1', '2'}
    save_model(tmp_path / 'm', describe_ensemble(member, 3), tensors)
    loaded, description = load_model(tmp_path / 'm')
    assert description.kind == 'ensemble'
    assert torch.equal(run(loaded).tau, run(ensemble).tau)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'kind': 'mlp'}, "kind 'mlp' cannot be averaged; members .* dlnn"),
        ({'kind': 'ensemble'}, "kind 'ensemble' cannot be averaged"),
        ({'members': 0}, 'members is 0'),
        ({'options': {'widht': 3}}, "test: options: unknown key 'widht'; did you mean 'width'"),
    ],
)
def test_senseless_ensembles_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_config('ensemble', options, 'test')


# --- training ---


def config(**changes):
    memory = {'options': {**SMALL, 'memory': FIXED}, 'model': 'dlnn_memory'}
    return TrainConfig(**{**memory, 'epochs': 4, 'batch_size': 200, 'threads': 1, **changes})


@pytest.fixture(scope='module')
def pendulums():
    return datasets.two_pendulums(np.random.default_rng(20211215))


def validation_score(model, dataset) -> float:
    """Return one minus the mean squared error over the variance in training."""
    (prediction,) = evaluate(model.double(), dataset.role('validation')).predictions
    spread = dataset.role('train').samples().tau.std(0)
    error = (prediction.effort - prediction.trajectory.tau) / spread
    return float(1.0 - np.mean(error**2))


def test_average_keeps_every_start_at_its_best(pendulums):
    fitted = train(pendulums, config(restarts=3, combine='average'))
    assert fitted.description.kind == 'ensemble'
    assert fitted.description.provenance['training']['combine'] == 'average'
    for k in range(3):
        alone = train(pendulums, config(seed=k))
        expected = model_tensors(alone.model)
        given = model_tensors(fitted.model.member(k))
        assert all(np.array_equal(given[name], v) for name, v in expected.items())
    scores = evaluate(fitted.model.double(), pendulums.role('validation')).scores
    assert scores['dissipated_power_min'] >= 0
    assert scores['memory_surplus_min'] >= -1e-9
    # The square of a mean is at most the mean of the squares.
    of_members = [max(v.score for v in fitted.curve if v.restart == k) for k in range(3)]
    assert validation_score(fitted.model, pendulums) > np.mean(of_members)


@pytest.mark.parametrize('stop_after', [3, 6, 8])
def test_resumed_ensemble_equals_the_uninterrupted_one(pendulums, tmp_path, stop_after):
    settings = config(restarts=3, combine='average')
    check_resumed_run(pendulums, settings, tmp_path, stop_after)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'combine': 'mean', 'restarts': 2}, "combine is 'mean'"),
        ({'combine': 'average'}, 'restarts 1, must be at least 2'),
        (
            {'combine': 'average', 'restarts': 2, 'model': 'mlp', 'options': {}},
            'model mlp does not',
        ),
        ({'model': 'ensemble', 'options': {}}, 'an ensemble is trained as its members'),
    ],
)
def test_senseless_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        config(**change)


@pytest.fixture(scope='module')
def teacher(pendulums, tmp_path_factory):
    """Save an ensemble so coarse that its torque differs from the measured one."""
    fitted = train(pendulums, config(restarts=2, combine='average', epochs=20))
    folder = tmp_path_factory.mktemp('models') / 'teacher'
    return save_model(folder, fitted.description, model_tensors(fitted.model))


def distance(model, folder, dataset) -> float:
    """Return the mean square of the difference of two models, in variances of the torque."""
    a, b = (
        np.concatenate([p.effort for p in evaluate(m, dataset).predictions])
        for m in (model.double(), load_model(folder).model)
    )
    return float(np.mean(((a - b) / b.std(0)) ** 2))


@pytest.mark.parametrize('kind', ['dlnn_memory', 'linear_memory'])
def test_student_approaches_its_teacher(pendulums, teacher, kind):
    options = {'memory': FIXED, **(SMALL if kind == 'dlnn_memory' else {})}
    settings = config(model=kind, options=options, epochs=60)
    student = train(pendulums, settings, teacher=teacher)
    part = pendulums.role('train')
    assert distance(student.model, teacher, part) < 0.02
    from_data = train(pendulums, settings)
    assert distance(student.model, teacher, part) < distance(from_data.model, teacher, part)
    told = student.description.provenance['teacher']
    assert told['model'] == str(teacher)
    assert told['sha256'] == load_model(teacher).description.sha256
    assert 'teacher' not in from_data.description.provenance


def test_student_keeps_the_units_and_the_validation_of_the_measured_torque(pendulums, teacher):
    student = train(pendulums, config(epochs=1), teacher=teacher)
    plain = train(pendulums, config(epochs=1))
    assert student.description.scales == plain.description.scales
    expected = validation_score(student.model, pendulums)
    # The curve is float32 and its spread that of N - 1.
    assert student.curve[0].score == pytest.approx(expected, rel=2e-3)


def test_other_teacher_is_refused_on_resume(pendulums, teacher, tmp_path):
    resume = ResumeFile(tmp_path / 'state')
    train(pendulums, config(epochs=1), resume, teacher=teacher)
    with pytest.raises(ValueError, match='another teacher'):
        train(pendulums, config(epochs=1), resume)


def test_teacher_of_another_robot_is_refused(pendulums, teacher):
    robot = replace(pendulums.robot, joints=('p1', 'p3'))
    with pytest.raises(ValueError, match=r"joints \('p1', 'p3'\) do not match") as caught:
        train(replace(pendulums, robot=robot), config(), teacher=teacher)
    assert '\n' not in str(caught.value)


# --- command line ---


def command(capsys, *argv):
    """Run `dlnn train`; return its exit code and what it said."""
    code = main(['train', *map(str, argv)])
    return code, capsys.readouterr()


def test_commands_train_an_ensemble_and_a_student(capsys, pendulums, tmp_path):
    bag, ensemble, student = (tmp_path / name for name in ('bag', 'ensemble', 'student'))
    write_bag(bag, RecordingSet(pendulums.robot, tuple(t.recording for t in pendulums)))
    common = ['--data', bag, '--epochs', 1, '--threads', 1, '--json', '--model', 'dlnn']
    common += ['--set', 'options.width=8', 'options.depth=1']
    code, said = command(capsys, *common, '--out', ensemble, '--ensemble', 2)
    assert code == 0
    assert json.loads(said.out)['kind'] == 'ensemble'
    assert load_model(ensemble).description.config['members'] == 2
    code, said = command(capsys, *common, '--out', student, '--teacher', ensemble)
    assert code == 0
    assert json.loads(said.out)['kind'] == 'dlnn'
    told = load_model(student).description.provenance['teacher']
    assert told == {
        'model': str(ensemble),
        'kind': 'ensemble',
        'sha256': load_model(ensemble).description.sha256,
        'source': str(bag),
    }
    both = ('--out', tmp_path / 'm', '--ensemble', 2, '--restarts', 2)
    code, said = command(capsys, *common, *both)
    assert code == 2
    assert 'leave --restarts out' in said.err
    code, said = command(capsys, *common, '--out', tmp_path / 'm', '--teacher', tmp_path / 'none')
    assert code == 2
    assert said.err.strip().splitlines()[-1].endswith('none: no such model folder')
