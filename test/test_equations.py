import importlib
from pathlib import Path
import re

import dlnn_ros
import pytest
import tolerances
import torch

PACKAGE = Path(dlnn_ros.__file__).parent
TABLE = PACKAGE / 'dynamics' / 'EQUATIONS.md'
ROW = re.compile(r'^\| (\d+) \| (.+) \| (.+) \| `(.+)` \|$', re.MULTILINE)
CITATION = re.compile(r'Eqs?\. \(?(\d+)')


def rows():
    return ROW.findall(TABLE.read_text())


def find_function(name):
    module, *path = name.split('.')
    for package in ('dynamics', 'learning'):
        if (PACKAGE / package / f'{module}.py').exists():
            found = importlib.import_module(f'dlnn_ros.{package}.{module}')
            for part in path:
                found = getattr(found, part)
            return found
    raise AssertionError(f'{name}: no module {module}')


def cited(text):
    return set(CITATION.findall(text))


def test_every_row_names_a_function_and_a_test_that_exist():
    assert len(rows()) >= 15
    for number, _, function, test in rows():
        if function.startswith('`'):
            assert callable(find_function(function.strip('`'))), number
        file, name = test.split('::')
        source = (Path(__file__).parent / file).read_text()
        assert f'def {name}(' in source, f'Eq. ({number}): {test} does not exist'


def test_every_cited_equation_is_in_the_table():
    known = {number for number, *_ in rows()}
    for file in PACKAGE.rglob('*.py'):
        unknown = cited(file.read_text()) - known
        assert not unknown, f'{file} cites {unknown}'


def test_citation_check_sees_an_unknown_number():
    assert cited('as in Eq. (99), Eqs. (1)-(9)') == {'99', '1'}


def test_any_dissipative_force_has_a_dissipation_matrix(rng):
    """Eq. (10) with Q = -d: D qd = d, D > 0."""
    qd = torch.tensor(rng.normal(size=(50, 4)))
    d = qd + 0.4 * torch.tensor(rng.normal(size=(50, 4)))
    power = (qd * d).sum(-1)
    qd, d, power = qd[power > 0.1], d[power > 0.1], power[power > 0.1]
    outer = d[:, :, None] * d[:, None, :] / power[:, None, None]
    projector = torch.eye(4) - qd[:, :, None] * qd[:, None, :] / qd.square().sum(-1)[:, None, None]
    D = outer + 1e-3 * projector
    assert float(((D @ qd[:, :, None]).squeeze(-1) - d).abs().max()) < tolerances.RTOL_F64 * 10
    assert float(torch.linalg.eigvalsh(D).min()) > 0


def test_row_pattern_fails_on_a_missing_function():
    with pytest.raises(AttributeError):
        find_function('dlnn.LagrangianModel.no_such_method')
