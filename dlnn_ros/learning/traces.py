"""
Traces of the training data in a model, by which a recording that it was trained on is recognised.

A score on data that the model has seen says nothing about other data, and a file name does not
tell: bags are copied, cut and renamed.  So a model keeps short checksums of a few hundred of its
training samples, position and effort as recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
import hashlib

from dlnn_ros.data.trajectory import Dataset
import numpy as np

COUNT = 256
# A joint at rest can give the same reading in two recordings; a cut-out part gives many.
MIN_FOUND = 3


def traces(dataset: Dataset) -> list[str]:
    """Return checksums of up to `COUNT` samples, evenly spread."""
    rows = _rows(dataset)
    chosen = np.unique(np.linspace(0, len(rows) - 1, COUNT).astype(int))
    return [_checksum(rows[k]) for k in chosen]


def share_seen(dataset: Dataset, known: Sequence[str]) -> float:
    """Return the share of known traces that are found in a data set; 0 where it is chance."""
    present = {_checksum(row) for row in _rows(dataset)}
    found = sum(trace in present for trace in known)
    return found / len(known) if found >= MIN_FOUND else 0.0


def _rows(dataset: Dataset) -> np.ndarray:
    return np.concatenate(
        [np.hstack([t.recording.q, t.tau])[t.valid] for t in dataset], dtype=float
    )


def _checksum(row: np.ndarray) -> str:
    return hashlib.blake2b(row.tobytes(), digest_size=6).hexdigest()
