"""What every inverse-dynamics model offers, with or without memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn, Tensor


class Step(NamedTuple):
    """Torque [N m | N] and the state after the sample."""

    tau: Tensor
    state: Tensor


class InverseDynamicsModel(nn.Module):
    """
    Torque of a motion: tau(q, qd, qdd), possibly with an internal state, Eq. (19).

    All arrays are (..., n), joints last and, in a sequence, time on axis -2; tau is the
    generalised force on the joint side [N m | N].  A model without memory has a state of size
    zero, so that callers treat all models alike.
    """

    n: int
    state_size: int = 0

    def inverse_dynamics(
        self, q: Tensor, qd: Tensor, qdd: Tensor, aux: Tensor | None = None
    ) -> Tensor:
        """Return tau, (..., n), of a model without memory."""
        raise NotImplementedError

    def initial_state(self, q: Tensor, tau: Tensor | None = None) -> Tensor:
        """
        Return the state at the start of a motion, (..., n, state_size).

        Parameters
        ----------
        q : Tensor, (..., n)
            Position at the start [rad | m].
        tau : Tensor, (..., n), optional
            Torque measured there at rest [N m | N]; a model with memory sets its state from it.

        """
        del tau
        return q.new_zeros((*q.shape, self.state_size))

    def step(
        self,
        state: Tensor,
        q: Tensor,
        qd: Tensor,
        qdd: Tensor,
        dt: Tensor | float,
        aux: Tensor | None = None,
    ) -> Step:
        """Advance by one sample that comes `dt` [s] after the last one."""
        del dt
        return Step(self.inverse_dynamics(q, qd, qdd, aux), state)

    def sequence(
        self,
        state: Tensor,
        q: Tensor,
        qd: Tensor,
        qdd: Tensor,
        dt: Tensor,
        aux: Tensor | None = None,
    ) -> Step:
        """
        Run over a whole sequence, (..., N, n), with sample periods dt, (..., N) [s].

        Returns
        -------
        Step
            tau, (..., N, n), and the state after the last sample.

        """
        if self.state_size == 0:
            return Step(self.inverse_dynamics(q, qd, qdd, aux), state)
        taus = []
        for k in range(q.shape[-2]):
            aux_k = None if aux is None else aux[..., k, :]
            out = self.step(state, q[..., k, :], qd[..., k, :], qdd[..., k, :], dt[..., k], aux_k)
            taus.append(out.tau)
            state = out.state
        return Step(torch.stack(taus, -2), state)


class Flat(NamedTuple):
    """Leading axes, and arrays flattened to (B, last axis)."""

    lead: tuple[int, ...]
    arrays: list[Tensor]


def flatten(n: int, *arrays: Tensor) -> Flat:
    """
    Broadcast the leading axes of arrays and flatten them to (B, ...), the first being (..., n).

    Raises
    ------
    ValueError
        Where the last axis of the first array is not n.

    """
    if arrays[0].shape[-1:] != (n,):
        raise ValueError(
            f'array of shape {tuple(arrays[0].shape)} for a model with {n} joints; '
            f'expected (..., {n})'
        )
    lead = torch.broadcast_shapes(*(a.shape[:-1] for a in arrays))
    return Flat(
        tuple(lead), [a.expand(*lead, a.shape[-1]).reshape(-1, a.shape[-1]) for a in arrays]
    )
