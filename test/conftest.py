import os
from pathlib import Path

import numpy as np
import pytest

# Threads of small matrices only wait for each other.
os.environ.setdefault('OMP_NUM_THREADS', '1')

DATA = Path(os.environ.get('DLNN_DATA', Path(__file__).parents[2] / 'shared' / 'data'))


@pytest.fixture(autouse=True)
def strict_numerics():
    with np.errstate(divide='raise', invalid='raise', over='raise'):
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(20211215)


@pytest.fixture(scope='session')
def data_dir():
    """Return the folder of the real recordings; skip where they are not there."""
    if not DATA.is_dir():
        pytest.skip(f'real recordings not found at {DATA} (set DLNN_DATA)')
    return DATA
