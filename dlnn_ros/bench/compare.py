"""
Train several models with several seeds on the same data and score them side by side.

What is chosen during training is chosen by the validation part alone; the test part is only
scored, in every view of :func:`~dlnn_ros.learning.evaluate.evaluate_views`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from dlnn_ros.config import Robot
from dlnn_ros.data.derivatives import Derivatives, differentiate
from dlnn_ros.data.observation import ObservationFilter
from dlnn_ros.data.quality import check_effort
from dlnn_ros.data.sources import load_dataset, load_with_reports, note_filter
from dlnn_ros.data.splits import assign_roles
from dlnn_ros.data.trajectory import Dataset, Trajectory
from dlnn_ros.dynamics.architecture import make_config
from dlnn_ros.learning.evaluate import evaluate_views
from dlnn_ros.learning.settings import TrainConfig
from dlnn_ros.learning.train import fingerprint, train
import numpy as np


class Preset(NamedTuple):
    """Kind of a model and its options."""

    kind: str
    options: dict[str, Any]


PRESETS = {
    'dlnn': Preset('dlnn', {}),
    'dlnn_memory': Preset('dlnn_memory', {}),
    'lnn': Preset('lnn', {}),
    'linear_memory': Preset('linear_memory', {}),
    'linear_trig': Preset('linear_memory', {'memory': None}),
    'mlp': Preset('mlp', {}),
    'mlp_window': Preset('mlp', {'window': 8}),
    'linear': Preset('linear', {}),
}
# Solved, not descended: every seed gives the same.
WITHOUT_SEED = ('linear', 'linear_memory')
HOLD_OUTS = ('roles', 'turn', 'tail')
TAIL = 0.3  # of each recording
VALIDATION = 0.15
VIEWS = ('recorded', 'served', 'recorded_started', 'served_started')
# What a view is where a model or the data make no difference.
SAME_AS = {
    'recorded': 'served',
    'recorded_started': 'recorded',
    'served_started': 'served',
}
KEYS = ('r2_mean', 'r2_mean_moving', 'r2_mean_rest')


class Fold(NamedTuple):
    """One choice of what is held out, by the name of what is."""

    name: str
    dataset: Dataset


@dataclass(frozen=True)
class Comparison:
    """
    What is compared, and on what.

    Attributes
    ----------
    models : tuple of str
        Each a key of `PRESETS`, with options of its kind after it: `mlp_window:window=16`.
    seeds : int
        Number of seeds, from 0.
    time_budget_s : float
        Training time of each model and seed [s]; used where `epochs` is 0.
    epochs : int
        Passes through the data, which a busy machine does not shorten; 0 for the time budget.
    hold_out : str
        'roles': as the data say. 'turn': each recording, with those of its group, is the test
        set once, the others are trained on. 'tail': the last 30 % of each recording are the
        test set.
    threads : int
        Torch threads.

    """

    models: tuple[str, ...]
    seeds: int = 1
    time_budget_s: float = 60.0
    epochs: int = 0
    hold_out: str = 'roles'
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ('seeds', 'threads'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} is {getattr(self, name)}, must be at least 1')
        if self.epochs < 0:
            raise ValueError(f'epochs is {self.epochs}, must be >= 0')
        if not self.time_budget_s > 0:
            raise ValueError(f'time_budget_s is {self.time_budget_s}, must be > 0')
        if self.hold_out not in HOLD_OUTS:
            raise ValueError(f'hold_out {self.hold_out!r} must be one of {", ".join(HOLD_OUTS)}')
        if not self.models:
            raise ValueError('no models to compare')
        for name in self.models:
            parse_model(name)


def parse_model(name: str) -> Preset:
    """
    Return kind and options of `PRESET[:KEY=VALUE]...`, values in JSON.

    Raises
    ------
    ValueError
        For an unknown model or option.

    """
    preset, *settings = name.split(':')
    if preset not in PRESETS:
        raise ValueError(f'model {preset!r} must be one of {", ".join(PRESETS)}')
    kind, options = PRESETS[preset]
    for setting in settings:
        key, equals, value = setting.partition('=')
        if not equals:
            raise ValueError(f'model {name}: {setting!r} must be KEY=VALUE')
        try:
            options = {**options, key: json.loads(value)}
        except json.JSONDecodeError as error:
            raise ValueError(
                f'model {name}: {value!r} is not a number, true, false or null'
            ) from error
    make_config(kind, options, f'model {name}')
    return Preset(kind, options)


def load_folds(
    specs: Sequence[str],
    hold_out: str,
    robot: Robot | None = None,
    topic: str | None = None,
    derivatives: Derivatives | None = None,
    observation_filter: ObservationFilter | None = None,
) -> list[Fold]:
    """
    Read recordings and choose what is held out; roles that a source prescribes count for 'roles'.

    Raises
    ------
    ValueError
        As :func:`~dlnn_ros.data.sources.load_dataset`, or recordings too few or too short.

    """
    if hold_out == 'roles':
        dataset = load_dataset(specs, robot, topic, derivatives, None, observation_filter)
        return [Fold('test', dataset)]
    source, _ = load_with_reports(specs, robot, topic)
    check_effort(source.robot, source.recordings, source.source)
    recordings = [
        replace(note_filter(r, observation_filter, source.source), role='')
        for r in source.recordings
    ]
    trajectories = tuple(differentiate(r, derivatives) for r in recordings)
    dataset = Dataset(source.robot, trajectories, source.source)
    return [Fold('tail', hold_out_tails(dataset))] if hold_out == 'tail' else take_turns(dataset)


def hold_out_tails(dataset: Dataset) -> Dataset:
    """Cut every recording in time: the end for the test, a part of the rest for validation."""
    parts: list[Trajectory] = []
    for t in dataset:
        alone = replace(dataset, trajectories=(t,))
        parts += assign_roles(alone, VALIDATION, TAIL).trajectories
    return replace(dataset, trajectories=tuple(parts))


def take_turns(dataset: Dataset) -> list[Fold]:
    """Hold out each group of recordings once, with a validation part out of the others."""
    groups = list(dict.fromkeys(t.recording.group for t in dataset))
    if len(groups) < 2:
        raise ValueError(
            f'{dataset.source}: {len(groups)} group of recordings cannot take turns; '
            'give more recordings, or hold out tails'
        )
    folds = []
    for group in groups:
        marked = tuple(t.with_role('test') if t.recording.group == group else t for t in dataset)
        folds.append(Fold(group, assign_roles(replace(dataset, trajectories=marked), VALIDATION)))
    return folds


class Case(NamedTuple):
    """One training run."""

    model: str
    seed: int
    fold: str


def cases(comparison: Comparison, folds: Sequence[Fold]) -> Iterator[Case]:
    """Yield every run, all models of one seed before the next seed."""
    for seed in range(comparison.seeds):
        for model in comparison.models:
            if seed == 0 or parse_model(model).kind not in WITHOUT_SEED:
                yield from (Case(model, seed, fold.name) for fold in folds)


def run_case(case: Case, comparison: Comparison, dataset: Dataset) -> dict[str, Any]:
    """Train and score one model; the result can be written as JSON."""
    kind, options = parse_model(case.model)
    config = TrainConfig(
        model=kind,
        options=options,
        time_budget_s=comparison.time_budget_s,
        epochs=comparison.epochs,
        seed=case.seed,
        threads=comparison.threads,
    )
    fitted = train(dataset, config)
    model = fitted.model.double()
    found = {name: e.scores for name, e in evaluate_views(model, dataset.role('test')).items()}
    views = {}
    for view in VIEWS:
        name = view
        while name not in found:
            name = SAME_AS[name]
        views[view] = {k: found[name][k] for k in (*KEYS, 'r2')}
    validation = evaluate_views(model, dataset.role('validation'))
    return {
        **case._asdict(),
        'train_s': fitted.description.provenance['train_s'],
        'steps': fitted.curve[-1].step if fitted.curve else 0,
        'validation_r2_mean': next(iter(validation.values())).scores['r2_mean'],
        'views': views,
    }


def compare(
    comparison: Comparison,
    folds: Sequence[Fold],
    out: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """
    Run all cases, one after the other, and return the table.

    Parameters
    ----------
    comparison : Comparison
        What to run.
    folds : sequence of Fold
        Of :func:`load_folds`.
    out : Path, optional
        JSON file written after every case. Cases that are in it already are not run again.
    progress : callable
        Gets one line before and after a case.

    Raises
    ------
    ValueError
        If the file belongs to a comparison on other data or with other settings.

    """
    settings = asdict(comparison)
    # These may grow from one call to the next.
    del settings['models'], settings['seeds']
    roles = ('train', 'validation', 'test')
    settings['samples_sha256'] = [fingerprint(f.dataset, roles) for f in folds]
    runs = _finished(out, settings)
    datasets = dict(folds)
    todo = list(cases(comparison, folds))
    for number, case in enumerate(todo, 1):
        label = f'[{number}/{len(todo)}] {case.model}, seed {case.seed}, {case.fold}'
        if case in runs:
            progress(f'{label}: finished before')
            continue
        progress(f'{label} ...')
        run = runs[case] = run_case(case, comparison, datasets[case.fold])
        if out is not None:
            _write(out, settings, runs)
        progress(f'{label}: R2 {_text(run["views"]["recorded"]["r2_mean"])} in {run["train_s"]} s')
    chosen = [runs[case] for case in todo]
    return {**settings, 'models': summarise(chosen), 'runs': chosen}


def _finished(out: Path | None, settings: dict[str, Any]) -> dict[Case, dict[str, Any]]:
    if out is None or not out.exists():
        return {}
    try:
        saved = json.loads(out.read_text(encoding='utf-8'))
        runs = {Case(r['model'], r['seed'], r['fold']): r for r in saved['runs']}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{out}: is no file of a comparison; name another one') from error
    changed = [k for k, v in settings.items() if saved.get(k) != v]
    if changed:
        raise ValueError(
            f'{out}: belongs to a comparison with another {", ".join(changed)}; name another file'
        )
    return runs


def _write(out: Path, settings: dict[str, Any], runs: dict[Case, dict[str, Any]]) -> None:
    every = list(runs.values())
    text = json.dumps({**settings, 'models': summarise(every), 'runs': every}, indent=1)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f'.{out.name}.tmp')
    temporary.write_text(text + '\n', encoding='utf-8')
    os.replace(temporary, out)


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return means over seeds and what was held out, by model, and the values behind them."""
    models: dict[str, Any] = {}
    for name in dict.fromkeys(run['model'] for run in runs):
        own = [run for run in runs if run['model'] == name]
        views = {view: _summary([run['views'][view] for run in own]) for view in VIEWS}
        recorded = views['recorded']
        models[name] = {
            **{key: recorded[key] for key in (*KEYS, 'r2')},
            'seeds': len({run['seed'] for run in own}),
            'train_s': _mean([run['train_s'] for run in own]),
            'r2_mean_by_seed': [
                _mean([run['views']['recorded']['r2_mean'] for run in own if run['seed'] == seed])
                for seed in sorted({run['seed'] for run in own})
            ],
            'views': views,
            'folds': {
                fold: {
                    view: _mean(
                        [run['views'][view]['r2_mean'] for run in own if run['fold'] == fold]
                    )
                    for view in VIEWS
                }
                for fold in dict.fromkeys(run['fold'] for run in own)
            },
        }
    return models


def _summary(scores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {key: _mean([s[key] for s in scores]) for key in KEYS}
    summary['r2'] = [_mean([s['r2'][joint] for s in scores]) for joint in scores[0]['r2']]
    return summary


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [v for v in values if v is not None]
    return float(np.mean(defined)) if defined else None


def table(data: dict[str, Any]) -> str:
    """Return the result for a person: means by view, then what was held out in turn."""
    width = max(len('model'), *map(len, data['models']))
    columns = (*VIEWS, 'moving', 'rest', 'seeds', 'train s')
    lines = [f'{"model":<{width}}' + ''.join(f'{c:>{max(len(c), 6) + 2}}' for c in columns)]
    for name, m in data['models'].items():
        values = [m['views'][view]['r2_mean'] for view in VIEWS]
        values += [m['r2_mean_moving'], m['r2_mean_rest']]
        cells = [*map(_text, values), str(m['seeds']), f'{m["train_s"]:.1f}']
        pairs = zip(cells, columns, strict=True)
        lines.append(f'{name:<{width}}' + ''.join(f'{x:>{max(len(c), 6) + 2}}' for x, c in pairs))
    folds = list(next(iter(data['models'].values()))['folds'])
    if len(folds) > 1:
        lines += ['', 'recorded, by what was held out']
        lines.append(' ' * width + ''.join(f'{f:>{max(len(f), 6) + 2}}' for f in folds))
        for name, m in data['models'].items():
            cells = [_text(m['folds'][f]['recorded']) for f in folds]
            pairs = zip(cells, folds, strict=True)
            lines.append(
                f'{name:<{width}}' + ''.join(f'{x:>{max(len(f), 6) + 2}}' for x, f in pairs)
            )
    return '\n'.join(lines)


def _text(value: float | None) -> str:
    return '-' if value is None else f'{value:.4f}'
