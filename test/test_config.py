from __future__ import annotations

from dataclasses import dataclass, field, replace
import json
import math
from pathlib import Path

from dlnn_ros.config import (
    Counterbalance,
    Effort,
    from_mapping,
    Limits,
    load_robot,
    load_yaml,
    Robot,
    share_path,
    to_mapping,
)
import numpy as np
import pytest
import yaml


@dataclass(frozen=True)
class Inner:
    cutoff_hz: float | None = None
    window: int = 5

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f'window must be at least 1, got {self.window}')


@dataclass(frozen=True)
class Outer:
    name: str
    learning_rate: float = 1e-2
    steps: int = 10
    resume: bool = False
    sizes: tuple[int, ...] = ()
    inner: Inner = field(default_factory=Inner)
    maybe: Inner | None = None
    parts: tuple[Inner, ...] = ()
    extra: dict = field(default_factory=dict)


def from_yaml(text):
    return from_mapping(Outer, yaml.safe_load(text), 'train.yaml')


def test_defaults_are_those_of_the_dataclass():
    assert from_yaml('name: a') == Outer('a')


def test_values_of_every_kind_arrive():
    made = from_yaml(
        'name: a\nlearning_rate: 3\nsteps: 4\nresume: true\nsizes: [1, 2]\n'
        'inner: {cutoff_hz: 5.0, window: 3}\nmaybe: {window: 2}\n'
        'parts: [{window: 7}, {}]\nextra: {k: 1}'
    )
    parts = (Inner(window=7), Inner())
    expected = Outer('a', 3.0, 4, True, (1, 2), Inner(5.0, 3), Inner(window=2), parts, {'k': 1})
    assert made == expected
    assert isinstance(made.learning_rate, float)


def test_null_is_none():
    assert from_yaml('{name: a, inner: {cutoff_hz: null}, maybe: null}') == Outer('a')


@pytest.mark.parametrize(
    'value',
    [
        Outer('a'),
        Outer('b', 0.5, 1, True, (3,), Inner(1.0), Inner(None, 2), (Inner(),), {'k': 'v'}),
    ],
)
def test_mapping_survives_yaml_and_json(value):
    mapping = to_mapping(value)
    for text in (yaml.safe_dump(mapping), json.dumps(mapping)):
        assert from_yaml(text) == value


def test_numpy_values_become_plain():
    plain = to_mapping({'a': np.float64(0.5), 'b': np.arange(3), 3: (np.int32(1), np.bool_(True))})
    assert plain == {'a': 0.5, 'b': [0, 1, 2], '3': [1, True]}
    assert json.loads(json.dumps(plain)) == plain


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (
            '{name: a, learning_rat: 0.1}',
            r"train.yaml: unknown key 'learning_rat'; did you mean 'learning_rate'\?",
        ),
        ('{name: a, zzz: 1}', r"unknown key 'zzz'; known keys: name, learning_rate"),
        ('{name: a, 3: 1}', 'unknown key 3'),
        (
            '{name: a, inner: {cutof_hz: 1.0}}',
            r"train.yaml: inner: unknown key 'cutof_hz'; did you mean 'cutoff_hz'\?",
        ),
        ('{name: a, maybe: {windo: 1}}', r'train.yaml: maybe: unknown key'),
        ('{name: a, parts: [{}, {windo: 1}]}', r'train.yaml: parts\[1\]: unknown key'),
        ('{steps: 1}', "train.yaml: key 'name' is missing"),
        ('{name: a, inner: {window: 0}}', 'train.yaml: inner: window must be at least 1, got 0'),
        ('{name: a, learning_rate: .nan}', 'train.yaml: learning_rate is NaN'),
    ],
)
def test_wrong_keys_and_values_are_named_with_their_place(text, message):
    with pytest.raises(ValueError, match=message) as caught:
        from_yaml(text)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (
            '{name: a, learning_rate: 1e-3}',
            r"learning_rate must be a number, got '1e-3' \(a string in YAML; write 0.001\)",
        ),
        ('{name: a, learning_rate: fast}', r"number, got 'fast' \(a string in YAML\)"),
        ('{name: a, learning_rate: "0.5"}', r"got '0.5' \(a string in YAML; write 0.5\)"),
        ('{name: a, learning_rate: true}', 'must be a number, got True'),
        ('{name: a, learning_rate: null}', 'must be a number, got None'),
        ('{name: a, steps: 1.5}', 'steps must be an integer, got 1.5'),
        ('{name: a, steps: "3"}', "steps must be an integer, got '3'"),
        ('{name: a, steps: true}', 'steps must be an integer, got True'),
        ('{name: a, resume: "false"}', "resume must be true or false, got 'false'"),
        ('{name: a, resume: 1}', 'resume must be true or false, got 1'),
        ('{name: 3}', 'name must be a string, got 3'),
        ('{name: a, sizes: 3}', 'sizes must be a list, got 3'),
        ('{name: a, sizes: [1, x]}', r"sizes\[1\] must be an integer, got 'x'"),
        ('{name: a, sizes: "12"}', "sizes must be a list, got '12'"),
        ('{name: a, inner: 5}', 'train.yaml: inner: expected a mapping with keys, got 5'),
        ('{name: a, inner: null}', 'inner: expected a mapping with keys, got None'),
        ('{name: a, extra: [1]}', r'extra must be a mapping, got \[1\]'),
        ('[1, 2]', 'train.yaml: expected a mapping'),
        ('', 'train.yaml: expected a mapping with keys, got None'),
        ('{name: a, inner: {cutoff_hz: None}}', r"cutoff_hz must be a number, got 'None'"),
    ],
)
def test_wrong_types_are_named_with_their_place(text, message):
    with pytest.raises(TypeError, match=message) as caught:
        from_yaml(text)
    assert '\n' not in str(caught.value)


def test_the_number_to_write_is_read_as_that_number():
    for number in ('1e-3', '2.5e8', '1e16', '3e300', '-4e-7'):
        assert isinstance(yaml.safe_load(number), str)
        with pytest.raises(TypeError, match=r'write ') as caught:
            from_mapping(Outer, {'name': 'a', 'learning_rate': number}, 'x')
        advice = str(caught.value).split('write ')[1].rstrip(')')
        assert yaml.safe_load(advice) == float(number)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'a: [1, 2', r'bad\.yaml:1:9: '),
        (b'a: 1\n\tb: 2', r'bad\.yaml:2:1: '),
        (b'\xff\xfe\x00', 'is not a UTF-8 text file'),
        (b'a: !!python/object/apply:os.getcwd []', 'could not determine a constructor'),
        (b'a: 1\na: 2', r"bad\.yaml:2:1: key 'a' appears twice"),
        (b'a: {b: 1, b: 2}', r"key 'b' appears twice"),
        (b'a: \x01', r'bad\.yaml'),
        (b'{[1]: 2}', r'bad\.yaml:1:2: '),
        (b'a: 1\n---\nb: 2', r'bad\.yaml'),
    ],
)
def test_broken_yaml_is_one_line_with_its_place(tmp_path, content, message):
    path = tmp_path / 'bad.yaml'
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_yaml(path)
    assert '\n' not in str(caught.value)


def test_merge_keys_still_work(tmp_path):
    path = tmp_path / 'merge.yaml'
    path.write_text('base: &base {a: 1, b: 2}\nother: {<<: *base, b: 3}\n')
    assert load_yaml(path)['other'] == {'a': 1, 'b': 3}


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match='no such file'):
        load_yaml(tmp_path / 'none.yaml')
    with pytest.raises(ValueError, match='is a folder'):
        load_yaml(tmp_path)


def test_share_path_finds_the_source_tree_and_the_installed_share(tmp_path, monkeypatch):
    assert share_path('config/robots/kr300.yaml').is_file()
    installed = tmp_path / 'share' / 'dlnn_ros' / 'config' / 'only_installed.yaml'
    installed.parent.mkdir(parents=True)
    installed.write_text('a: 1')
    monkeypatch.setenv('AMENT_PREFIX_PATH', f'/nowhere:{tmp_path}')
    assert share_path('config/only_installed.yaml') == installed
    with pytest.raises(FileNotFoundError, match=r'config/none\.yaml: not found; tried ') as caught:
        share_path('config/none.yaml')
    for place in ('/nowhere/share/dlnn_ros', str(tmp_path / 'share' / 'dlnn_ros')):
        assert place in str(caught.value)


TWO = {'name': 'r', 'joints': ('a', 'b'), 'kinds': ('revolute', 'prismatic')}


def test_robot_properties():
    robot = Robot(**TWO)
    assert robot.n == 2
    assert robot.is_revolute.tolist() == [True, False]
    assert robot.gear_ratio.tolist() == [1.0, 1.0]
    geared = Robot(**TWO, effort=Effort('motor', (10.0, -5.0)))
    assert geared.gear_ratio.tolist() == [10.0, -5.0]
    assert replace(robot, kinds=('continuous', 'revolute')).is_revolute.all()


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'joints': (), 'kinds': ()}, 'joints is empty'),
        ({'joints': ('a', 'a')}, 'joint names repeat'),
        ({'joints': ('a', '')}, 'empty'),
        ({'kinds': ('revolute',)}, '1 kinds for 2 joints'),
        ({'kinds': ('revolute', 'hinge')}, "joint kind 'hinge' must be one of"),
        ({'gravity': (0.0, 0.0)}, 'gravity must have 3 numbers'),
        ({'gravity': (0.0, 0.0, math.inf)}, 'gravity must be finite'),
        ({'effort': Effort('motor', (2.0,))}, 'effort.gear_ratio has 1 numbers for 2 joints'),
        ({'armature': (1.0,)}, 'armature has 1 numbers for 2 joints'),
        ({'armature': (1.0, -1.0)}, 'armature must not be negative'),
        ({'armature': (1.0, math.inf)}, 'armature must be finite'),
        ({'position_offset': (1.0,)}, 'position_offset has 1 numbers'),
        ({'position_offset': (1.0, math.inf)}, 'position_offset must be finite'),
        ({'limits': Limits(velocity=(1.0, 2.0, 3.0))}, 'limits.velocity has 3 numbers'),
        (
            {'limits': Limits((0.0, 2.0), (1.0, 1.0))},
            r"joint 'b': position_lower 2.0 is above position_upper 1.0",
        ),
        ({'limits': Limits(velocity=(1.0, -2.0))}, 'limits.velocity must not be negative'),
        ({'limits': Limits(effort=(1.0, -2.0))}, 'limits.effort must not be negative'),
    ],
)
def test_robot_rules(change, message):
    with pytest.raises(ValueError, match=message):
        Robot(**{**TWO, **change})


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (('torque',), "effort kind is 'torque', must be one of"),
        (('motor',), "'motor' needs one ratio per joint"),
        (('joint', (1.0,)), 'the other kinds none'),
        (('motor', (0.0,)), 'finite and not zero'),
        (('motor', (math.inf,)), 'finite and not zero'),
    ],
)
def test_effort_rules(arguments, message):
    with pytest.raises(ValueError, match=message):
        Effort(*arguments)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'anchor_parent': 0.0}, 'anchor_parent must be positive, got 0.0'),
        ({'gas_mass': math.inf}, 'gas_mass must be positive, got inf'),
        ({'angle_offset': math.inf}, 'angle_offset is inf'),
        ({'anchor_child': 0.8}, 'anchors must differ'),
        ({'rod_diameter': 0.055}, 'rod_diameter 0.055 must be smaller than'),
        ({'gas_volume': 0.0006}, 'is used up by the full stroke'),
    ],
)
def test_counterbalance_rules(change, message):
    spring = load_robot('kr300').counterbalance
    assert isinstance(spring, Counterbalance)
    with pytest.raises(ValueError, match=message):
        replace(spring, **change)


def test_counterbalance_joint_must_be_one_of_the_robot():
    robot = load_robot('kr300')
    stranger = replace(robot.counterbalance, joint='joint_a9')
    with pytest.raises(
        ValueError, match=r"counterbalance joint 'joint_a9' is not one of joint_a1"
    ):
        replace(robot, counterbalance=stranger)
    first = replace(robot, kinds=('revolute', 'prismatic', *robot.kinds[2:]), counterbalance=None)
    with pytest.raises(ValueError, match=r"counterbalance joint 'joint_a2' is prismatic"):
        replace(first, counterbalance=robot.counterbalance)


def test_unknown_robot_lists_the_known_ones():
    with pytest.raises(FileNotFoundError, match=r"no robot 'kr30'; known robots: .*kr300"):
        load_robot('kr30')
    with pytest.raises(FileNotFoundError, match='no such file'):
        load_robot('/none/kr300.yaml')


def test_every_robot_file_loads():
    files = sorted(share_path('config/robots').glob('*.yaml'))
    assert files
    for path in files:
        robot = load_robot(path)
        assert robot == load_robot(path.stem)
        assert from_mapping(Robot, to_mapping(robot), 'x') == robot
        if robot.urdf is not None:
            assert not Path(robot.urdf).is_absolute()


def test_urdf_beside_a_users_robot_file_becomes_absolute(tmp_path):
    robot = Robot(**TWO, urdf='mine.urdf')
    path = tmp_path / 'mine.yaml'
    path.write_text(yaml.safe_dump(to_mapping(robot)))
    assert load_robot(path).urdf == 'mine.urdf'
    (tmp_path / 'mine.urdf').write_text('<robot/>')
    assert load_robot(str(path)).urdf == str(tmp_path / 'mine.urdf')
