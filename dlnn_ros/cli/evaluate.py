"""Score a model on recorded motion and write report.html with plots."""

from __future__ import annotations

import argparse
from pathlib import Path

from .command import progress, Result
from .options import add_data, read_data, take_role

HELP = 'score a model on recorded motion'
ROLES = ('test', 'validation', 'train', 'all')


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument('model', help='model folder')
    add_data(parser)
    parser.add_argument(
        '--role', choices=ROLES, default='test', help='part of the data to score (default test)'
    )
    parser.add_argument('--report', help='HTML file to write (default report.html in the model)')


def run(args: argparse.Namespace) -> Result:
    """Run the command."""
    from dlnn_ros.learning.checkpoint import load_model
    from dlnn_ros.learning.evaluate import check_joints, evaluate_views, merge_scores
    from dlnn_ros.learning.model_folder import CURVE_FILE
    from dlnn_ros.learning.report import (
        curve_plot,
        effort_unit,
        paragraph,
        prediction_plots,
        score_table,
        text_table,
        view_table,
        write_report,
    )
    from dlnn_ros.learning.traces import share_seen

    model, description = load_model(args.model)
    dataset = read_data(args, default=description.robot)
    check_joints(dataset, description.robot)
    part = take_role(dataset, args.role)
    seen = share_seen(part, description.provenance.get('traces', []))
    if seen and args.role != 'train':
        progress(
            f'warning: {seen:.0%} of what the model was trained on is in this data; '
            'its scores say nothing about other data'
        )
    views = evaluate_views(model, part)
    filters = description.provenance.get('observation_filter')
    if filters and 'recorded' not in views and model.is_sharp:
        progress(
            f'note: the effort in training went through a {filters[0]}; these data do not say so '
            'of theirs, see --observation-cutoff-hz'
        )
    evaluation = next(iter(views.values()))
    scores = merge_scores(views)
    unit = effort_unit(dataset.robot.effort.kind)
    table = score_table(
        f'{description.kind} on {dataset.source}, {args.role}, '
        f'{scores["samples"]} samples, as {scores["view"]}; {part.trajectories[0].method}',
        scores,
        unit,
    )
    path = Path(args.report) if args.report else Path(args.model) / 'report.html'
    plots = [
        p
        for prediction in evaluation.predictions
        for p in prediction_plots(prediction, dataset.robot.joints, unit)
    ]
    by_view = view_table(views)
    about = paragraph(f'Derivatives: {part.trajectories[0].method}. Model: {args.model}.')
    plots += curve_plot(Path(args.model) / CURVE_FILE)
    write_report(
        path, f'{description.kind}: measured against predicted', [about, table, by_view, *plots]
    )
    data = {
        **scores,
        'model': args.model,
        'kind': description.kind,
        'role': args.role,
        'seen_in_training': seen,
        'report': str(path),
    }
    text = '\n'.join([text_table(table), text_table(by_view), f'report: {path}'])
    return Result(data, text)
