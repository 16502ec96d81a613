"""Sample by sample over a real recording with irregular stamps: what the sequence gives."""

from dataclasses import replace

from dlnn_ros.data.benchmarks import kuka_shifted
from dlnn_ros.data.derivatives import differentiate
from dlnn_ros.data.trajectory import Trajectory
from dlnn_ros.dynamics.architecture import make_config
from dlnn_ros.dynamics.kinds import make_model
from dlnn_ros.learning.evaluate import predict_trajectory
import numpy as np
import pytest
import torch

import models

pytestmark = pytest.mark.data
SHIFTED = 'kuka_kr300_benchmark_forward/forward_identification_without_raw_data_shifted.mat'


@pytest.fixture(scope='module')
def kuka(data_dir):
    """Return a test recording of the KUKA with its derivatives; skip where it is not there."""
    path = data_dir / SHIFTED
    if not path.is_file():
        pytest.skip(f'{path} is not there')
    recording = next(r for r in kuka_shifted(path).recordings if r.role == 'test')
    made = differentiate(recording)
    assert 0.19 < np.diff(made.t).max() < 0.21 < 3 * np.diff(made.t).min()
    return made


@pytest.fixture(scope='module')
def model():
    """Return friction with memory on six joints, with random weights."""
    torch.manual_seed(0)
    config = make_config('dlnn_memory', models.SMALL, 'test')
    made = make_model('dlnn_memory', config, models.make_scales(6), (True,) * 6)
    with torch.no_grad():
        made.memory.raw_weight.normal_()
    return made.double().eval()


@torch.no_grad()
def stream(model, trajectory):
    """Return the torque sample by sample, each seeing only those before."""
    arrays = [torch.tensor(a) for a in (trajectory.q, trajectory.qd, trajectory.qdd)]
    dt = np.diff(trajectory.t, prepend=trajectory.t[0])
    state, seen = model.initial_state(arrays[0][0]), []
    for k, (q, qd, qdd, period) in enumerate(zip(*arrays, dt, strict=True)):
        # `step` but for the torque, which sees one sample alone and is fast for all at once.
        along = model.context(state, q[None], qd[None], torch.tensor([period]))
        seen.append(along.values)
        if k % 20 == 0:
            step = model.step(state, q, qd, qdd, float(period))
            assert torch.equal(step.state, along.state)
            alone = model.torque(q, qd, qdd, along.values[0])
            assert torch.equal(step.tau, alone)
        state = along.state
    return model.torque(*arrays, torch.cat(seen)).numpy()


@torch.no_grad()
def stream_every_step(model, trajectory):
    """Return the same by `step` alone."""
    arrays = [torch.tensor(a) for a in (trajectory.q, trajectory.qd, trajectory.qdd)]
    dt = np.diff(trajectory.t, prepend=trajectory.t[0])
    state, taus = model.initial_state(arrays[0][0]), []
    for q, qd, qdd, period in zip(*arrays, dt, strict=True):
        tau, state = model.step(state, q, qd, qdd, float(period))
        taus.append(tau)
    return torch.stack(taus).numpy()


def part(trajectory, chosen):
    """Return some samples as a recording of their own."""
    r = trajectory.recording
    arrays = {name: getattr(r, name)[chosen] for name in ('t', 'q', 'tau', 'valid')}
    recording = replace(r, velocity=None, **arrays)
    return Trajectory(recording, *(getattr(trajectory, x)[chosen] for x in ('q', 'qd', 'qdd')))


@pytest.mark.parametrize('run', [stream, pytest.param(stream_every_step, marks=pytest.mark.slow)])
def test_streaming_is_the_sequence_over_a_whole_recording(kuka, model, run):
    taus = run(model, kuka)
    found = predict_trajectory(model, kuka, np.ones(6), 'served')
    scale = np.abs(taus).max()
    worst = np.abs(taus - found.effort).max() / scale
    assert worst < 1e-9, f'differs by {worst:.3g}'
    memory = found.components['memory']
    assert np.abs(memory).max() > 0.05 * scale  # what is compared has memory in it
    energy = np.abs(memory * np.diff(kuka.q, axis=0, prepend=kuka.q[:1])).sum()
    assert found.surplus.min() >= -1e-12 * energy
    assert found.surplus[-1] > 0.1 * energy


def test_after_a_gap_a_fresh_state_is_that_of_a_new_recording(kuka, model):
    """Seconds without a sample: what the joints did meanwhile is not known."""
    t = kuka.t
    middle = int(np.abs(kuka.qd[: len(t) // 2]).sum(1).argmax()) + 7
    after = part(kuka, slice(middle + 30, middle + 230))
    alone = predict_trajectory(model, after, np.ones(6), 'served').effort
    fresh = stream(model, after)
    scale = np.abs(alone).max()
    assert np.abs(fresh - alone).max() < 1e-9 * scale
    # Stamps count from the gap, so that moving them changes nothing; running on does.
    moved = replace(after.recording, t=after.t - after.t[0])
    again = stream(model, replace(after, recording=moved))
    assert np.abs(again - fresh).max() < 1e-9 * scale
    run_on = stream(model, part(kuka, slice(middle, middle + 230)))[30:]
    assert np.abs(run_on - fresh).max() > 1e-3 * scale


def test_check_fails_with_another_step(kuka, model):
    """The stamps matter: with even ones the torque is another."""
    even = replace(kuka.recording, t=0.1 * np.arange(len(kuka.t)))
    with_gaps, without = (
        predict_trajectory(model, x, np.ones(6), 'served').effort
        for x in (kuka, replace(kuka, recording=even))
    )
    assert np.abs(with_gaps - without).max() > 1e-6 * np.abs(with_gaps).max()
