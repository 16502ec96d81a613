"""The perceptron with a window of past samples."""

from dataclasses import replace

import datasets
from dlnn_ros.data.observation import ObservationFilter, observed_path, sample_path
from dlnn_ros.data.trajectory import Dataset
from dlnn_ros.dynamics.architecture import MlpConfig
from dlnn_ros.dynamics.kinds import make_model
from dlnn_ros.learning.evaluate import evaluate
from dlnn_ros.learning.observation import context_at_samples, Contexts
from dlnn_ros.learning.settings import TrainConfig
from dlnn_ros.learning.train import train
import numpy as np
import pytest
import torch

import models

WINDOW = 5


def make(window=WINDOW, **options):
    torch.manual_seed(0)
    config = MlpConfig(16, 2, window=window, **options)
    return make_model('mlp', config, models.make_scales(3), [True, False, True]).double().eval()


def path(samples=40):
    q, qd, qdd = (x.view(2, samples, 3) for x in models.states(3, 2 * samples))
    return q, qd, qdd, torch.full((2, samples), 0.1, dtype=q.dtype)


@pytest.mark.parametrize('cut', [1, 3, WINDOW, 17])
def test_streaming_equals_offline(cut):
    model, (q, qd, qdd, dt) = make(), path()
    with torch.no_grad():
        whole = model.sequence(model.initial_state(q[:, 0]), q, qd, qdd, dt)
        state = model.initial_state(q[:, 0])
        streamed = []
        for k in range(cut):
            tau, state = model.step(state, q[:, k], qd[:, k], qdd[:, k], dt[:, k])
            streamed.append(tau)
        rest = model.sequence(state, q[:, cut:], qd[:, cut:], qdd[:, cut:], dt[:, cut:])
    tau = torch.cat([torch.stack(streamed, 1), rest.tau], 1)
    # The same operations on other shapes: equal to rounding.
    torch.testing.assert_close(tau, whole.tau, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rest.state, whole.state, rtol=0, atol=0)


def test_context_is_the_way_since_and_the_velocity_of_the_samples_before():
    model, (q, qd, _, dt) = make(), path()
    values = model.context(model.initial_state(q[:, 0]), q, qd, dt).values
    assert values.shape == (2, 40, 3, 2 * WINDOW)
    k, i = 20, 3
    torch.testing.assert_close(values[:, k, :, WINDOW - i], q[:, k] - q[:, k - i])
    torch.testing.assert_close(values[:, k, :, 2 * WINDOW - i], qd[:, k - i])
    assert not values[:, 0].any()  # stood still before


def test_torque_depends_on_the_window_and_not_beyond_nor_on_the_future():
    model, (q, qd, qdd, dt) = make(), path()

    def torque_with(change_at):
        moved = q.clone()
        moved[:, change_at] += 0.1
        state = model.initial_state(q[:, 0])
        with torch.no_grad():
            return model.sequence(state, moved, qd, qdd, dt).tau[:, 20]

    unchanged = torque_with(39)
    for k in range(20 - WINDOW, 20):
        assert (torque_with(k) - unchanged).abs().max() > 1e-6
    for k in (20 - WINDOW - 1, 21):
        assert torch.equal(torque_with(k), unchanged)


def test_sign_is_taken_of_past_velocities_by_option():
    sizes = [make(velocity_sign=s).net.hidden[0].weight.shape[1] for s in (False, True)]
    assert sizes[1] - sizes[0] == 3 * (WINDOW + 1)


def test_a_state_is_required():
    model, (q, qd, qdd, _) = make(), path()
    with pytest.raises(ValueError, match='has memory'):
        model.inverse_dynamics(q, qd, qdd)
    with pytest.raises(ValueError, match='needs the context'):
        model.torque(q, qd, qdd)


@pytest.mark.parametrize('window', [-1, 65])
def test_window_out_of_range_is_refused(window):
    with pytest.raises(ValueError, match=f'window is {window}, must be 0 to 64'):
        MlpConfig(window=window)


def test_window_counts_samples_also_where_the_effort_was_filtered(rng):
    """On the finer grid of a filtered recording a window would span another time."""
    data = filtered(datasets.two_pendulums(rng, trajectories=2, samples=60))
    config = MlpConfig(8, 1, window=WINDOW)
    model = make_model('mlp', config, models.make_scales(2), [True, True])
    found = Contexts(data, 'cpu', torch.float64).values(model)
    served = torch.cat([context_at_samples(model, sample_path(t)) for t in data])
    torch.testing.assert_close(found, served)
    observed = torch.cat([context_at_samples(model, observed_path(t)) for t in data])
    assert (observed - served).abs().max() > 1e-2


def test_friction_that_jumps_is_still_seen_through_the_filter(rng):
    data = filtered(datasets.two_pendulums(rng, trajectories=2, samples=60))
    torch.manual_seed(0)
    config = models.make_config('dlnn', models.SMALL, 'test')
    model = make_model('dlnn', config, models.make_scales(2), [True, True])
    found = Contexts(data, 'cpu', torch.float64).values(model)
    observed = torch.cat([context_at_samples(model, observed_path(t)) for t in data])
    torch.testing.assert_close(found, observed.to(found))


def filtered(data: Dataset) -> Dataset:
    return replace(
        data,
        trajectories=tuple(
            replace(t, recording=replace(t.recording, observation_filter=ObservationFilter(2.0)))
            for t in data
        ),
    )


def test_window_learns_what_the_present_does_not_show(rng):
    """The torque is the sign of the velocity four samples ago."""
    data = datasets.two_pendulums(rng, trajectories=4, samples=300)
    late = []
    for t in data:
        tau = np.roll(np.sign(t.qd), 4, axis=0)
        valid = np.arange(len(t.t)) >= 4
        late.append(replace(t, recording=replace(t.recording, tau=tau, valid=valid)))
    data = replace(data, trajectories=tuple(late))
    scores = []
    for window in (0, WINDOW):
        options = {'width': 32, 'depth': 1, 'dropout': 0.0, 'window': window}
        settings = TrainConfig('mlp', options, epochs=60, batch_size=256, threads=1)
        fitted = train(data, settings)
        scores.append(evaluate(fitted.model.double(), data.role('test')).scores['nmse_mean'])
    assert scores[1] < 0.5 * scores[0]
