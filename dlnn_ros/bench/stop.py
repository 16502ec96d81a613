"""A picture of what models say around a stop, beside the measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dlnn_ros.data.trajectory import Dataset
from dlnn_ros.learning.checkpoint import load_model
from dlnn_ros.learning.evaluate import check_joints, predict_trajectory
from dlnn_ros.learning.report import effort_unit, Line, plot
from dlnn_ros.learning.stops import between, find_stop
import numpy as np

LABELS = {
    'dlnn': 'without memory',
    'dlnn_memory': 'with memory',
    'linear_memory': 'linear, with memory',
}


def stop_figure(
    models: Sequence[Path | str], dataset: Dataset, joints: Sequence[str], view: str = 'recorded'
) -> str:
    """
    Return SVG text: effort of some joints around the longest stop of a data set, in one view.

    Raises
    ------
    ValueError
        If no joint stops, or a joint or robot is another one.

    """
    known = dataset.robot.joints
    for joint in joints:
        if joint not in known:
            raise ValueError(f'no joint {joint!r}; there are {", ".join(known)}')
    found = [(find_stop(t), t) for t in dataset]
    stops = [(stop, t) for stop, t in found if stop is not None]
    if not stops:
        raise ValueError(f'{dataset.source}: no joint comes from motion to rest')
    (begin_s, end_s), trajectory = max(stops, key=lambda pair: pair[0][1] - pair[0][0])
    t = trajectory.t
    measured = np.where(trajectory.valid[:, None], trajectory.tau, np.nan)
    curves = [('measured', measured)]
    loaded = [(Path(folder), *load_model(folder)) for folder in models]
    kinds = [description.kind for _, _, description in loaded]
    for folder, model, description in loaded:
        check_joints(dataset, description.robot)
        prediction = predict_trajectory(
            model, trajectory, dataset.robot.gear_ratio, view, has_parts=False
        )
        kind = description.kind
        label = LABELS.get(kind, kind) if kinds.count(kind) == 1 else folder.name
        curves.append((label, prediction.effort))
    panels = []
    for joint in joints or known:
        i = known.index(joint)
        lines = [between(Line(label, t, y[:, i]), begin_s, end_s) for label, y in curves]
        panels.append((joint, lines))
    unit = effort_unit(dataset.robot.effort.kind)
    return plot(panels, f'effort [{unit}]', trajectory.recording.name)
