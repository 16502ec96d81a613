import subprocess
import sys

from dlnn_ros.config import Effort
from dlnn_ros.learning.model_folder import load_description, load_params, save_model
from dlnn_ros.runtime.backends.numpy_backend import NumpyPredictor
from dlnn_ros.runtime.backends.torch_backend import has_cuda, TorchPredictor
from dlnn_ros.runtime.predictor import load_predictor
import numpy as np
import pytest
import tolerances
import torch

import models

needs_no_cuda = pytest.mark.skipif(has_cuda(), reason='needs a machine without CUDA')


def worst_difference(predictor, model, states=200):
    """Return the largest difference to the torch model, relative to the largest torque."""
    q, qd, qdd = models.states(model.n, states)
    with torch.no_grad():
        expected = model.inverse_dynamics(q, qd, qdd).numpy()
    found = np.array(
        [
            predictor.predict(a, b, c, 0.001)
            for a, b, c in zip(*map(np.asarray, (q, qd, qdd)), strict=True)
        ]
    )
    ratio = predictor.description.robot.gear_ratio
    return float(np.abs(found * ratio - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize('name', models.CASES)
@pytest.mark.parametrize('backend', ['numpy', 'torch'])
def test_backend_equals_reference(name, backend, tmp_path):
    folder, model = models.save_case(tmp_path / name, name)
    predictor = NumpyPredictor(folder) if backend == 'numpy' else TorchPredictor(folder, 'cpu')
    assert worst_difference(predictor, model) < tolerances.RTOL_F64


PREDICTORS = {'numpy': NumpyPredictor, 'torch': lambda folder: TorchPredictor(folder, 'cpu')}


def worst_difference_in_motion(predictor, model, effort=None):
    """Return the largest difference to the sequence of a model with a state, as above."""
    q, qd, qdd, dt = models.motion(model.n, 200)
    ratio = predictor.description.robot.gear_ratio
    with torch.no_grad():
        tau = None if effort is None else torch.from_numpy(effort * ratio)
        expected = model.sequence(model.initial_state(q[0], tau), q, qd, qdd, dt).tau.numpy()
    predictor.reset()
    if effort is not None:
        predictor.start(q[0].numpy(), effort)
    found = np.array(
        [predictor.predict(*row) for row in zip(*map(np.asarray, (q, qd, qdd, dt)), strict=True)]
    )
    return float(np.abs(found * ratio - expected).max() / np.abs(expected).max())


def geared_effort(n):
    """Return motor-side effort with unequal gear ratios, one of them turning the sign."""
    return Effort('motor', (100.0, -50.0, 3.0)[:n])


@pytest.mark.parametrize('name', [*models.MEMORY_CASES, *models.SERVED_CASES])
@pytest.mark.parametrize('backend', PREDICTORS)
def test_streaming_equals_the_sequence(name, backend, tmp_path, rng):
    folder, model = models.save_case(tmp_path / name, name)
    predictor = PREDICTORS[backend](folder)
    assert worst_difference_in_motion(predictor, model) < tolerances.RTOL_F64
    # Once more: the reset forgets the end of the first run.
    effort = rng.normal(size=model.n)
    assert worst_difference_in_motion(predictor, model, effort) < tolerances.RTOL_F64
    if models.KNOWN[name][3]:  # with gravity, which motor-side effort has
        geared, _ = models.save_case(tmp_path / 'geared', name, geared_effort(model.n))
        assert worst_difference_in_motion(PREDICTORS[backend](geared), model, effort) < 1e-9
    assert predictor.has_memory == (getattr(model, 'memory', None) is not None)


@pytest.mark.parametrize('name', models.MEMORY_CASES)
def test_streaming_check_fails_without_a_reset_and_with_another_start(name, tmp_path, rng):
    folder, model = models.save_case(tmp_path / name, name)
    predictor = NumpyPredictor(folder)
    reset, predictor.reset = predictor.reset, lambda: None
    worst_difference_in_motion(predictor, model)
    assert worst_difference_in_motion(predictor, model) > 1e-6
    predictor.reset = reset
    effort = rng.normal(size=model.n)
    predictor.start, start = lambda q, tau: start(q, tau + 1.0), predictor.start
    assert worst_difference_in_motion(predictor, model, effort) > 1e-6


def test_parity_check_fails_on_another_model(tmp_path):
    folder, _ = models.save_case(tmp_path / 'm', 'dlnn')
    other = models.make('dlnn', seed=5)
    assert worst_difference(NumpyPredictor(folder), other) > 1e-2


def test_motor_side_effort_is_divided_by_the_gear_ratio(tmp_path):
    folder, model = models.save_case(tmp_path / 'm', 'dlnn', Effort('motor', (100.0, -50.0, 3.0)))
    predictor = load_predictor(folder)
    q, qd, qdd = models.states(3, 1)
    with torch.no_grad():
        joint = model.inverse_dynamics(q, qd, qdd)[0].numpy()
    effort = predictor.predict(*(a[0].numpy() for a in (q, qd, qdd)), 0.001)
    np.testing.assert_allclose(effort * [100.0, -50.0, 3.0], joint, rtol=1e-9)


def test_serving_process_does_not_import_torch(tmp_path):
    folder = models.save_tiny_model(tmp_path / 'm')
    code = (
        'import sys, numpy as np\n'
        'from dlnn_ros.runtime.predictor import load_predictor\n'
        f'p = load_predictor({str(folder)!r}, "cpu")\n'
        'p.predict(np.zeros(3), np.ones(3), np.ones(3), 0.004)\n'
        'sys.exit("torch" in sys.modules)\n'
    )
    assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0


def test_parameters_of_another_shape_are_refused(tmp_path):
    folder, _ = models.save_case(tmp_path / 'm', 'dlnn')
    description = load_description(folder)
    params = load_params(folder, description)
    key = 'conservative.trunk.hidden.0.weight'
    save_model(folder, description, {**params, key: params[key][:, :-1]}, overwrite=True)
    with pytest.raises(ValueError, match=rf'{key} is \(16, 5\).* expects \(16, 6\)'):
        NumpyPredictor(folder)
    with pytest.raises(ValueError, match=rf'{key} is \(16, 5\), expected \(16, 6\)'):
        TorchPredictor(folder, 'cpu')


def test_parameters_too_many_are_refused(tmp_path):
    folder, _ = models.save_case(tmp_path / 'm', 'dlnn')
    description = load_description(folder)
    params = {**load_params(folder, description), 'extra': np.ones(3)}
    save_model(folder, description, params, overwrite=True)
    with pytest.raises(ValueError, match='extra'):
        NumpyPredictor(folder)
    with pytest.raises(ValueError, match='extra'):
        TorchPredictor(folder, 'cpu')


def test_model_that_overflows_in_its_own_range_is_refused(tmp_path):
    folder, _ = models.save_case(tmp_path / 'm', 'linear')
    description = load_description(folder)
    params = load_params(folder, description)
    params['weight'] = np.full_like(params['weight'], 1e308)
    save_model(folder, description, params, overwrite=True)
    with np.errstate(over='ignore'), pytest.raises(ValueError, match='must not be served'):
        load_predictor(folder)


@needs_no_cuda
def test_cuda_is_an_error_where_there_is_none_and_auto_takes_the_cpu(tmp_path):
    folder = models.save_tiny_model(tmp_path / 'm')
    with pytest.raises(ValueError, match='backend cuda: torch finds no CUDA device'):
        load_predictor(folder, 'cuda')
    assert load_predictor(folder, 'auto').backend == 'numpy cpu'


def test_unknown_backend_is_named(tmp_path):
    with pytest.raises(ValueError, match="backend 'gpu' must be one of auto, cpu, cuda"):
        load_predictor(tmp_path, 'gpu')
