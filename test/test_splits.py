import itertools

from dlnn_ros.config import Robot
from dlnn_ros.data.splits import assign_roles, MIN_SAMPLES
from dlnn_ros.data.trajectory import Dataset, Recording, Trajectory
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
