"""
Which trajectory serves for learning, for choosing, for scoring.

Roles that a source prescribes are kept. Where there are none, whole groups (repeats of a motion
together) are given away when there are at least three; otherwise each trajectory is cut in time.
"""

from __future__ import annotations

from dataclasses import replace
import math

from dlnn_ros.data.trajectory import Dataset, Trajectory
import numpy as np

# Left out between two parts of one trajectory: derivatives near a cut know both sides of it.
GUARD_S = 0.5
# Less than this cannot be scored in any useful way.
MIN_SAMPLES = 8


def assign_roles(dataset: Dataset, validation: float = 0.15, test: float = 0.15) -> Dataset:
    """
    Give every trajectory a role; the trajectories given by roles already are left as they are.

    With three groups or more, the last ones in order become 'test' and those before them
    'validation', each at least one group and as many as come closest to the share of the time.
    With one or two, every trajectory is cut into contiguous blocks, first 'train', then
    'validation', then 'test', with `GUARD_S` left out at each cut. Where the source prescribes
    some roles, only those that are missing are given to the rest, which otherwise is 'train'.

    Parameters
    ----------
    dataset : Dataset
        Trajectories with or without roles.
    validation, test : float
        Shares of the time, each in (0, 1), together below 1.

    Raises
    ------
    ValueError
        A share out of range, or trajectories too short to be cut.

    """
    if not (0 < validation < 1 and 0 < test < 1 and validation + test < 1):
        raise ValueError(
            f'shares validation {validation:g} and test {test:g} must be positive and '
            'together below 1'
        )
    free = [t for t in dataset if not t.recording.role]
    if not free:
        return dataset
    given = {t.recording.role for t in dataset} - {''}
    shares = {'test': 0.0 if 'test' in given else test}
    shares['validation'] = 0.0 if 'validation' in given else validation
    wanted = sum(share > 0 for share in shares.values())
    groups = list(dict.fromkeys(t.recording.group for t in free))
    if len(groups) > wanted:
        roles = _roles_of_groups(free, groups, shares)
        parts = {id(t): [t.with_role(roles[t.recording.group])] for t in free}
    else:
        parts = {id(t): _cut(t, shares) for t in free}
    trajectories = tuple(p for t in dataset for p in parts.get(id(t), [t]))
    return replace(dataset, trajectories=trajectories)


def _roles_of_groups(
    free: list[Trajectory], groups: list[str], shares: dict[str, float]
) -> dict[str, str]:
    duration = {g: sum(_duration(t) for t in free if t.recording.group == g) for g in groups}
    total = sum(duration.values())
    left = list(groups)
    roles = {}
    reserved = 1 + sum(share > 0 for share in shares.values())
    for role, share in shares.items():
        if share == 0:
            continue
        reserved -= 1
        taken = 0.0
        # The first group is always taken; a further one only if it comes closer to the share.
        while len(left) > reserved:
            after = taken + duration[left[-1]]
            if taken and abs(after - share * total) >= abs(taken - share * total):
                break
            taken = after
            roles[left.pop()] = role
    return {**dict.fromkeys(left, 'train'), **roles}


def _cut(trajectory: Trajectory, shares: dict[str, float]) -> list[Trajectory]:
    t = trajectory.t
    ends = 1 - shares['test'] - shares['validation'], 1 - shares['test'], 1.0
    guard = min(GUARD_S, 0.02 * _duration(trajectory))
    parts = []
    start = -math.inf
    for role, end in zip(('train', 'validation', 'test'), ends, strict=True):
        if role != 'train' and shares[role] == 0:
            continue
        stop = t[0] + end * (t[-1] - t[0])
        stop = math.inf if end == 1.0 else stop
        keep = (t >= start) & (t < stop)
        start = stop + guard
        if keep.sum() < MIN_SAMPLES:
            raise ValueError(
                f'{trajectory.recording.name}: {len(t)} samples are too few to be cut into '
                f'train, validation and test ({int(keep.sum())} for {role}); '
                'give more recordings or a longer one'
            )
        parts.append(_slice(trajectory, keep, role))
    return parts


def _slice(trajectory: Trajectory, keep: np.ndarray, role: str) -> Trajectory:
    r = trajectory.recording
    recording = replace(
        r,
        t=r.t[keep],
        q=r.q[keep],
        tau=r.tau[keep],
        velocity=None if r.velocity is None else r.velocity[keep],
        valid=trajectory.valid[keep],
        name=f'{r.name}[{role}]',
        role=role,
    )
    q, qd, qdd = (x[keep] for x in (trajectory.q, trajectory.qd, trajectory.qdd))
    return replace(trajectory, recording=recording, q=q, qd=qd, qdd=qdd)


def _duration(trajectory: Trajectory) -> float:
    return float(trajectory.t[-1] - trajectory.t[0])
