"""
Training throughput of the dLNN: this package's passes against plain functional autodiff.

The functional form is the textbook one: the Lagrangian as a function, its derivatives by
`torch.func` (forward over reverse, vectorised over the batch), trained through all of it.
Both compute the same torque of the same network; a case is refused where they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import time
from typing import Any, NamedTuple

from dlnn_ros.dynamics.architecture import DlnnConfig, Scales
from dlnn_ros.dynamics.dlnn import LagrangianModel, make_dlnn
import torch
from torch import Tensor

JOINTS = 6
SHAPES = {'128x3': (128, 3), '256x4': (256, 4)}
METHODS = ('ours', 'functional')
# Relative to the largest torque: float32 rounding of two different orders of summation.
AGREEMENT = 1e-3


class Case(NamedTuple):
    """One measurement; samples_per_s is the median over the steps."""

    model: str
    method: str
    batch: int
    threads: int
    samples_per_s: float


def functional_torque(model: LagrangianModel, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
    """Return tau, (B, n), with the derivatives of Eq. (1) by torch.func."""
    conservative = model.conservative
    assert model.dissipation is not None

    def lagrangian(q1: Tensor, qd1: Tensor) -> Tensor:
        M = conservative.mass_matrix(q1.unsqueeze(0))[0]
        return 0.5 * qd1 @ M @ qd1 - conservative.potential(q1.unsqueeze(0))[0]

    def conservative_torque(q1: Tensor, qd1: Tensor, qdd1: Tensor) -> Tensor:
        momentum = torch.func.grad(lagrangian, 1)
        _, momentum_rate = torch.func.jvp(momentum, (q1, qd1), (qd1, qdd1))
        return momentum_rate - torch.func.grad(lagrangian, 0)(q1, qd1)

    tau = torch.func.vmap(conservative_torque)(q, qd, qdd)
    return model.torque_scale * (
        tau + model.dissipation(q, qd, None, model.dissipation.activation(qd))
    )


def ours(model: LagrangianModel, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
    """Return tau, (B, n), as the package computes it."""
    return model.inverse_dynamics(q, qd, qdd)


def measure(
    shape: str, method: str, batch: int, threads: int, steps: int, device: str = 'cpu'
) -> Case:
    """Time whole training steps: forward, backward, clipping, Adam; without dropout."""
    width, depth = SHAPES[shape]
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    one = (1.0,) * JOINTS
    config = DlnnConfig(width=width, depth=depth, dropout=0.0)
    model = make_dlnn(config, Scales(1.0, one, one, one), (True,) * JOINTS).to(device)
    q, qd, qdd, target = torch.randn(4, batch, JOINTS, device=device)
    torque: Callable = ours if method == 'ours' else functional_torque
    check_agreement(model, q[:64], qd[:64], qdd[:64])
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    times = []
    for _ in range(steps + 2):
        started = time.perf_counter()
        loss = (torque(model, q, qd, qdd) - target).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if device == 'cuda':
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    typical = sorted(times[2:])[steps // 2]
    return Case(f'dlnn {shape}', method, batch, threads, round(batch / typical, 1))


def check_agreement(model: LagrangianModel, q: Tensor, qd: Tensor, qdd: Tensor) -> None:
    """Refuse to compare two methods that do not compute the same."""
    a, b = ours(model, q, qd, qdd), functional_torque(model, q, qd, qdd)
    worst = float((a - b).detach().abs().max() / b.detach().abs().max())
    if not worst < AGREEMENT:
        raise ValueError(f'the methods differ by {worst:.2g} of the torque; not comparable')


def run(
    shapes: Sequence[str], methods: Sequence[str], batch: int, threads: int, steps: int
) -> dict[str, Any]:
    """Measure all cases, one after the other."""
    cases = [
        measure(shape, method, batch, threads, steps if method == 'ours' else max(2, steps // 5))
        for shape in shapes
        for method in methods
    ]
    return {'cases': [case._asdict() for case in cases]}
