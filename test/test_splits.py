from dataclasses import replace
import itertools

from dlnn_ros.config import Robot
from dlnn_ros.data.observation import sample_path
from dlnn_ros.data.splits import assign_roles, GUARD_S, LEAD_S, MIN_SAMPLES
from dlnn_ros.data.trajectory import Dataset, Recording, Trajectory
from dlnn_ros.dynamics.architecture import make_config, Scales
from dlnn_ros.dynamics.kinds import make_model
from dlnn_ros.learning.evaluate import can_start
from dlnn_ros.learning.observation import context_at_samples
import numpy as np
import pytest

ROBOT = Robot('one', ('x',), ('revolute',))


def make(*parts):
    """Return a data set of (name, group, role, samples at 100 Hz)."""
    trajectories = []
    for name, group, role, n in parts:
        t = np.arange(n) * 0.01
        q = np.sin(t)[:, None]
        r = Recording(t, q, 3 * q, np.cos(t)[:, None], name=name, group=group, role=role)
        trajectories.append(Trajectory(r, q, np.cos(t)[:, None], -q, 'exact'))
    return Dataset(ROBOT, tuple(trajectories), 'made', ('note',))


def roles(dataset):
    return [(t.recording.name, t.recording.role) for t in dataset]


def test_prescribed_roles_are_kept():
    dataset = make(('a', '', 'test', 50), ('b', '', 'train', 50), ('c', '', 'validation', 50))
    assert assign_roles(dataset) is dataset


def test_last_groups_are_held_out():
    dataset = make(*((f'r{k}', '', '', 100) for k in range(6)))
    split = assign_roles(dataset)
    expected = ['train', 'train', 'train', 'train', 'validation', 'test']
    assert roles(split) == [(f'r{k}', role) for k, role in enumerate(expected)]
    assert split.notes == ('note',)


def test_repeats_stay_together():
    dataset = make(*((f'r{k}', f'g{k % 6}', '', 100) for k in range(18)))
    split = assign_roles(dataset)
    by_group = {}
    for t in split:
        by_group.setdefault(t.recording.group, set()).add(t.recording.role)
    held_out = {'g4': {'validation'}, 'g5': {'test'}}
    assert by_group == {**{f'g{k}': {'train'} for k in range(4)}, **held_out}


@pytest.mark.parametrize('share', [0.1, 0.2, 0.3])
def test_shares_are_met_by_whole_groups(share):
    dataset = make(*((f'r{k}', '', '', 101) for k in range(20)))
    split = assign_roles(dataset, validation=share, test=share)
    for role in ('validation', 'test'):
        assert len(split.role(role)) == round(20 * share)
    assert len(split.role('train')) == 20 - 2 * round(20 * share)


def test_a_long_group_is_not_all_that_is_held_out():
    dataset = make(*((f'r{k}', '', '', n) for k, n in enumerate((500, 500, 30, 900))))
    split = assign_roles(dataset)
    assert {t.recording.role for t in split} == {'train', 'validation', 'test'}


@pytest.mark.parametrize('groups', [1, 2])
def test_few_groups_are_cut_in_time(groups):
    dataset = make(*((f'r{k}', '', '', 1000) for k in range(groups)))
    split = assign_roles(dataset, validation=0.2, test=0.1)
    assert len(split) == 4 * groups
    parts = split.trajectories[:4]
    assert [p.recording.role for p in parts] == ['train', 'validation', 'train', 'test']
    for part, share in zip(parts, (0.35, 0.2, 0.35, 0.1), strict=True):
        assert part.valid.sum() == pytest.approx(1000 * share, abs=25)
        assert part.recording.group == 'r0'
        # Sliced, not differentiated anew: still exact up to the last sample.
        np.testing.assert_array_equal(part.qd[:, 0], np.cos(part.t))
        np.testing.assert_array_equal(part.recording.velocity, part.qd)
        np.testing.assert_array_equal(part.tau, 3 * part.q)
    for before, after in itertools.pairwise(parts):
        # 0.5 s guard or 2 percent, whichever is shorter.
        assert 0.19 < after.t[after.valid][0] - before.t[-1] < 0.25
    assert parts[-1].t[-1] == 9.99


@pytest.mark.parametrize('groups', [3, 5])
def test_some_groups_give_a_whole_test_and_a_cut_validation(groups):
    split = assign_roles(make(*((f'r{k}', '', '', 1000) for k in range(groups))))
    assert [t.recording.group for t in split.role('test')] == [f'r{groups - 1}']
    assert len(split.role('validation')) == groups - 1
    assert len(split.role('train')) == 2 * (groups - 1)


def test_no_role_takes_all_groups():
    dataset = make(*((f'r{k}', '', '', 100) for k in range(6)))
    split = assign_roles(dataset, validation=0.2, test=0.75)
    assert [t.recording.role for t in split][:2] == ['train', 'validation']


def test_only_missing_roles_are_given():
    dataset = make(('a', '', 'test', 100), *((f'r{k}', '', '', 100) for k in range(6)))
    split = assign_roles(dataset)
    assert [t.recording.role for t in split] == ['test', *['train'] * 5, 'validation']
    dataset = make(('a', '', 'test', 100), ('b', '', '', 1000))
    split = assign_roles(dataset)
    assert [t.recording.role for t in split] == ['test', 'train', 'validation', 'train']
    dataset = make(('a', '', 'test', 99), ('b', '', 'validation', 99), ('c', '', '', 99))
    assert [t.recording.role for t in assign_roles(dataset)] == ['test', 'validation', 'train']


def test_every_trajectory_ends_with_a_role():
    given = ('', 'train', 'validation', 'test')
    for first in given:
        for second in given:
            for more in range(4):
                parts = [('a', '', first, 300), ('b', '', second, 300)]
                parts += [(f'r{k}', '', '', 300) for k in range(more)]
                split = assign_roles(make(*parts))
                assert all(t.recording.role for t in split)


def test_too_short_recordings_are_not_cut():
    with pytest.raises(
        ValueError, match='a, the longest recording, has 40 samples, too few to cut out'
    ):
        assign_roles(make(('a', '', '', 40)))
    assert MIN_SAMPLES > 0.15 * 40


@pytest.mark.parametrize(('validation', 'test'), [(0, 0.1), (0.1, 0), (0.5, 0.5), (-1, 0.2)])
def test_shares_are_checked(validation, test):
    with pytest.raises(ValueError, match='must be positive and together below 1'):
        assign_roles(make(('a', '', '', 400)), validation, test)


# ---- what is kept before a cut


def cut_in_time(samples=6000):
    """Return one recording of a minute, uncut and cut into train, validation, train and test."""
    whole = make(('a', '', '', samples))
    t = whole.trajectories[0].t
    # Each effort tells which sample it is of.
    recording = replace(whole.trajectories[0].recording, tau=np.arange(samples)[:, None])
    q = 0.02 * np.sin(t)[:, None]
    trajectory = Trajectory(
        replace(recording, q=q), q, 0.02 * np.cos(t)[:, None], np.zeros_like(q), 'exact'
    )
    dataset = Dataset(ROBOT, (trajectory,), 'made')
    return trajectory, assign_roles(dataset)


def test_positions_before_a_cut_are_kept_but_not_valid():
    whole, split = cut_in_time()
    first, *later = split.trajectories
    assert first.valid.all()
    for part, before in zip(later, split.trajectories, strict=False):
        start = int(part.valid.argmax())
        assert part.valid[start:].all()
        assert not part.valid[:start].any()
        lead = part.t[start] - part.t[0]
        assert LEAD_S <= lead <= LEAD_S + GUARD_S + 0.02
        # The cut is a guard before what is valid, and the part before ends there.
        assert part.t[0] == pytest.approx(before.t[-1] - LEAD_S, abs=0.02)
        begin = round(part.t[0] * 100)
        np.testing.assert_array_equal(part.q, whole.q[begin : begin + len(part.t)])
        np.testing.assert_array_equal(part.t, whole.t[begin : begin + len(part.t)])
    # Where a recording has less before the cut, all of it is kept.
    short = cut_in_time(1000)[1].trajectories
    assert [part.t[0] for part in short[1:3]] == [0.0, 0.0]


def test_no_effort_is_in_two_parts():
    _, split = cut_in_time()
    seen = [
        frozenset(split_part.samples().tau[:, 0])
        for split_part in (replace(split, trajectories=(t,)) for t in split)
    ]
    assert sum(map(len, seen)) == len(frozenset.union(*seen))
    for role in ('train', 'validation', 'test'):
        samples = split.role(role).samples()
        assert len(samples.tau) == sum(int(t.valid.sum()) for t in split.role(role))
    # The guard is in none.
    assert 6000 - sum(map(len, seen)) == pytest.approx(3 * 100 * GUARD_S, abs=3)


def test_lead_in_bends_the_elements_as_the_whole_recording_does():
    model = memory_of_one_joint()
    whole, split = cut_in_time()

    def context(trajectory):
        return context_at_samples(model, sample_path(trajectory)).detach()

    along = context(whole)
    for part in split.trajectories[1:]:
        start = int(part.valid.argmax())
        k = round(part.t[start] * 100)
        np.testing.assert_allclose(
            context(part)[start:], along[k:][: len(part.t) - start], atol=1e-9
        )
        # Without the lead-in they would be unbent there.
        bare = Trajectory(
            replace(
                part.recording,
                **{
                    name: getattr(part.recording, name)[start:]
                    for name in ('t', 'q', 'tau', 'valid')
                },
                velocity=None,
            ),
            *(x[start:] for x in (part.q, part.qd, part.qdd)),
        )
        assert float((context(bare)[0] - along[k]).abs().max()) > 0.1


def memory_of_one_joint():
    options = {'memory': {'elements': [{'zeta': 1e-4}, {'zeta': 1e-3, 'slip_velocity': 0.01}]}}
    config = make_config('dlnn_memory', {'width': 4, 'depth': 1, **options}, 'test')
    return make_model('dlnn_memory', config, Scales(1.0, (1.0,), (1.0,), (1.0,)), (True,)).double()


def test_a_lead_in_is_not_started_from_its_effort():
    """The effort at its first sample is of another part."""
    _, split = cut_in_time()
    assert not any(can_start(part) for part in split.trajectories[1:])
