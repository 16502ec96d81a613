"""
Which trajectory serves for learning, for choosing, for scoring.

Roles that a source prescribes are kept. Elsewhere whole groups (repeats of a motion together) are
held out where there are enough of them, since only another motion tells how a model does on
another motion; otherwise each trajectory is cut in time.
"""

from __future__ import annotations

from dataclasses import replace

from dlnn_ros.data.trajectory import Dataset, Trajectory
import numpy as np

# Left out between two parts of one trajectory: derivatives near a cut know both sides of it.
GUARD_S = 0.5
# Less than this cannot be scored in any useful way.
MIN_SAMPLES = 8
# Kept before a cut without being fitted or scored: positions that tell friction with memory what
# it comes from. No effort of another part is used.
LEAD_S = 10.0
# From so many groups on, the role takes whole ones: with fewer, training would lose too much.
GROUPS_FOR = {'test': 3, 'validation': 6}


def assign_roles(dataset: Dataset, validation: float = 0.15, test: float = 0.15) -> Dataset:
    """
    Give every trajectory a role; the trajectories given by roles already are left as they are.

    With three groups or more the last ones in order become 'test', with six or more those before
    them 'validation', each at least one group and as many as come closest to the share of the
    time. A role that takes no whole groups is cut out of every trajectory that is left: the end
    for 'test', the middle of the rest for 'validation' (recordings often end at rest, which tells
    little), with `GUARD_S` left out at each cut. Where the source prescribes some roles, only
    those that are missing are given to the rest, which otherwise is 'train'.

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
    shares = {'test': test, 'validation': validation}
    wanted = {role: share for role, share in shares.items() if role not in given}
    groups = list(dict.fromkeys(t.recording.group for t in free))
    whole = {role: share for role, share in wanted.items() if len(groups) >= GROUPS_FOR[role]}
    cut = {role: share for role, share in wanted.items() if role not in whole}
    roles = _roles_of_groups(free, groups, whole)
    trajectories: list[Trajectory] = []
    for t in dataset:
        role = t.recording.role or roles[t.recording.group]
        if t.recording.role or role != 'train' or not cut:
            trajectories.append(t.with_role(role))
        else:
            trajectories += _cut(t, cut) or [t.with_role(role)]
    missing = cut.keys() - {t.recording.role for t in trajectories}
    if missing:
        longest = max(free, key=lambda t: len(t.t)).recording
        raise ValueError(
            f'{dataset.source}: {longest.name}, the longest recording, has {len(longest.t)} '
            f'samples, too few to cut out a part for {" and ".join(sorted(missing))}; '
            'give more recordings or a longer one'
        )
    return replace(dataset, trajectories=tuple(trajectories))


def _roles_of_groups(
    free: list[Trajectory], groups: list[str], shares: dict[str, float]
) -> dict[str, str]:
    duration = {g: sum(_duration(t) for t in free if t.recording.group == g) for g in groups}
    total = sum(duration.values())
    left = list(groups)
    roles = {}
    reserved = 1 + len(shares)
    for role, share in shares.items():
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
    """Cut one trajectory into its parts; none where it is too short for them."""
    t = trajectory.t
    duration = _duration(trajectory)
    guard = min(GUARD_S, 0.02 * duration)
    test = shares.get('test', 0.0)
    validation = shares.get('validation', 0.0)
    middle = 0.5 * (1.0 - test)
    spans = [('train', 0.0, 1.0 - test)]
    if validation:
        start, stop = middle - 0.5 * validation, middle + 0.5 * validation
        spans = [('train', 0.0, start), ('validation', start, stop), ('train', stop, 1.0 - test)]
    if test:
        spans.append(('test', 1.0 - test, 1.0))
    parts = []
    for number, (role, start, stop) in enumerate(spans):
        used = np.ones(len(t), bool)
        keep = np.ones(len(t), bool)
        if number > 0:
            begin = t[0] + start * duration
            used = t >= begin + guard
            keep = t >= begin - LEAD_S
        if number < len(spans) - 1:
            keep &= t < t[0] + stop * duration
        if (used & keep).sum() < MIN_SAMPLES:
            return []
        parts.append(_slice(trajectory, keep, used, role))
    return parts


def _slice(trajectory: Trajectory, keep: np.ndarray, used: np.ndarray, role: str) -> Trajectory:
    r = trajectory.recording
    recording = replace(
        r,
        t=r.t[keep],
        q=r.q[keep],
        tau=r.tau[keep],
        velocity=None if r.velocity is None else r.velocity[keep],
        valid=(trajectory.valid & used)[keep],
        name=f'{r.name}[{role}]',
        role=role,
    )
    q, qd, qdd = (x[keep] for x in (trajectory.q, trajectory.qd, trajectory.qdd))
    return replace(trajectory, recording=recording, q=q, qd=qd, qdd=qdd)


def _duration(trajectory: Trajectory) -> float:
    return float(trajectory.t[-1] - trajectory.t[0])
