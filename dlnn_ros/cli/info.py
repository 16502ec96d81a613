"""Say what a model is: joints, units, training range, scores."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dlnn_ros.config import to_mapping
from dlnn_ros.learning.model_folder import load_description, load_params, ModelDescription
import numpy as np

from .command import Result

HELP = 'say what a model is'

EFFORT = {
    'joint': 'joint-side torque, gravity included',
    'motor': 'motor-side torque, gravity included',
    'no_gravity': 'joint-side torque without gravity',
}
EQUATIONS = {
    'dlnn': 'tau = M(q) qdd + c(q, qd) + g(q) + d(q, qd), passive',
    'dlnn_memory': 'tau = M(q) qdd + c(q, qd) + g(q) + d(q, qd) + sum_j w_j y_j, passive',
    'ensemble': 'mean of several models of one kind, as passive as they are',
    'lnn': 'tau = M(q) qdd + c(q, qd) + g(q)',
    'mlp': 'tau = perceptron(sin q, cos q, qd, qdd, sign qd), no guarantee',
    'linear': 'tau = A [q, qd, qdd, ...], no guarantee',
    'linear_memory': 'tau = trigonometric M, V + friction laws + sum_j w_j y_j, passive friction',
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('model', help='model folder')


def run(args: argparse.Namespace) -> Result:
    """Run the command."""
    description = load_description(args.model)
    params = load_params(args.model, description)
    count = sum(a.size for a in params.values())
    robot = description.robot
    extent = description.training_range
    lines = [
        f'{Path(args.model)}: {description.kind}, {count} parameters',
        f'equation   {EQUATIONS.get(description.kind, "")}',
        f'robot      {robot.name}, gravity {list(robot.gravity)} m/s^2',
        f'effort     {EFFORT[robot.effort.kind]}',
        f'trained    on {description.provenance.get("samples")} samples of '
        f'{description.provenance.get("source")} at {description.rate_hz:.4g} Hz',
        f'derivatives {description.derivatives}',
        *_observation_lines(description),
        *_memory_lines(description, params),
    ]
    lines += [score_line(role, scores) for role, scores in description.metrics.items()]
    lines.append('joint, kind, training range of q, qd, qdd, effort:')
    for i, (joint, kind) in enumerate(zip(robot.joints, robot.kinds, strict=True)):
        ranges = '  '.join(
            f'[{r.lower[i]:.3g}, {r.upper[i]:.3g}]'
            for r in (extent.q, extent.qd, extent.qdd, extent.tau)
        )
        lines.append(f'  {joint}  {kind}  {ranges}')
    data = {
        'kind': description.kind,
        'joints': list(robot.joints),
        'parameters': count,
        'certificate': None,
        **{k: v for k, v in to_mapping(description).items() if k != 'kind'},
    }
    return Result(data, '\n'.join(lines))


def score_line(role: str, scores: dict[str, Any]) -> str:
    """Say the mean R2 of one part of the data in every view that was scored."""
    means = {scores.get('view', 'served'): scores.get('r2_mean')}
    means |= {k: v['r2_mean'] for k, v in scores.items() if isinstance(v, dict) and 'r2_mean' in v}
    texts = [f'{"-" if r2 is None else format(r2, ".4f")} {view}' for view, r2 in means.items()]
    return f'R2 {role:10s} {", ".join(texts)}'


def _observation_lines(description: ModelDescription) -> list[str]:
    lines = [f'effort     went through a {f}' for f in _filters(description)]
    if description.position_noise:
        noise = ', '.join(f'{x:.2g}' for x in description.position_noise)
        lines.append(f'noise      of the positions {noise} rad or m')
    return lines


def _filters(description: ModelDescription) -> list[str]:
    return list(description.provenance.get('observation_filter', []))


def _memory_lines(description: ModelDescription, params: dict[str, np.ndarray]) -> list[str]:
    """Say what the friction elements can hold, where their weights are constant."""
    memory = description.config.get('memory')
    if not memory or memory['weight_width']:
        return []
    zeta = [element['zeta'] for element in memory['elements']]
    learned = ', then learned' if memory['learned'] else ''
    weight = np.logaddexp(0.0, params['memory.raw_weight'].astype(float)).sum(1)
    held = description.scales['torque'] * weight / np.abs(description.robot.gear_ratio)
    return [
        f'memory     {len(zeta)} elements per joint, zeta {min(zeta):g} to {max(zeta):g}{learned}'
        f'; they hold up to {", ".join(f"{x:.3g}" for x in held)} in units of effort'
    ]
