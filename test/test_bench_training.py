from dlnn_ros.bench import training
import pytest
import torch


def test_explicit_passes_equal_functional_autodiff():
    """Eq. (1): the hand-written passes and torch.func derive the same torque."""
    case = training.measure('128x3', 'functional', batch=16, threads=1, steps=1)
    assert case.samples_per_s > 0


def test_methods_that_differ_are_not_compared(monkeypatch):
    monkeypatch.setattr(training, 'ours', lambda m, q, qd, qdd: torch.ones_like(q))
    with pytest.raises(ValueError, match='not comparable'):
        training.measure('128x3', 'functional', batch=16, threads=1, steps=1)
