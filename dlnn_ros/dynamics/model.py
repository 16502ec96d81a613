"""What every inverse-dynamics model offers, with or without memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn, Tensor


class Step(NamedTuple):
    """Torque [N m | N] and the state after the sample."""

    tau: Tensor
    state: Tensor


class Context(NamedTuple):
    """What each sample of a path inherits from those before, (..., N, n, K), and the state."""

    values: Tensor
    state: Tensor


class InverseDynamicsModel(nn.Module):
    """
    Torque of a motion: tau(q, qd, qdd), possibly with an internal state, Eq. (19).

    All arrays are (..., n), joints last and, in a sequence, time on axis -2; tau is the
    generalised force on the joint side [N m | N].  The past enters through a context per sample,
    (..., n, K), which `context` computes along a path and `torque` takes; the rest of a model
    looks at one sample alone.  A model without memory has a state of size zero, so that callers
    treat all models alike.

    Attributes
    ----------
    n : int
        Number of joints.
    state_size : int
        Numbers of state per joint.
    is_sharp : bool
        Whether the context jumps where a joint stops or turns, so that a recording whose torque
        was low-passed shows it low-passed too.

    """

    n: int
    state_size: int = 0
    is_sharp: bool = False

    def inverse_dynamics(
        self, q: Tensor, qd: Tensor, qdd: Tensor, aux: Tensor | None = None
    ) -> Tensor:
        """
        Return tau, (..., n), of a model without memory.

        Raises
        ------
        ValueError
            If the model has memory.

        """
        if self.state_size:
            raise ValueError('this model has memory: its torque needs a state; use step, sequence')
        return self.torque(q, qd, qdd, None, aux)

    def context(self, state: Tensor, q: Tensor, qd: Tensor, dt: Tensor) -> Context:
        """
        Run the state along a path, causally.

        Parameters
        ----------
        state : Tensor, (..., n, state_size)
        q, qd : Tensor, (..., N, n)
            Path and its speed [rad | m, /s].
        dt : Tensor, (..., N)
            Time since the point before [s].

        """
        del qd, dt
        return Context(q.new_zeros(*q.shape, 0), state)

    def torque(
        self,
        q: Tensor,
        qd: Tensor,
        qdd: Tensor,
        context: Tensor | None = None,
        aux: Tensor | None = None,
    ) -> Tensor:
        """Return tau, (..., n), of samples with their context, (..., n, K)."""
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
        q, qd, qdd = (x.unsqueeze(-2) for x in (q, qd, qdd))
        period = torch.as_tensor(dt, dtype=q.dtype, device=q.device).unsqueeze(-1)
        aux = None if aux is None else aux.unsqueeze(-2)
        out = self.sequence(state, q, qd, qdd, period.expand(q.shape[:-1]), aux)
        return Step(out.tau.squeeze(-2), out.state)

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
        context = self.context(state, q, qd, dt)
        return Step(self.torque(q, qd, qdd, context.values, aux), context.state)


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
