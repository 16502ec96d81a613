from dataclasses import replace
import json
import signal
import subprocess
import sys
import time

import datasets
from dlnn_ros.config import Effort
from dlnn_ros.data.bags import write_bag
from dlnn_ros.data.trajectory import RecordingSet
from dlnn_ros.learning.checkpoint import load_model, model_tensors
from dlnn_ros.learning.evaluate import evaluate
from dlnn_ros.learning.model_folder import save_model
from dlnn_ros.learning.objectives import torque_objective
from dlnn_ros.learning.resume import ResumeFile
from dlnn_ros.learning.settings import TrainConfig
from dlnn_ros.learning.traces import share_seen, traces
from dlnn_ros.learning.train import train
import numpy as np
import pytest
from resuming import check_resumed_run
import torch

SMALL = {'width': 16, 'depth': 2, 'dissipation_width': 16, 'dissipation_depth': 1}


def config(**changes):
    return TrainConfig(
        **{'options': SMALL, 'epochs': 8, 'batch_size': 200, 'threads': 1, **changes}
    )


@pytest.fixture
def pendulums(rng):
    return datasets.two_pendulums(rng)


def test_objective_is_the_weighted_mean_square(rng):
    a, b = torch.tensor(rng.normal(size=(2, 50, 3)))
    weight = torch.tensor([1.0, 2.0, 0.5])
    expected = (((a - b) * weight) ** 2).mean()
    assert torque_objective(a, b, weight) == pytest.approx(float(expected), rel=1e-12)
    # Below the threshold Huber's loss is the square.
    assert torque_objective(a, b, weight, 100.0) == pytest.approx(float(expected), rel=1e-12)
    assert torque_objective(a, b, weight, 0.1) < expected


def test_dlnn_learns_two_pendulums_with_friction(pendulums):
    fitted = train(pendulums, config(epochs=50))
    scores = evaluate(fitted.model.double(), pendulums.role('test')).scores
    assert scores['r2_mean'] > 0.95
    assert scores['dissipated_power_min'] >= 0
    assert fitted.description.provenance['samples'] == 1600


def test_frictionless_model_cannot_explain_friction(pendulums):
    """The score tells a right model from a wrong one."""
    with_friction = train(pendulums, config(epochs=50))
    without = train(pendulums, config(model='lnn', epochs=50))
    a, b = (
        evaluate(f.model.double(), pendulums.role('test')).scores['r2_mean']
        for f in (with_friction, without)
    )
    assert a > b + 0.05


@pytest.mark.parametrize('kind', ['mlp', 'linear'])
def test_baselines_learn_something(pendulums, kind):
    options = {'width': 16} if kind == 'mlp' else {}
    fitted = train(pendulums, config(model=kind, options=options, epochs=40))
    assert evaluate(fitted.model.double(), pendulums.role('test')).scores['r2_mean'] > 0.7


def test_linear_baseline_is_least_squares(pendulums):
    fitted = train(pendulums, config(model='linear', options={'ridge': 0.0}))
    s = pendulums.role('train').samples()
    A = np.hstack([s.q, s.qd, s.qdd, np.sign(s.qd), np.ones((len(s.q), 1))])
    expected = np.linalg.lstsq(A, s.tau, rcond=None)[0].T
    np.testing.assert_allclose(fitted.model.weight.detach().numpy(), expected, atol=1e-8)


def test_same_seed_same_model_other_seed_other_model(pendulums):
    a, b, c = (model_tensors(train(pendulums, config(seed=s)).model) for s in (1, 1, 2))
    key = next(iter(a))
    assert all(np.array_equal(a[k], b[k]) for k in a)
    assert not np.array_equal(a[key], c[key])


def test_best_validated_state_is_kept_over_restarts(pendulums):
    fitted = train(pendulums, config(restarts=2, epochs=6))
    best = max(v.score for v in fitted.curve)
    held_out = pendulums.role('validation').samples()
    with torch.no_grad():
        tau = fitted.model.double().inverse_dynamics(*map(torch.tensor, held_out[:3])).numpy()
    spread = pendulums.role('train').samples().tau.std(0)
    score = 1 - np.mean(((tau - held_out.tau) / spread) ** 2)
    # The curve is float32 and its spread that of N - 1, this evaluation float64 and of N.
    assert score == pytest.approx(best, abs=1e-3)
    assert {v.restart for v in fitted.curve} == {0, 1}


def test_patience_ends_a_run_that_no_longer_improves(pendulums):
    # Large steps: some validation is worse than the one before.
    settings = config(epochs=40, learning_rate=0.1, final_learning_rate=0.1, average=0.0)
    short = train(pendulums, replace(settings, patience=1))
    assert len(short.curve) < len(train(pendulums, settings).curve)
    assert short.curve[-1].score < max(v.score for v in short.curve)


LEARNED = {'elements': [{'zeta': 1e-2, 'slip_velocity': 0.5}], 'learned': True}


@pytest.mark.parametrize('stop_after', [1, 4, 5, 8])
@pytest.mark.parametrize('model', ['dlnn', 'dlnn_memory'])
def test_resumed_run_equals_the_uninterrupted_one(pendulums, tmp_path, stop_after, model):
    options = {**SMALL, 'memory': LEARNED} if model == 'dlnn_memory' else SMALL
    settings = config(restarts=2, epochs=4, model=model, options=options, memory_interval=3)
    check_resumed_run(pendulums, settings, tmp_path, stop_after)


def test_state_of_a_run_on_other_data_is_refused(pendulums, tmp_path, rng):
    resume = ResumeFile(tmp_path / 'state')
    train(pendulums, config(epochs=1), resume)
    with pytest.raises(ValueError, match='other data or derivatives'):
        train(datasets.two_pendulums(rng), config(epochs=1), resume)
    with pytest.raises(ValueError, match='epochs 1 -> 2'):
        train(pendulums, config(epochs=2), resume)


def test_damaged_state_is_refused(pendulums, tmp_path):
    resume = ResumeFile(tmp_path / 'state')
    resume.path.write_bytes(b'not safetensors')
    with pytest.raises(ValueError, match='damaged training state'):
        train(pendulums, config(), resume)


def test_motor_side_effort_is_scored_and_served_in_its_own_units(rng):
    effort = Effort('motor', (100.0, -40.0))
    motor = datasets.two_pendulums(rng, effort=effort)
    scores = evaluate(train(motor, config(epochs=50)).model.double(), motor.role('test')).scores
    assert scores['r2_mean'] > 0.95
    # In units of the motor side, where the first joint's torque is a hundredth.
    assert scores['rmse']['p1'] < 0.25 * motor.trajectories[0].tau[:, 0].std()
    assert motor.trajectories[0].tau[:, 0].std() < 0.1


def test_effort_without_gravity_gives_a_model_without_potential(rng):
    data = datasets.two_pendulums(rng, effort=Effort('no_gravity'))
    fitted = train(data, config(epochs=1))
    assert not fitted.description.has_gravity
    q = torch.randn(5, 2)
    assert float(fitted.model.terms(q, q).g.abs().max()) == 0


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'learning_rate': 0.0}, 'learning rates'),
        ({'batch_size': 0}, 'batch_size is 0'),
        ({'model': 'dlnm'}, "model kind 'dlnm'"),
        ({'options': {'widht': 3}}, "did you mean 'width'"),
        ({'options': {'dropout': 1.0}}, 'dropout is 1.0'),
        ({'device': 'gpu'}, "device is 'gpu'"),
        ({'average': 1.0}, 'average is 1.0'),
        ({'time_budget_s': -1.0}, 'time_budget_s is -1.0'),
    ],
)
def test_senseless_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        config(**change)


def test_diverging_training_says_so(pendulums, tmp_path):
    settings = config(learning_rate=1e30, final_learning_rate=1e30, clip_norm=1e30)
    resume = ResumeFile(tmp_path / 'state')
    with pytest.raises(ValueError, match=r'loss became (nan|inf).*lower learning_rate'):
        train(pendulums, settings, resume)
    assert not resume.path.exists()


def test_constant_effort_is_refused(rng):
    data = datasets.two_pendulums(rng)
    frozen = [
        t.__class__(
            t.recording.__class__(
                t.t,
                t.q,
                np.column_stack([t.tau[:, 0], np.full(len(t.t), 12.3)]),
                name=t.recording.name,
                role=t.recording.role,
            ),
            t.q,
            t.qd,
            t.qdd,
        )
        for t in data
    ]
    with pytest.raises(ValueError, match='effort of p2 never changes'):
        train(data.__class__(data.robot, tuple(frozen), 'frozen'), config())


@pytest.mark.skipif(torch.cuda.is_available(), reason='needs a machine without CUDA')
def test_cuda_is_never_replaced_in_silence(pendulums):
    with pytest.raises(ValueError, match='device cuda: torch finds no CUDA device'):
        train(pendulums, config(device='cuda'))


def test_saved_model_is_the_trained_one(pendulums, tmp_path):
    fitted = train(pendulums, config(epochs=1))
    save_model(tmp_path / 'm', fitted.description, model_tensors(fitted.model))
    loaded, description = load_model(tmp_path / 'm', torch.float32)
    for k, v in model_tensors(fitted.model).items():
        np.testing.assert_array_equal(v, model_tensors(loaded)[k])
    assert description.robot == pendulums.robot
    assert description.training_range.q.lower == tuple(pendulums.role('train').samples().q.min(0))


def dlnn(*args):
    return [sys.executable, '-m', 'dlnn_ros.cli.main', *map(str, args)]


def test_killed_run_goes_on_from_the_last_interval(pendulums, tmp_path):
    bag = tmp_path / 'bag'
    write_bag(bag, RecordingSet(pendulums.robot, tuple(t.recording for t in pendulums)))
    out = tmp_path / 'model'
    command = dlnn(
        'train', '--data', bag, '--out', out, '--time-budget', 4, '--threads', 1,
        '--set', 'validation_interval_s=0.2', 'options.width=16',
    )  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    state = tmp_path / '.model.training'
    end = time.monotonic() + 60
    while not state.exists() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert state.exists()
    assert not out.exists()
    before = ResumeFile(state).load()['values']['curve']
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert '--resume' in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    done = subprocess.run(
        [*command, '--resume', '--json'], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (out / 'params.safetensors').exists()
    assert not state.exists()
    curve = np.loadtxt(out / 'curve.csv', delimiter=',', skiprows=1)
    assert len(curve) > len(before) > 0
    np.testing.assert_allclose(curve[: len(before), 4], np.array(before)[:, 4], atol=1e-6)
    trained = json.loads(done.stdout)['train_s']
    assert trained == pytest.approx(curve[-1, 2], abs=0.02)


def test_linear_model_refuses_a_joint_that_turns_without_end(pendulums):
    robot = replace(pendulums.robot, kinds=('revolute', 'continuous'))
    with pytest.raises(ValueError, match=r'those of p2 \(continuous\)'):
        train(replace(pendulums, robot=robot), config(model='linear', options={}))


def test_traces_recognise_training_data_only(pendulums):
    known = traces(pendulums.role('train'))
    assert share_seen(pendulums.role('train'), known) == 1.0
    assert share_seen(pendulums, known) == 1.0
    assert share_seen(pendulums.role('test'), known) == 0.0
