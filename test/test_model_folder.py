from dlnn_ros.config import to_mapping
from dlnn_ros.learning import model_folder
from dlnn_ros.learning.model_folder import load_description, load_params, save_model
import numpy as np
import pytest
import yaml

import models


@pytest.fixture
def folder(tmp_path):
    return models.save_tiny_model(tmp_path / 'model')


def edit(folder, **changes):
    path = folder / 'model.yaml'
    mapping = yaml.safe_load(path.read_text())
    mapping.update(changes)
    path.write_text(yaml.safe_dump({k: v for k, v in mapping.items() if v is not None}))


def load(folder):
    description = load_description(folder)
    return description, load_params(folder, description)


def test_what_is_saved_is_loaded(folder, tmp_path):
    description, params = load(folder)
    again = save_model(tmp_path / 'again', description, params)
    description2, params2 = load(again)
    assert to_mapping(description) == to_mapping(description2)
    assert all(np.array_equal(params[k], params2[k]) for k in params)


def test_existing_model_is_replaced_only_when_asked(folder):
    description, params = load(folder)
    with pytest.raises(FileExistsError, match='--overwrite'):
        save_model(folder, description, params)
    save_model(folder, description, params, overwrite=True)
    assert [p.name for p in folder.parent.iterdir()] == ['model']


def test_other_folder_is_never_replaced(folder, tmp_path):
    other = tmp_path / 'precious'
    other.mkdir()
    (other / 'thesis.tex').write_text('x')
    with pytest.raises(FileExistsError, match='not a model folder'):
        save_model(other, *load(folder), overwrite=True)
    assert (other / 'thesis.tex').exists()


def test_nothing_is_left_of_a_failed_save(folder, tmp_path, monkeypatch):
    description, params = load(folder)

    def fail(*args, **kwargs):
        raise OSError('no space left on device')

    monkeypatch.setattr(model_folder.yaml, 'safe_dump', fail)
    with pytest.raises(OSError, match='no space'):
        save_model(tmp_path / 'new', description, params)
    assert sorted(p.name for p in tmp_path.iterdir()) == ['model']


def test_old_model_survives_a_replacement_that_fails(folder, monkeypatch):
    description, params = load(folder)
    rename = model_folder.os.rename

    def fail_to_put_in_place(source, target):
        if target == folder and '.old.' not in str(source):
            raise OSError('device or resource busy')
        rename(source, target)

    monkeypatch.setattr(model_folder.os, 'rename', fail_to_put_in_place)
    with pytest.raises(OSError, match='busy'):
        save_model(folder, description, params, overwrite=True)
    assert [p.name for p in folder.parent.iterdir()] == ['model']
    load(folder)


def test_parameter_that_is_not_finite_is_not_saved(folder, tmp_path):
    description, params = load(folder)
    params[next(iter(params))].flat[0] = np.nan
    with pytest.raises(ValueError, match='not finite'):
        save_model(tmp_path / 'new', description, params)
    assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'kind': None}, "key 'kind' is missing"),
        ({'knid': 'dlnn'}, "unknown key 'knid'; did you mean 'kind'"),
        ({'format': 7}, 'format 7 is not 2'),
        ({'rate_hz': 'fast'}, "rate_hz must be a number, got 'fast'"),
        ({'robot': 3}, 'robot: expected a mapping'),
        ({'robot': {'name': 'r', 'joints': ['a', 'a'], 'kinds': ['revolute'] * 2}}, 'repeat'),
    ],
)
def test_wrong_description_is_one_clear_line(folder, changes, message):
    edit(folder, **changes)
    with pytest.raises((ValueError, TypeError), match=message) as error:
        load(folder)
    assert str(folder / 'model.yaml') in str(error.value)
    assert '\n' not in str(error.value)


def test_damaged_parameters_are_refused(folder):
    path = folder / 'params.safetensors'
    content = bytearray(path.read_bytes())
    content[-5] ^= 1  # one bit: still a valid file, with another number in it
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r'params\.safetensors: checksum differs'):
        load(folder)


@pytest.mark.parametrize(
    'key', ['kind', 'config', 'scales', 'robot', 'rate_hz', 'derivatives', 'training_range']
)
def test_edited_meaning_is_refused(folder, key):
    mapping = yaml.safe_load((folder / 'model.yaml').read_text())
    changed = {
        'kind': 'lnn',
        'config': {**mapping['config'], 'coulomb_gain': 10.0},
        'scales': {**mapping['scales'], 'torque': 100.0},
        'robot': {**mapping['robot'], 'joints': mapping['robot']['joints'][::-1]},
        'rate_hz': 1.0,
        'derivatives': 'other',
        'training_range': {
            **mapping['training_range'],
            'q': {'lower': [-9.0] * 3, 'upper': [9.0] * 3},
        },
    }
    edit(folder, **{key: changed[key]})
    with pytest.raises(ValueError, match='was edited'):
        load(folder)


def test_lengths_that_do_not_fit_are_refused(folder):
    mapping = yaml.safe_load((folder / 'model.yaml').read_text())
    edit(folder, scales={**mapping['scales'], 'velocity': [1.0]})
    with pytest.raises(ValueError, match=r'scales\.velocity has 1 numbers for 3 joints'):
        load(folder)


@pytest.mark.parametrize('content', [b'', b'\x00' * 100])
def test_file_that_is_no_safetensors_is_refused(folder, content):
    (folder / 'params.safetensors').write_bytes(content)
    edit(folder, sha256=model_folder.checksum(load_description(folder), content))
    with pytest.raises(ValueError, match='not a safetensors file'):
        load(folder)


def test_missing_places_are_named(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match='nowhere: no such model folder'):
        load_description(tmp_path / 'nowhere')
    (tmp_path / 'empty').mkdir()
    with pytest.raises(FileNotFoundError, match=r'has no model\.yaml'):
        load_description(tmp_path / 'empty')
    with pytest.raises(ValueError, match='is a file'):
        load_description(folder / 'model.yaml')
    (folder / 'params.safetensors').unlink()
    with pytest.raises(FileNotFoundError, match='incomplete'):
        load(folder)


def test_yaml_error_has_a_line_and_column(folder):
    (folder / 'model.yaml').write_text('kind: dlnn\n  robot: [\n')
    with pytest.raises(ValueError, match=r'model\.yaml:2:\d+: '):
        load(folder)
