import contextlib
import math
from pathlib import Path
import shutil
import subprocess
import sys

from dlnn_ros.config import Effort, Robot
from dlnn_ros.data import bag_files, cdr
from dlnn_ros.data.bags import MIN_SAMPLES, read_bag, read_bag_with_report, STORAGES, write_bag
from dlnn_ros.data.derivatives import differentiate
from dlnn_ros.data.trajectory import Recording, RecordingSet
import numpy as np
import pytest
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import get_types_from_msg, get_typestore, Stores

STORE = get_typestore(Stores.ROS2_HUMBLE)
JOINT_STATE = 'sensor_msgs/msg/JointState'
NAMES = tuple(f'A{k}' for k in range(1, 8))
ROBOT = Robot('arm', NAMES, ('revolute',) * 7)
N = 200
T = np.arange(N) * 0.004
START = 1_700_000_000 * 10**9


def wave(t, n=7):
    return np.sin(t[:, None] * np.arange(1, n + 1) + np.arange(n))


def message(stamp_ns, names, position, velocity=(), effort=(), frame='', is_little=True):
    types = STORE.types
    stamp = types['builtin_interfaces/msg/Time'](int(stamp_ns // 10**9), int(stamp_ns % 10**9))
    header = types['std_msgs/msg/Header'](stamp, frame)
    numbers = (np.array(x, float) for x in (position, velocity, effort))
    joint_state = types[JOINT_STATE](header, list(names), *numbers)
    return bytes(STORE.serialize_cdr(joint_state, JOINT_STATE, little_endian=is_little))


def stamps(t=T):
    return START + np.rint(t * 1e9).astype(np.int64)


def messages(t=T, names=NAMES):
    q = wave(t)
    return [message(s, names, q[k], 2 * q[k], 3 * q[k]) for k, s in enumerate(stamps(t).tolist())]


def save(path, raws, log=None, topic='/joint_states', storage='mcap', mode=None, others=()):
    """Write raw messages; `others` are (topic, messages)."""
    plugin = StoragePlugin.MCAP if storage == 'mcap' else StoragePlugin.SQLITE3
    writer = Writer(path, version=8, storage_plugin=plugin)
    if mode is not None:
        writer.set_compression(mode, CompressionFormat.ZSTD)
    most = max(len(content) for content in (raws, *(c for _, c in others)))
    log = stamps(np.arange(most) * 0.004).tolist() if log is None else log
    with writer:
        for name, content in ((topic, raws), *others):
            connection = writer.add_connection(name, JOINT_STATE, typestore=STORE)
            for time, raw in zip(log, content, strict=False):
                writer.write(connection, time, raw)
    return path


def check_clean(recording_set, t=T):
    (r,) = recording_set.recordings
    assert recording_set.robot.joints == NAMES
    np.testing.assert_allclose(r.t - r.t[0], t - t[0], atol=2e-9)
    np.testing.assert_array_equal(r.q, wave(t))
    np.testing.assert_array_equal(r.velocity, 2 * wave(t))
    np.testing.assert_array_equal(r.tau, 3 * wave(t))
    assert r.valid.all()


@pytest.mark.parametrize('is_little', [True, False])
@pytest.mark.parametrize('frame', ['', 'base', 'base_link'])
@pytest.mark.parametrize('fields', ['pve', 'p', 'pe', 've', ''])
@pytest.mark.parametrize('names', [('a', 'bcd'), ('joint_1', 'joint_10', 'x')])
def test_parser_agrees_with_the_serialiser(is_little, frame, fields, names, rng):
    numbers = [rng.normal(size=len(names)) if f in fields else [] for f in 'pve']
    raw = message(123_000_000_456, names, *numbers, frame=frame, is_little=is_little)
    (group,) = cdr.parse([raw] * 3)
    assert group.names == names
    assert group.stamps.tolist() == [123_000_000_456] * 3
    for got, expected in zip(group[3:], numbers, strict=True):
        np.testing.assert_array_equal(got[2], expected)


def test_parser_ignores_garbage_in_padding():
    raw = bytearray(message(5, ('a', 'bc'), [1, 2], [3, 4], [5, 6]))
    other = bytearray(raw)
    at = raw.index(b'a\0') + 2
    assert raw[at : at + 2] == b'\0\0'
    other[at : at + 2] = b'\xab\xcd'
    (group,) = cdr.parse([bytes(raw), bytes(other)])
    assert len(group.members) == 2


def test_mixed_layouts_come_back_complete(rng):
    raws, expected = [], []
    for k in range(300):
        names = list(rng.permutation(NAMES)) if k % 3 else list(NAMES)
        raws.append(message(k, names, rng.normal(size=7), [], []))
        expected.append(tuple(names))
    groups = cdr.parse(raws)
    got = {int(k): g.names for g in groups for k in g.members}
    assert [got[k] for k in range(300)] == expected
    assert sum(len(g.members) for g in groups) == 300


@pytest.mark.parametrize('cut', [2, 8, 14, 40, -9])
def test_broken_bytes_are_refused(cut):
    raw = message(5, NAMES, range(7), range(7), range(7))
    with pytest.raises(ValueError, match='not a sensor_msgs/JointState'):
        cdr.read_layout(raw[:cut])
    with pytest.raises(ValueError, match='bytes too many'):
        cdr.read_layout(raw + b'\0' * 9)
    with pytest.raises(ValueError, match=r'not plain CDR|not a sensor_msgs'):
        cdr.read_layout(b'\0\7' + raw[2:])


@pytest.mark.parametrize('storage', STORAGES)
@pytest.mark.parametrize('mode', [None, CompressionMode.FILE, CompressionMode.MESSAGE])
def test_every_storage_and_compression_reads_the_same(tmp_path, storage, mode):
    if mode is CompressionMode.MESSAGE and storage == 'mcap':
        mode = CompressionMode.STORAGE  # zstd chunks, the way of mcap
    path = save(tmp_path / 'a bag', messages(), storage=storage, mode=mode)
    check_clean(read_bag(path))
    (path / 'metadata.yaml').unlink()
    check_clean(read_bag(path))
    (file,) = path.iterdir()
    check_clean(read_bag(file))


def test_folder_without_data_files(tmp_path):
    path = save(tmp_path / 'bag', messages())
    (path / 'bag.mcap').unlink()
    with pytest.raises(ValueError, match=r'metadata.yaml lists bag.mcap: not there'):
        read_bag(path)
    (path / 'metadata.yaml').unlink()
    with pytest.raises(ValueError, match=r'no \.mcap or \.db3 file in this folder'):
        read_bag(path)
    with pytest.raises(FileNotFoundError, match='no such bag'):
        read_bag(tmp_path / 'none')


def test_broken_metadata_names_the_repair(tmp_path):
    path = save(tmp_path / 'bag', messages())
    (path / 'metadata.yaml').write_text('hello: 1')
    with pytest.raises(ValueError, match='ros2 bag reindex'):
        read_bag(path)


@pytest.mark.parametrize('storage', STORAGES)
@pytest.mark.parametrize('share', [0.0, 0.6, 0.61, 0.9])
def test_cut_files_are_said_to_be_cut(tmp_path, storage, share):
    path = save(tmp_path / 'bag', messages(), storage=storage)
    file = next(p for p in path.iterdir() if p.suffix != '.yaml')
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    match = 'is empty' if share == 0 else 'truncated at byte|cannot be read|damaged'
    with pytest.raises(ValueError, match=match) as error:
        read_bag(path)
    assert str(file) in str(error.value)
    assert '\n' not in str(error.value)


def test_only_the_magic_and_other_files(tmp_path):
    file = tmp_path / 'x.mcap'
    file.write_bytes(bag_files.MCAP_MAGIC)
    with pytest.raises(ValueError, match=r'truncated at byte 8.*mcap recover'):
        read_bag(file)
    file.write_bytes(b'something else entirely')
    with pytest.raises(ValueError, match='not an MCAP file'):
        read_bag(file)
    (tmp_path / 'x.db3').write_bytes(b'something else entirely')
    with pytest.raises(ValueError, match='not an SQLite file'):
        read_bag(tmp_path / 'x.db3')
    (tmp_path / 'x.csv').write_text('a,b')
    with pytest.raises(ValueError, match='neither a rosbag2 folder nor'):
        read_bag(tmp_path / 'x.csv')
    (tmp_path / 'y.mcap.zstd').write_bytes(b'something else entirely')
    with pytest.raises(ValueError, match='cannot be decompressed'):
        read_bag(tmp_path / 'y.mcap.zstd')


def test_corrupt_bytes_inside_never_give_a_traceback(tmp_path, rng):
    path = save(tmp_path / 'bag', messages()[:60])
    file = path / 'bag.mcap'
    content = file.read_bytes()
    outcomes = set()
    for _ in range(60):
        broken = bytearray(content)
        for at in rng.integers(20, len(content) - 40, 20):
            broken[at] = rng.integers(256)
        file.write_bytes(bytes(broken))
        try:
            read_bag(path)
            outcomes.add('read')
        except ValueError as error:
            outcomes.add('refused' if '\n' not in str(error) else 'many lines')
    assert 'refused' in outcomes
    assert 'many lines' not in outcomes


def split_bag(tmp_path, starts, storage='mcap'):
    """Return a folder of splits, each of N samples from its start [s], with metadata."""
    folder = tmp_path / 'split'
    folder.mkdir()
    files = []
    for k, start in enumerate(starts):
        t = T + start
        part = save(tmp_path / f'bag_{k}', messages(t), log=stamps(t).tolist(), storage=storage)
        file = next(p for p in part.iterdir() if p.suffix != '.yaml')
        files.append(f'split_{k}{file.suffix}')
        shutil.move(file, folder / files[-1])
        text = (part / 'metadata.yaml').read_text()
    name = next(line for line in text.splitlines() if line.strip().startswith('- bag_'))
    listed = '\n'.join(name.replace(name.strip()[2:], f) for f in files)
    (folder / 'metadata.yaml').write_text(text.replace(name, listed))
    return folder


@pytest.mark.parametrize('storage', STORAGES)
def test_splits_are_read_in_order_of_time(tmp_path, storage):
    folder = split_bag(tmp_path, [0.8 * k for k in (5, 3, 10, 0)], storage)
    recordings = read_bag(folder).recordings
    np.testing.assert_allclose([r.t[0] for r in recordings], [0, 2.4, 4.0, 8.0], atol=1e-6)
    assert [r.name for r in recordings] == [f'split#{k}' for k in range(4)]


def test_splits_without_a_gap_are_one_recording(tmp_path):
    folder = split_bag(tmp_path, [0.8 * k for k in range(12)])
    (folder / 'metadata.yaml').unlink()  # so that _10 comes before _2
    (r,) = read_bag(folder).recordings
    assert len(r.t) == 12 * N
    np.testing.assert_allclose(np.diff(r.t), 0.004, atol=2e-9)


def test_missing_split_is_named(tmp_path):
    folder = split_bag(tmp_path, [0, 1, 2])
    (folder / 'split_1.mcap').unlink()
    with pytest.raises(ValueError, match=r'lists split_1.mcap: not there.*one by one'):
        read_bag(folder)


@pytest.mark.parametrize('name', ['x.bag', 'x.bag.active'])
def test_ros1_bags_name_the_conversion(tmp_path, name):
    (tmp_path / name).write_bytes(b'#ROSBAG V2.0\n')
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(ValueError, match=r'ROS 1 bag.*rosbags-convert --src') as error:
            read_bag(path)
        assert ('rosbag reindex' in str(error.value)) == name.endswith('active')


@pytest.mark.data
def test_real_ros1_bag_names_the_conversion(data_dir):
    with pytest.raises(ValueError, match=r'ROS 1 bag.*rosbags-convert --src'):
        read_bag(data_dir / 'pr2_ros1_bag' / 'joint_states_indexed.bag')


@pytest.mark.slow
def test_named_conversion_works(tmp_path):
    from rosbags.rosbag1 import Writer as Writer1

    store = get_typestore(Stores.ROS1_NOETIC)
    types = store.types
    with Writer1(tmp_path / 'x.bag') as writer:
        connection = writer.add_connection('/joint_states', JOINT_STATE, typestore=store)
        for k, s in enumerate(stamps().tolist()):
            stamp = types['builtin_interfaces/msg/Time'](s // 10**9, s % 10**9)
            header = types['std_msgs/msg/Header'](seq=k, stamp=stamp, frame_id='')
            q = wave(T[k : k + 1])[0]
            js = types[JOINT_STATE](header, list(NAMES), q, 2 * q, 3 * q)
            writer.write(connection, s, bytes(store.serialize_ros1(js, JOINT_STATE)))
    with pytest.raises(ValueError, match='rosbags-convert') as error:
        read_bag(tmp_path / 'x.bag')
    options = str(error.value).split('rosbags-convert ')[1].split()
    tool = Path(sys.executable).parent / 'rosbags-convert'
    subprocess.run([tool, *options], check=True, capture_output=True)
    check_clean(read_bag(options[-1]))


def test_old_rosbags_is_refused_by_version(tmp_path, monkeypatch):
    import rosbags.rosbag2

    path = save(tmp_path / 'bag', messages())
    monkeypatch.setattr(rosbags.rosbag2, 'Reader', type('Reader', (), {}))
    with pytest.raises(
        ImportError, match=r"cannot read single files; pip install 'rosbags>=0.11'"
    ):
        read_bag(path)


def test_topics_without_messages_and_absent_ones_are_told_apart(tmp_path):
    path = save(tmp_path / 'bag', [], others=[('/arm/joint_states', messages())])
    with pytest.raises(ValueError, match=r'/joint_states is in the bag but has 0 messages'):
        read_bag(path, topic='/joint_states')
    with pytest.raises(ValueError, match=r'/x is not in the bag; .*/arm/joint_states \(200'):
        read_bag(path, topic='x')
    check_clean(read_bag(path))  # the only one with messages
    check_clean(read_bag(path, topic='arm/joint_states'))


def test_several_topics_must_be_named(tmp_path):
    path = save(tmp_path / 'bag', messages(), topic='/a', others=[('/b', messages())])
    with pytest.raises(ValueError, match=r'several JointState topics.*/a \(200.*/b \(200'):
        read_bag(path)


def test_bags_without_messages(tmp_path):
    path = save(tmp_path / 'none', [])
    with pytest.raises(ValueError, match='no messages in this bag'):
        read_bag(path)
    for n in (1, MIN_SAMPLES - 1):
        path = save(tmp_path / f'{n}', messages(T[:n]))
        with pytest.raises(ValueError, match=f'no stretch of {MIN_SAMPLES} samples.* {n} mess'):
            read_bag(path)


@pytest.mark.parametrize('storage', STORAGES)
def test_unknown_types_beside_the_topic_do_not_matter(tmp_path, storage):
    store = get_typestore(Stores.ROS2_HUMBLE)
    store.register(get_types_from_msg('float64 x', 'vendor_msgs/msg/Secret'))
    plugin = StoragePlugin.MCAP if storage == 'mcap' else StoragePlugin.SQLITE3
    with Writer(tmp_path / 'bag', version=8, storage_plugin=plugin) as writer:
        for k in range(3):
            other = writer.add_connection(
                f'/secret{k}',
                'vendor_msgs/msg/Secret',
                typestore=store,
                serialization_format='cdr',
            )
            writer.write(other, START, b'\0\1\0\0\xff')
        # A definition without text, as some recorders write it.
        connection = writer.add_connection(
            '/joint_states', JOINT_STATE, msgdef=' ', rihs01='RIHS01_0'
        )
        for time, raw in zip(stamps().tolist(), messages(), strict=True):
            writer.write(connection, time, raw)
    check_clean(read_bag(tmp_path / 'bag'))
    with pytest.raises(ValueError, match='is of type vendor_msgs/msg/Secret'):
        read_bag(tmp_path / 'bag', topic='/secret0')


def test_wrong_bytes_on_the_topic_are_refused(tmp_path):
    path = save(tmp_path / 'bag', [b'\0\1\0\0garbage and more of it, 40 bytes at least'] * 30)
    with pytest.raises(ValueError, match=r'/joint_states: not a sensor_msgs/JointState'):
        read_bag(path)


def test_order_of_names_may_change_in_every_message(tmp_path, rng):
    raws = []
    for k, s in enumerate(stamps().tolist()):
        order = rng.permutation(7) if k else np.arange(7)
        q = wave(T[k : k + 1])[0][order]
        raws.append(message(s, np.array(NAMES)[order], q, 2 * q, 3 * q))
    check_clean(read_bag(save(tmp_path / 'bag', raws)))
    # The check has teeth: by index the result would differ.
    groups = cdr.parse(raws)
    assert any(g.names != NAMES for g in groups)


def test_extra_joints_are_ignored(tmp_path):
    raws = []
    for k, s in enumerate(stamps().tolist()):
        q = wave(T[k : k + 1])[0]
        names = ['wheel', *NAMES, 'finger']
        raws.append(message(s, names, [k * 1e3, *q, 0], [0, *2 * q, 0], [np.nan, *3 * q, np.nan]))
    check_clean(read_bag(save(tmp_path / 'bag', raws), robot=ROBOT))


def test_layout_may_change_at_run_time(tmp_path):
    raws = []
    for k, s in enumerate(stamps().tolist()):
        q = wave(T[k : k + 1])[0]
        if 60 <= k < 120:
            raws.append(message(s, NAMES, q, 2 * q, 3 * q))
            continue
        order = slice(None) if k < 60 else slice(None, None, -1)
        names = ['finger1', 'finger2', *NAMES][order]
        raws.append(message(s, names, *([*[9, 9], *x][order] for x in (q, 2 * q, 3 * q))))
    path = save(tmp_path / 'bag', raws)
    check_clean(read_bag(path, robot=ROBOT))
    with pytest.raises(ValueError, match=r'different sets of joints.*lacks finger1.*--robot'):
        read_bag(path)


def test_missing_joints_are_listed_with_those_seen(tmp_path):
    raws = messages(names=tuple(f'left_{name}' for name in NAMES))
    with pytest.raises(ValueError, match=r"A1, A2.* of robot 'arm'.*they have left_A1, left_A2"):
        read_bag(save(tmp_path / 'bag', raws), robot=ROBOT)


def test_publishers_with_a_part_each_are_refused(tmp_path):
    raws = []
    for k, s in enumerate(stamps().tolist()):
        part = slice(0, 4) if k % 2 else slice(4, 7)
        q = wave(T[k : k + 1])[0][part]
        raws.append(message(s, NAMES[part], q, q, q))
    path = save(tmp_path / 'bag', raws)
    with pytest.raises(ValueError, match=r'no message holds all joints.*lacks A1, A2, A3, A4'):
        read_bag(path, robot=ROBOT)
    with pytest.raises(ValueError, match='different sets of joints'):
        read_bag(path)


def test_arrays_of_other_lengths_reject_that_message_only(tmp_path):
    raws = messages()
    q = wave(T)
    for k, (names, position, velocity) in {
        50: (NAMES, q[50], q[50, :3]),
        70: (NAMES, q[70, :6], ()),
        90: ((), q[90], ()),
        110: (('A1',) * 7, q[110], ()),
    }.items():
        raws[k] = message(stamps()[k], names, position, velocity, 3 * q[k])
    path = save(tmp_path / 'bag', raws)
    recordings, report = read_bag_with_report(path)
    keep = np.setdiff1d(np.arange(N), [50, 70, 90, 110])
    check_clean(recordings, T[keep])
    assert report.rejected == {
        '7 names but 3 velocities': 1,
        '7 names but 6 positions': 1,
        '0 names but 7 positions': 1,
        'a joint name appears twice': 1,
    }
    assert any('7 names but 3 velocities' in note for note in report.notes())
    only = save(tmp_path / 'only', [raws[70]] * 30)
    with pytest.raises(ValueError, match=r'none of 30 messages.*7 names but 6 positions'):
        read_bag(only)


def test_velocity_and_effort_may_be_empty(tmp_path):
    q = wave(T)
    raws = [message(s, NAMES, q[k]) for k, s in enumerate(stamps().tolist())]
    (r,) = read_bag(save(tmp_path / 'none', raws)).recordings
    assert r.velocity is None
    assert not r.valid.any()
    raws[100] = message(stamps()[100], NAMES, q[100], 2 * q[100], 3 * q[100])
    bag = read_bag_with_report(save(tmp_path / 'one', raws))
    (r,) = bag.recordings.recordings
    assert r.velocity is None
    assert np.flatnonzero(r.valid).tolist() == [100]
    assert bag.report.without_velocity == 1


def test_values_that_are_not_finite(tmp_path):
    q = wave(T)
    q[20, 2] = np.nan
    tau = 3 * wave(T)
    tau[30, 4] = np.inf
    raws = [message(s, NAMES, q[k], [], tau[k]) for k, s in enumerate(stamps().tolist())]
    bag = read_bag_with_report(save(tmp_path / 'bag', raws))
    (r,) = bag.recordings.recordings
    assert len(r.t) == N - 1
    assert (~r.valid).sum() == 1
    assert bag.report.rejected == {'a position is not finite': 1}


def test_continuous_joints_are_unwrapped(tmp_path):
    robot = Robot('w', ('a', 'b'), ('continuous', 'revolute'))
    turn = 40 * T
    q = np.stack([(turn + math.pi) % (2 * math.pi) - math.pi, np.sin(turn)], axis=1)
    raws = [message(s, ('a', 'b'), q[k]) for k, s in enumerate(stamps().tolist())]
    (r,) = read_bag(save(tmp_path / 'bag', raws), robot=robot).recordings
    np.testing.assert_allclose(r.q[:, 0], turn, atol=1e-9)
    assert np.abs(np.diff(q[:, 0])).max() > 6


def test_derivatives_come_from_header_stamps(tmp_path, rng):
    log = (stamps() + rng.uniform(0, 20e6, N).astype(np.int64)).tolist()
    clean = read_bag(save(tmp_path / 'clean', messages()))
    bag = read_bag_with_report(save(tmp_path / 'jitter', messages(), log=log))
    check_clean(bag.recordings)
    (a,), (b,) = clean.recordings, bag.recordings.recordings
    np.testing.assert_array_equal(differentiate(a).qdd, differentiate(b).qdd)
    assert bag.report.reordered > 0
    assert 0.015 < bag.report.log_spread_s < 0.02


def test_gaps_are_cut_and_losses_reported(tmp_path, rng):
    t = np.arange(2000) * 0.004
    keep = rng.uniform(size=2000) > 0.1
    keep[1000:1062] = False  # 250 ms
    keep[[0, 999, 1062, -1]] = True
    bag = read_bag_with_report(
        save(tmp_path / 'bag', messages(t[keep]), log=stamps(t[keep]).tolist())
    )
    first, second = bag.recordings.recordings
    assert first.t[-1] == pytest.approx(t[999])
    assert second.t[0] == pytest.approx(t[1062])
    assert len(first.t) + len(second.t) == keep.sum() == bag.report.used
    assert bag.report.gaps == pytest.approx((0.252,))
    assert bag.report.lost == 2000 - 62 - keep.sum()
    # The accelerations at the cut are as good as elsewhere: nothing was derived across it.
    qdd = differentiate(first).qdd
    assert np.abs(qdd).max() < 60


def test_repeated_stamps_are_dropped(tmp_path):
    raws = messages()
    raws[50:50] = [raws[49]] * 3
    bag = read_bag_with_report(save(tmp_path / 'bag', raws))
    check_clean(bag.recordings)
    assert bag.report.repeats == 3


def test_a_restart_begins_a_new_recording(tmp_path):
    raws = messages() + messages()
    bag = read_bag_with_report(save(tmp_path / 'bag', raws))
    assert [len(r.t) for r in bag.recordings.recordings] == [N, N]
    assert bag.report.restarts == 1


def test_a_stray_future_stamp_costs_no_more_than_a_cut(tmp_path):
    raws = messages()
    raws.insert(100, messages(T[:1] + 60)[0])
    bag = read_bag_with_report(save(tmp_path / 'bag', raws))
    assert [len(r.t) for r in bag.recordings.recordings] == [100, 100]
    assert bag.report.short == 1


@pytest.mark.parametrize(
    ('step_s', 'lengths', 'dropped'),
    [(-0.005, [199], 1), (-0.5, [100, 100], 0), (3, [100, 100], 0)],
)
def test_clock_steps(tmp_path, step_s, lengths, dropped):
    t = np.arange(N) * 0.005
    t[100:] += step_s
    raws = messages(np.maximum(t, 0))
    bag = read_bag_with_report(save(tmp_path / 'bag', raws))
    assert [len(r.t) for r in bag.recordings.recordings] == lengths
    assert bag.report.repeats == dropped


def test_a_clock_step_by_half_a_period_leaves_no_pair_of_close_samples(tmp_path):
    t = np.arange(N) * 0.005
    t[100:] -= 0.007
    (r,) = read_bag(save(tmp_path / 'bag', messages(t))).recordings
    assert np.diff(r.t).min() > 0.0025 - 1e-9


def test_stamps_that_are_never_filled_in_give_way_to_log_times(tmp_path):
    q = wave(T)
    raws = [message(0, NAMES, q[k], 2 * q[k], 3 * q[k]) for k in range(N)]
    bag = read_bag_with_report(save(tmp_path / 'zero', raws))
    check_clean(bag.recordings)
    assert bag.report.uses_log_time
    mixed = [m if k % 2 else r for k, (m, r) in enumerate(zip(messages(), raws, strict=True))]
    bag = read_bag_with_report(save(tmp_path / 'mixed', mixed))
    check_clean(bag.recordings, T[1::2])
    assert bag.report.rejected == {'the stamp is zero': 100}


def test_a_clean_bag_has_no_notes(tmp_path):
    assert read_bag_with_report(save(tmp_path / 'bag', messages())).report.notes() == ()


@pytest.fixture
def recording_set(rng):
    robot = Robot(
        'two',
        ('x', 'y'),
        ('revolute', 'prismatic'),
        Effort('motor', (100.0, -50.0)),
        urdf='u.urdf',
    )
    recordings = []
    for k, rate in enumerate((10, 250, 1000)):
        t = 0.1 + np.arange(60) / rate
        valid = rng.uniform(size=60) > 0.2
        tau = rng.normal(size=(60, 2))  # finite where it is not valid, too
        velocity = None if k == 0 else rng.normal(size=(60, 2))
        recordings.append(
            Recording(
                t,
                rng.normal(size=(60, 2)),
                tau,
                velocity,
                valid=valid,
                name=f'r{k}',
                group='g' if k else '',
                role=('train', '', 'test')[k],
            )
        )
    return RecordingSet(robot, tuple(recordings))


def check_same(a, b):
    assert a.robot == b.robot
    for x, y in zip(a.recordings, b.recordings, strict=True):
        assert (x.name, x.group, x.role) == (y.name, y.group, y.role)
        np.testing.assert_allclose(x.t - x.t[0], y.t - y.t[0], atol=2e-9)
        np.testing.assert_array_equal(x.q, y.q)
        np.testing.assert_array_equal(x.valid, y.valid)
        np.testing.assert_array_equal(x.tau[x.valid], y.tau[y.valid])
        assert (x.velocity is None) == (y.velocity is None)
        if x.velocity is not None:
            np.testing.assert_array_equal(x.velocity, y.velocity)


@pytest.mark.parametrize('storage', STORAGES)
def test_what_is_written_is_read(tmp_path, recording_set, storage):
    path = tmp_path / 'new' / 'bag'
    write_bag(path, recording_set, topic='js', storage=storage)
    check_same(recording_set, read_bag(path, topic='/js'))
    assert [p.name for p in path.parent.iterdir()] == ['bag']
    # The robot is inside the file too, so that a lone file does not lose its gear ratios.
    (path / 'metadata.yaml').unlink()
    check_same(recording_set, read_bag(path))
    file = next(path.iterdir())
    check_same(recording_set, read_bag(file))


def test_the_robot_given_comes_before_the_one_in_the_bag(tmp_path, recording_set):
    write_bag(tmp_path / 'bag', recording_set)
    other = Robot('other', ('y',), ('prismatic',))
    read = read_bag(tmp_path / 'bag', robot=other)
    assert read.robot == other
    np.testing.assert_array_equal(read.recordings[0].q, recording_set.recordings[0].q[:, 1:])


def test_without_any_robot_the_first_message_tells_the_joints(tmp_path):
    robot = read_bag(save(tmp_path / 'my_arm', messages())).robot
    assert (robot.name, robot.joints) == ('my_arm', NAMES)
    assert robot.effort == Effort('joint')


def test_a_damaged_robot_in_the_metadata_is_refused(tmp_path, recording_set):
    write_bag(tmp_path / 'bag', recording_set)
    file = tmp_path / 'bag' / 'metadata.yaml'
    file.write_text(file.read_text().replace('kinds:', 'kindz:'))
    with pytest.raises(ValueError, match="robot in the metadata: unknown key 'kindz'"):
        read_bag(tmp_path / 'bag')


def test_writing_refuses_what_is_there(tmp_path, recording_set):
    (tmp_path / 'bag').mkdir()
    with pytest.raises(FileExistsError, match='exists already'):
        write_bag(tmp_path / 'bag', recording_set)
    with pytest.raises(ValueError, match="storage 'csv' must be one of"):
        write_bag(tmp_path / 'bag2', recording_set, storage='csv')


@pytest.mark.parametrize('error', [RuntimeError, KeyboardInterrupt])
def test_nothing_half_written_stays(tmp_path, recording_set, monkeypatch, error):
    calls = []

    def fail(self, *args):
        calls.append(args)
        if len(calls) > 70:
            raise error

    monkeypatch.setattr(Writer, 'write', fail)
    with contextlib.suppress(error):
        write_bag(tmp_path / 'bag', recording_set)
    assert len(calls) == 71
    assert list(tmp_path.iterdir()) == []


def test_writing_refuses_what_reading_would_cut(tmp_path):
    robot = Robot('one', ('x',), ('revolute',))
    t = np.concatenate([np.arange(50) * 0.01, 1 + np.arange(50) * 0.01])
    gap = Recording(t, t[:, None], t[:, None], name='gap')
    with pytest.raises(ValueError, match=r'gap: a gap of 0.51 s would be cut'):
        write_bag(tmp_path / 'bag', RecordingSet(robot, (gap,)))
    short = Recording(t[:5], t[:5, None], t[:5, None], name='short')
    with pytest.raises(ValueError, match='short: 5 samples are fewer'):
        write_bag(tmp_path / 'bag', RecordingSet(robot, (short,)))
    assert list(tmp_path.iterdir()) == []
