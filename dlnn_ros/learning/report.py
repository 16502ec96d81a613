"""
Reports that people look at: one self-contained HTML file with tables and plots.

Plots are embedded SVG, so that the file can be mailed and opened anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import html
import io
import os
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
import numpy as np

from .evaluate import Evaluation, Prediction

MAX_POINTS = 4000  # of one line in a plot; more only makes the file heavy

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { border: 1px solid #bbb; padding: .25rem .6rem; text-align: right }
th:first-child, td:first-child { text-align: left }
caption { text-align: left; font-weight: 600 }
svg { max-width: 100%; height: auto }
"""


class Line(NamedTuple):
    """One curve of a plot."""

    label: str
    t: np.ndarray
    y: np.ndarray


class Table(NamedTuple):
    """A table: caption, head, rows; numbers are formatted, None is shown as a dash."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]


def format_cell(value: Any) -> str:
    """Format one cell for a person."""
    if value is None:
        return '-'
    if isinstance(value, float):
        if not np.isfinite(value):
            return '-'
        return f'{value:.4f}' if 1e-3 <= abs(value) < 1e4 or value == 0 else f'{value:.3g}'
    return str(value)


def text_table(table: Table) -> str:
    """Return the table as aligned text for a terminal."""
    cells = [[str(h) for h in table.head]]
    cells += [[format_cell(v) for v in row] for row in table.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.head))]
    lines = [
        '  '.join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return '\n'.join([table.caption, *lines])


def html_table(table: Table) -> str:
    """Return the table as HTML."""
    head = ''.join(f'<th>{html.escape(str(h))}</th>' for h in table.head)
    body = ''.join(
        '<tr>' + ''.join(f'<td>{html.escape(format_cell(v))}</td>' for v in row) + '</tr>'
        for row in table.rows
    )
    return f'<table><caption>{html.escape(table.caption)}</caption><tr>{head}</tr>{body}</table>'


def plot(panels: Sequence[tuple[str, Sequence[Line]]], ylabel: str, title: str = '') -> str:
    """
    Draw one panel per entry, one above the other with a common time axis, as SVG text.

    Parameters
    ----------
    panels : sequence of (name, lines)
        Usually one per joint.
    ylabel : str
        With the unit.
    title : str
        Above the first panel.

    """
    figure = Figure(figsize=(11, 0.6 + 1.7 * len(panels)), layout='tight')
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for axis, (name, lines) in zip(axes[:, 0], panels, strict=True):
        for line in lines:
            stride = max(1, len(line.t) // MAX_POINTS)
            axis.plot(line.t[::stride], line.y[::stride], linewidth=0.9, label=line.label)
        axis.set_ylabel(f'{name}\n{ylabel}', fontsize=8)
        axis.grid(alpha=0.3)
    axes[0, 0].set_title(title, fontsize=10, loc='left')
    # Above the panel, where it covers nothing.
    axes[0, 0].legend(fontsize=8, loc='lower right', bbox_to_anchor=(1, 1), ncols=7)
    axes[-1, 0].set_xlabel('time [s]')
    buffer = io.StringIO()
    figure.savefig(buffer, format='svg')
    svg = buffer.getvalue()
    return svg[svg.index('<svg') :]


def score_table(caption: str, scores: dict[str, Any], unit: str) -> Table:
    """Return the scores of :func:`~.metrics.summary` by joint and on average."""
    keys = ('r2', 'nmse', 'rmse', 'r2_moving', 'r2_rest')
    rows = [[joint, *(scores[k][joint] for k in keys)] for joint in scores['r2']]
    means = [scores[k] for k in ('r2_mean', 'nmse_mean')]
    rows.append(['mean', *means, None, scores['r2_mean_moving'], scores['r2_mean_rest']])
    return Table(caption, ('joint', 'R2', 'NMSE', f'RMSE [{unit}]', 'R2 moving', 'R2 rest'), rows)


VIEWS = {
    'recorded': 'as the recording shows it, through its low-pass',
    'served': 'as served: memory causal, unfiltered',
    'recorded_started': 'as recorded, started from the torque of the first sample',
    'served_started': 'as served, started from the torque of the first sample',
}


def view_table(views: Mapping[str, Evaluation]) -> Table:
    """Return the mean scores of every view of :func:`~.evaluate.evaluate_views`."""
    keys = ('r2_mean', 'nmse_mean', 'r2_mean_moving', 'r2_mean_rest')
    rows = [[VIEWS[name], *(e.scores[k] for k in keys)] for name, e in views.items()]
    return Table(
        'Mean over the joints by view',
        ('the torque is taken', 'R2', 'NMSE', 'R2 moving', 'R2 rest'),
        rows,
    )


def prediction_plots(prediction: Prediction, joints: Sequence[str], unit: str) -> list[str]:
    """Plot measured against predicted effort and, where there is one, the component split."""
    trajectory = prediction.trajectory
    t, valid = trajectory.t, trajectory.valid
    measured = np.where(valid[:, None], trajectory.tau, np.nan)
    plots = [
        plot(
            [
                (
                    joint,
                    [
                        Line('measured', t, measured[:, i]),
                        Line('predicted', t, prediction.effort[:, i]),
                    ],
                )
                for i, joint in enumerate(joints)
            ],
            f'effort [{unit}]',
            trajectory.recording.name,
        )
    ]
    if prediction.components:
        plots.append(
            plot(
                [
                    (joint, [Line(c, t, x[:, i]) for c, x in prediction.components.items()])
                    for i, joint in enumerate(joints)
                ],
                f'effort [{unit}]',
                f'{trajectory.recording.name}: components',
            )
        )
    return plots


def curve_plot(curve: Path) -> list[str]:
    """Plot loss and validation score of a training run from its `curve.csv`, if it is there."""
    if not curve.is_file():
        return []
    table = np.loadtxt(curve, delimiter=',', skiprows=1, ndmin=2)
    starts = [table[table[:, 0] == k] for k in np.unique(table[:, 0])]

    def lines(column: int) -> list[Line]:
        return [Line(f'start {k}', part[:, 2], part[:, column]) for k, part in enumerate(starts)]

    return [plot([('loss', lines(3)), ('validation', lines(4))], 'score', 'training')]


def write_report(path: Path, title: str, parts: Sequence[str | Table]) -> Path:
    """
    Write an HTML report; a file is there whole or not at all.

    Parameters
    ----------
    path : Path
        Destination; its folder is made.
    title : str
        Heading.
    parts : sequence of str or Table
        SVG or HTML text as it is, tables as such.

    """
    body = '\n'.join(html_table(p) if isinstance(p, Table) else p for p in parts)
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<title>{html.escape(title)}</title><style>{STYLE}</style></head>'
        f'<body><h1>{html.escape(title)}</h1>\n{body}\n</body></html>\n'
    )
    return write_text(path, text)


def write_text(path: Path, text: str) -> Path:
    """Write a file whole or not at all; its folder is made."""
    if path.is_dir():
        raise ValueError(f'{path}: is a folder, expected a file to write')
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.name}.tmp')
    temporary.write_text(text, encoding='utf-8')
    os.replace(temporary, path)
    return path


def paragraph(text: str) -> str:
    """Return text as an HTML paragraph."""
    return f'<p>{html.escape(text)}</p>'


def effort_unit(effort_kind: str) -> str:
    """Return the unit of effort for tables and plots."""
    return 'N m, motor side' if effort_kind == 'motor' else 'N m'
