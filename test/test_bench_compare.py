"""Models side by side, and position noise: tiny twins of the benchmarks."""

from dataclasses import replace
import json

import datasets
from dlnn_ros.bench import compare as bench
from dlnn_ros.bench import noise as noise_bench
from dlnn_ros.bench.compare import Comparison, Fold
from dlnn_ros.cli.main import main
from dlnn_ros.data.bags import write_bag
from dlnn_ros.data.observation import ObservationFilter
from dlnn_ros.data.trajectory import RecordingSet
from dlnn_ros.learning.checkpoint import load_model, model_tensors
from dlnn_ros.learning.model_folder import save_model
from dlnn_ros.learning.settings import TrainConfig
from dlnn_ros.learning.train import train
import numpy as np
import pytest

TINY = ('linear', 'mlp:width=8:depth=1')


@pytest.fixture
def pendulums(rng):
    return datasets.two_pendulums(rng, trajectories=4, samples=200)


@pytest.fixture
def bag(pendulums, tmp_path):
    recordings = tuple(replace(t.recording, role='') for t in pendulums)
    write_bag(tmp_path / 'bag', RecordingSet(pendulums.robot, recordings))
    return tmp_path / 'bag'


def tiny(**settings):
    return Comparison(**{'models': TINY, 'seeds': 2, 'time_budget_s': 0.1, **settings})


def test_every_model_is_scored_with_every_seed_in_all_views(pendulums):
    data = bench.compare(tiny(), [Fold('test', pendulums)])
    linear, mlp = (data['models'][name] for name in TINY)
    assert (linear['seeds'], mlp['seeds']) == (1, 2)  # a linear solve has no seed
    assert len(data['runs']) == 3
    assert len(mlp['r2_mean_by_seed']) == 2
    assert mlp['r2_mean_by_seed'][0] != mlp['r2_mean_by_seed'][1]
    assert mlp['r2_mean'] == pytest.approx(np.mean(mlp['r2_mean_by_seed']))
    assert mlp['r2_mean'] == pytest.approx(np.mean(mlp['r2']))
    assert mlp['train_s'] > 0
    for view in bench.VIEWS:
        assert mlp['views'][view]['r2_mean_moving'] is not None
    text = bench.table(data)
    assert f'{mlp["r2_mean"]:.4f}' in text


def test_epochs_take_the_place_of_time_and_give_the_same_again(pendulums):
    settings, folds = tiny(models=TINY[1:], seeds=1, epochs=3), [Fold('test', pendulums)]
    first, again = (bench.compare(settings, folds)['runs'][0] for _ in range(2))
    assert first['steps'] == 3  # one batch holds all samples
    assert first['views'] == again['views']


def test_scores_are_those_of_the_test_part(pendulums):
    """An effort of the test part that has nothing to do with the motion cannot be predicted."""
    noise = np.random.default_rng(0).standard_normal(pendulums.trajectories[0].q.shape)
    spoilt = tuple(
        replace(t, recording=replace(t.recording, tau=noise)) if t.recording.role == 'test' else t
        for t in pendulums
    )
    folds = [Fold('test', replace(pendulums, trajectories=spoilt))]
    settings = tiny(models=('linear',))
    assert bench.compare(settings, folds)['models']['linear']['r2_mean'] < 0
    good = bench.compare(settings, [Fold('test', pendulums)])
    assert good['models']['linear']['r2_mean'] > 0.8


def test_each_recording_takes_its_turn_and_is_in_no_other_part(bag):
    folds = bench.load_folds([str(bag)], 'turn')
    assert [f.name for f in folds] == [t.recording.name for t in turn_tests(folds)]
    assert len(folds) == 4
    for fold in folds:
        parts = {t.recording.role: t.recording.name for t in fold.dataset}
        assert set(parts) == {'train', 'validation', 'test'}
        for t in fold.dataset:
            assert (t.recording.group == fold.name) == (t.recording.role == 'test')


def turn_tests(folds):
    return [t for f in folds for t in f.dataset.role('test')]


def test_tail_of_every_recording_is_held_out(bag):
    (fold,) = bench.load_folds([str(bag)], 'tail')
    tests = list(fold.dataset.role('test'))
    assert len(tests) == 4
    for t in tests:
        # Positions before the cut are kept for the memory, but not scored.
        scored = t.t[t.valid]
        whole = [o for o in fold.dataset if o.recording.group == t.recording.group]
        start, end = min(o.t[0] for o in whole), scored[-1]
        assert (end - scored[0]) / (end - start) == pytest.approx(0.3, abs=0.05)
        for other in whole:
            if other.recording.role != 'test':
                assert other.t[other.valid][-1] < scored[0]


@pytest.mark.parametrize('hold_out', bench.HOLD_OUTS)
def test_filter_of_the_effort_is_noted_however_data_are_held_out(bag, hold_out):
    seen = ObservationFilter(4.0)
    for fold in bench.load_folds([str(bag)], hold_out, observation_filter=seen):
        assert all(t.recording.observation_filter == seen for t in fold.dataset)


@pytest.mark.parametrize('hold_out', bench.HOLD_OUTS)
def test_another_filter_than_the_recording_says_is_refused(pendulums, tmp_path, hold_out):
    recordings = tuple(
        replace(t.recording, role='', observation_filter=ObservationFilter(4.0)) for t in pendulums
    )
    write_bag(tmp_path / 'b', RecordingSet(pendulums.robot, recordings))
    with pytest.raises(ValueError, match=r'at 4 Hz, not a zero-phase .* at 2 Hz'):
        bench.load_folds(
            [str(tmp_path / 'b')], hold_out, observation_filter=ObservationFilter(2.0)
        )


def test_turns_of_one_recording_are_refused(pendulums):
    alone = replace(pendulums, trajectories=pendulums.trajectories[:1])
    with pytest.raises(ValueError, match='1 group of recordings cannot take turns'):
        bench.take_turns(alone)


def test_interrupted_comparison_keeps_what_is_finished(pendulums, tmp_path, monkeypatch):
    out, folds = tmp_path / 'out.json', [Fold('test', pendulums)]
    run_case, ran = bench.run_case, []

    def interrupted(case, *args):
        if len(ran) == 1:
            raise KeyboardInterrupt
        ran.append(case)
        return run_case(case, *args)

    monkeypatch.setattr(bench, 'run_case', interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench.compare(tiny(), folds, out)
    kept = json.loads(out.read_text())['runs']
    assert len(kept) == 1
    monkeypatch.setattr(bench, 'run_case', lambda case, *a: ran.append(case) or run_case(case, *a))
    data = bench.compare(tiny(), folds, out)
    assert data['runs'][0] == kept[0]
    assert sorted(ran) == sorted(bench.cases(tiny(), folds))
    assert not list(tmp_path.glob('.*tmp'))
    with pytest.raises(ValueError, match='another time_budget_s'):
        bench.compare(tiny(time_budget_s=0.2), folds, out)
    fewer = [Fold('test', replace(pendulums, trajectories=pendulums.trajectories[:3]))]
    low_passed = tuple(
        replace(t, recording=replace(t.recording, observation_filter=ObservationFilter(4.0)))
        for t in pendulums
    )
    with pytest.raises(ValueError, match='another samples_sha256'):
        bench.compare(tiny(), [Fold('test', replace(pendulums, trajectories=low_passed))], out)
    with pytest.raises(ValueError, match='another samples_sha256'):
        bench.compare(tiny(), fewer, out)
    out.write_text('{}')
    with pytest.raises(ValueError, match='is no file of a comparison'):
        bench.compare(tiny(), folds, out)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'models': ('gpt',)}, "model 'gpt' must be one of dlnn, "),
        ({'models': ('mlp:width',)}, "'width' must be KEY=VALUE"),
        ({'models': ('mlp:widht=3',)}, "did you mean 'width'"),
        ({'models': ('mlp:width=wide',)}, "'wide' is not a number"),
        ({'models': ()}, 'no models'),
        ({'seeds': 0}, 'seeds is 0'),
        ({'threads': 0}, 'threads is 0'),
        ({'epochs': -1}, 'epochs is -1'),
        ({'time_budget_s': 0.0}, 'time_budget_s is 0.0'),
        ({'hold_out': 'half'}, "hold_out 'half' must be one of roles, turn, tail"),
    ],
)
def test_senseless_comparisons_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        tiny(**change)


def test_command_prints_the_agreed_keys(bag, tmp_path, capsys):
    out = tmp_path / 'out.json'
    common = ['--models', TINY[1], '--time-budget', '0.1', '--data', str(bag), '--json']
    assert main(['bench', 'kuka', *common, '--seeds', '2']) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)['models'][TINY[1]]
    assert {'r2_mean', 'r2', 'seeds', 'train_s', 'views', 'r2_mean_rest'} <= found.keys()
    assert '[2/2]' in captured.err
    assert main(['bench', 'compare', *common, '--hold-out', 'turn', '--out', str(out)]) == 0
    assert len(json.loads(capsys.readouterr().out)['models'][TINY[1]]['folds']) == 4
    assert json.loads(out.read_text())['hold_out'] == 'turn'
    assert main(['bench', 'kuka', '--models', 'gpt', '--data', str(bag)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


ELEMENTS = [{'zeta': 1e-3}, {'zeta': 1e-2, 'slip_velocity': 0.1}]


@pytest.fixture
def sticky(rng):
    """Return pendulums that stop now and then, with friction that holds as it was left."""
    data = datasets.two_pendulums(rng, trajectories=4, samples=400)
    made = []
    for t in data:
        # Time stands still in the second half of each stretch of two seconds.
        k = np.arange(len(t.t))
        source = np.where(k % 100 < 50, k, k - k % 100 + 49)
        source = np.array([int(i) for i in source])
        runs = (k % 100 < 50)[:, None]
        q, qd, qdd = t.q[source], t.qd[source] * runs, t.qdd[source] * runs
        held = np.sign(t.qd[source]) * datasets.COULOMB * np.where(runs, 1.0, 0.8)
        tau = datasets.INERTIA * qdd + datasets.GRAVITY * np.sin(q) + datasets.VISCOUS * qd + held
        made.append(replace(t, recording=replace(t.recording, q=q, tau=tau), q=q, qd=qd, qdd=qdd))
    return replace(data, trajectories=tuple(made))


@pytest.fixture
def memory_model(sticky, tmp_path):
    options = {'memory': {'elements': ELEMENTS}}
    fitted = train(sticky, TrainConfig('linear_memory', options, threads=1))
    return save_model(tmp_path / 'm', fitted.description, model_tensors(fitted.model))


def test_dead_band_keeps_what_noise_takes(memory_model, sticky):
    loaded = load_model(memory_model)
    none, noisy = noise_bench.measure(loaded, sticky.role('test'), (0.0, 3e-4), seed=0)
    assert none.plain == none.dead_band == none.reference
    assert noisy.reference == none.reference > 0.93
    assert noisy.plain < none.plain - 0.01
    assert noisy.dead_band > noisy.plain + 0.5 * (none.plain - noisy.plain)
    assert noise_bench.score(loaded.model, sticky.role('test'), 3e-4, 0.0, seed=0) == noisy.plain


def test_noise_is_refused_for_a_model_without_memory(pendulums, tmp_path, bag, capsys):
    fitted = train(pendulums, TrainConfig('linear', threads=1))
    folder = save_model(tmp_path / 'm', fitted.description, model_tensors(fitted.model))
    arguments = ['bench', 'noise', str(folder), '--data', str(bag), '--noise']
    for noise, message in (('0', 'linear without memory'), ('1,x', 'must be numbers')):
        assert main([*arguments, noise]) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]


def test_noise_command_prints_the_agreed_keys(memory_model, sticky, tmp_path, capsys):
    write_bag(tmp_path / 'b', RecordingSet(sticky.robot, tuple(t.recording for t in sticky)))
    arguments = [str(memory_model), '--data', str(tmp_path / 'b'), '--noise', '0,1e-4', '--json']
    assert main(['bench', 'noise', *arguments]) == 0
    cases = json.loads(capsys.readouterr().out)['cases']
    assert [c['noise'] for c in cases] == [0.0, 1e-4]
    assert set(cases[0]) == {'noise', 'plain', 'dead_band', 'reference'}


def test_stop_is_drawn_for_the_joints_asked_for(memory_model, sticky, tmp_path, capsys):
    write_bag(tmp_path / 'b', RecordingSet(sticky.robot, tuple(t.recording for t in sticky)))
    figure = tmp_path / 'sub' / 'stop.svg'
    data = ['--data', str(tmp_path / 'b'), '--out', str(figure)]
    assert main(['bench', 'stop', str(memory_model), *data, '--joints', 'p2']) == 0
    assert figure.read_text().startswith('<svg')
    assert main(['bench', 'stop', str(memory_model), *data, '--joints', 'p9']) == 2
    assert "no joint 'p9'; there are p1, p2" in capsys.readouterr().err


def test_data_without_a_test_part_are_refused(memory_model, sticky, tmp_path, capsys):
    recordings = tuple(t.recording for t in sticky if t.recording.role != 'test')
    write_bag(tmp_path / 'b', RecordingSet(sticky.robot, recordings))
    for command in (['noise'], ['stop', '--out', str(tmp_path / 'x.svg')]):
        given = ['bench', *command, str(memory_model), '--data', str(tmp_path / 'b')]
        assert main(given) == 2
        assert "no trajectory has the role 'test'" in capsys.readouterr().err


def test_stop_is_refused_where_no_joint_stops(memory_model, bag, tmp_path, capsys):
    data = ['--data', str(bag), '--out', str(tmp_path / 'x.svg')]
    assert main(['bench', 'stop', str(memory_model), *data]) == 2
    assert 'no joint comes from motion to rest' in capsys.readouterr().err
    assert not (tmp_path / 'x.svg').exists()
