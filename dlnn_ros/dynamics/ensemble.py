r"""
Mean of several Lagrangian models, which is one too.

Euler-Lagrange's equation is linear in the Lagrangian and the torque of friction adds up, so the
mean torque of K models is that of the mean M, V, d and of the mean storage S, Eqs. (1)-(9), (19):

    M = sum_k M_k / K,   V = sum_k V_k / K,   d = sum_k d_k / K,   S = sum_k S_k / K
    tau = sum_k tau_k / K = M qdd + c + g + d,         c, g of the mean M, V

A mean of positive definite matrices is positive definite, `qd'd = sum_k qd'd_k / K >= 0`, and the
storage inequality of each member, `d_mem,k' dq >= S_k+ - S_k`, holds for the sums.  So whatever
makes a member passive makes the mean passive; for a mean of unstructured models there is no such
argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import nn, Tensor

from .conservative import ConservativeTerms
from .dlnn import LagrangianModel
from .memory import FrictionMemory, Run


def _mean(parts: Sequence[Any], of: Callable[[Any], Tensor]) -> Tensor:
    return torch.stack([of(part) for part in parts]).mean(0)


class AveragedConservative:
    """Mean M and V; offers what :class:`~.conservative.ConservativeNetwork` does."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def inverse(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Return M qdd + c + g, (B, n)."""
        return _mean(self.parts, lambda part: part.inverse(q, qd, qdd))

    def terms(self, q: Tensor, qd: Tensor) -> ConservativeTerms:
        """Return M, c and g."""
        terms = zip(*(part.terms(q, qd) for part in self.parts), strict=True)
        return ConservativeTerms(*(torch.stack(term).mean(0) for term in terms))

    def mass_matrix(self, q: Tensor) -> Tensor:
        """Return M, (B, n, n)."""
        return _mean(self.parts, lambda part: part.mass_matrix(q))

    def potential(self, q: Tensor) -> Tensor:
        """Return V, (B,)."""
        return _mean(self.parts, lambda part: part.potential(q))


class AveragedDissipation:
    """Mean d; the sign of motion is the same for all parts."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def activation(self, qd: Tensor) -> Tensor:
        """Return tanh(k qd)."""
        return self.parts[0].activation(qd)

    def __call__(self, q: Tensor, qd: Tensor, aux: Tensor | None, activation: Tensor) -> Tensor:
        """Return d, (B, n)."""
        return _mean(self.parts, lambda part: part(q, qd, aux, activation))


class AveragedMemory:
    """
    Mean force of banks of elements; offers what a fitted :class:`~.memory.FrictionMemory` does.

    Banks of fixed elements bend alike, so they share their states and the weights are averaged.
    Learned elements differ, so the states stand one bank after the other, each with 1 / K of its
    weight.  Either way the averaged memory is one bank of `size` elements.
    """

    def __init__(self, parts: Sequence[FrictionMemory]) -> None:
        self.parts = parts
        self.config = parts[0].config
        self._bank = parts[0].size
        self._apart = len(parts) if self.config.learned else 1
        self.size = self._apart * self._bank

    def run(self, state: Tensor, q: Tensor, qd: Tensor, dt: Tensor) -> Run:
        """Advance along a path."""
        runs = [part.run(own, q, qd, dt) for part, own in self._states(state)]
        ends = [run.state[..., :-1] for run in runs]
        state = torch.cat([*ends, runs[0].state[..., -1:]], -1)
        return Run(torch.cat([run.y for run in runs], -1), state)

    def weight(self, q: Tensor) -> Tensor:
        """Return w of all elements, (B, n, J)."""
        weights = torch.stack([part.weight(q) for part in self.parts], -2) / len(self.parts)
        return weights.sum(-2) if self._apart == 1 else weights.flatten(-2)

    def force(self, q: Tensor, y: Tensor) -> Tensor:
        """Return d_mem, (B, n), at states y, (B, n, J)."""
        pairs = zip(self.parts, self._split(y), strict=True)
        return torch.stack([part.force(q, own) for part, own in pairs]).mean(0)

    def stored(self, q: Tensor, y: Tensor) -> Tensor:
        """Return the storage S, (B,)."""
        pairs = zip(self.parts, self._split(y), strict=True)
        return torch.stack([part.stored(q, own) for part, own in pairs]).mean(0)

    def start(self, q: Tensor, held: Tensor) -> Tensor:
        """Return y, (B, n, J), that holds a torque (B, n) with all elements bent alike."""
        bent = (held / self.weight(q).sum(-1)).clamp(-1.0, 1.0)
        return bent.unsqueeze(-1).expand(-1, -1, self.size)

    def _split(self, y: Tensor) -> Sequence[Tensor]:
        """Return what each part sees of the states."""
        return [y] * len(self.parts) if self._apart == 1 else y.split(self._bank, -1)

    def _states(self, state: Tensor) -> Iterator[tuple[FrictionMemory, Tensor]]:
        """Yield the banks that have a state of their own, with it."""
        own = state[..., :-1].split(self._bank, -1)
        for part, y in zip(self.parts[: self._apart], own, strict=True):
            yield part, torch.cat([y, state[..., -1:]], -1)


class EnsembleModel(LagrangianModel):
    """
    Mean of members of one kind and architecture; passive as they are.

    Its parameters are those of the k-th member under `members.k.`, for example
    `members.0.conservative.trunk.output.bias` or `members.2.memory.raw_weight`.  The state is
    that of one member where the elements are fixed, else one bank after the other.

    Parameters
    ----------
    members : sequence of LagrangianModel
        At least one; equal configurations and scales.

    """

    def __init__(self, members: Sequence[LagrangianModel]) -> None:
        first = members[0]
        dissipations = [m.dissipation for m in members if m.dissipation is not None]
        memories = [m.memory for m in members if m.memory is not None]
        # The means hold no parameters of their own: those belong to `members`.
        conservative = AveragedConservative([m.conservative for m in members])
        dissipation = AveragedDissipation(dissipations) if dissipations else None
        memory = AveragedMemory(memories) if memories else None
        parts: Any = (conservative, dissipation, first.torque_scale, memory)
        super().__init__(first.n, *parts)
        self.members = nn.ModuleList(members)

    def member(self, k: int) -> LagrangianModel:
        """Return the k-th member."""
        return cast(LagrangianModel, self.members[k])
