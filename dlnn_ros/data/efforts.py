"""Effort of a JointState topic by stamp, as a node published it: no position, no derivatives."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from pathlib import Path
from typing import NamedTuple

from dlnn_ros.data import cdr
from dlnn_ros.data.bag_files import open_files, read_chunks
import numpy as np


class Efforts(NamedTuple):
    """Header stamps and log times [ns], (K,), and effort, (K, n) or (K, 0) where it is empty."""

    stamps: np.ndarray
    log: np.ndarray
    effort: np.ndarray


def read_efforts(path: Path, topic: str, joints: Sequence[str]) -> Efforts:
    """
    Read the efforts of named joints from one topic of a rosbag2.

    Raises
    ------
    FileNotFoundError, ValueError
        One line that names the bag and what is wrong.

    """
    stamps, logs, efforts = [], [], []
    with contextlib.ExitStack() as stack:
        for _, raws, log in read_chunks(topic, open_files(path, stack)):
            for group in cdr.parse(raws):
                missing = [j for j in joints if j not in group.names]
                if missing:
                    raise ValueError(f'{path}: {topic} lacks the joints {", ".join(missing)}')
                stamps.append(group.stamps)
                logs.append(np.array(log, np.int64)[group.members])
                if group.effort.shape[1]:
                    columns = [group.names.index(j) for j in joints]
                    efforts.append(group.effort[:, columns])
                else:
                    efforts.append(np.empty((len(group.members), 0)))
    if not stamps:
        raise ValueError(f'{path}: no message on {topic}')
    order = np.argsort(np.concatenate(stamps), kind='stable')
    return Efforts(*(np.concatenate(a)[order] for a in (stamps, logs, efforts)))
