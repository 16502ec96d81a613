r"""
Friction that remembers how a joint moved, and stays passive: bristle elements, Eq. (19).

Where a joint stands still its friction is whatever it was left with, which no function of
(q, qd) can say.  Each joint has a bank of elements, springs that bend with the joint by the state
`y` and slip at a limit `h`, which falls with speed (Stribeck), and that may relax in time:

    zeta ydot = qd - |qd| y / h - zeta y / T,        h = 1 / (1 + |qd| / vs) in (0, 1]
    d_mem     = sum_j w_j y_j,                       w_j >= 0

`zeta` is the way over which an element bends.  The storage `S = sum_j w_j zeta_j y_j^2 / 2` gives

    dS/dt = d_mem qd - sum_j w_j (|qd| y_j^2 / h_j + zeta_j y_j^2 / T_j) <= d_mem qd

so the joint takes in at least what it stores: it is passive for any `w >= 0`.  Weights that
depend on the position keep that if the storage joins the potential energy, which adds
`grad_q S = sum_ij (dw_ij/dq) zeta_j y_ij^2 / 2` to the torque; without it energy can be gained.
Over samples that balance is exact for constant weights, else to first order in the step.

Over a sample the motion from the last position is taken as straight, with the speed `|qd|` of its
end, and relaxation as what follows it.  Each of the two has an exact solution, for a way and a
time `dt` of any length, and together they are the equation above to first order in `dt / T`:

    y+ = (s h + (y - s h) exp(-|dq| / (zeta h))) exp(-dt / T),      dq = q+ - q,  s = sgn dq

The force is that of the new state, and with it the inequality holds without any error:
`d_mem+ dq >= S+ - S`.  For one element of weight one: along the way `x` from 0 to `X = |dq|` the
state before relaxation, `z(x)`, has `zeta dz/dx = s - z/h`, hence

    d(zeta z^2 / 2)/dx = z s - z^2/h <= z s.

If `z s` starts below `h` it rises, so its end times `X` is at least its integral; if it starts
above, it falls to no less than `h > 0`, so the end times `X` is positive while the storage falls.
Relaxation by a factor `a <= 1` makes the balance `a z s X - zeta (a^2 z^2 - y^2) / 2`, which is
concave in `a` and not negative at 0 and at 1.  With the *old* force each reversal loses about
`2 w |dq|`.  With a dead band all of it holds for the path that is held, which stays within the
band; along the path itself up to `w` times the band is gained per change of `y` by one.

The update is linear in the state, `y+ = A y + B`, so a whole recording is one linear recurrence,
solved in blocks, and the response to the unknown state at its start is the product of the `A`.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import NamedTuple

import torch
from torch import nn, Tensor

from .architecture import BOUNDS, MemoryConfig
from .networks import JetMLP, JointEncoding

# Small beside the torque unit after softplus: an element grows only where it explains something.
INITIAL_WEIGHT = -6.0
FLOOR = -80.0


class Run(NamedTuple):
    """States along a path, (..., N, n, J), and the one to go on from, (..., n, J + 1)."""

    y: Tensor
    state: Tensor


class FrictionMemory(nn.Module):
    """
    Bank of elements per joint, Eq. (19).

    The state is (..., n, J + 1): y of the J elements, then the position it belongs to.

    Parameters
    ----------
    config : MemoryConfig
        Elements, and what is learned of them.
    is_revolute, position_scale : sequences, n
        See :class:`~.networks.JointEncoding`; used by weights that depend on q.

    """

    def __init__(
        self,
        config: MemoryConfig,
        is_revolute: Sequence[bool],
        position_scale: Sequence[float],
    ) -> None:
        super().__init__()
        self.config = config
        self.n = len(is_revolute)
        self.size = len(config.elements)
        for name in BOUNDS:
            values = [getattr(element, name) for element in config.elements]
            given = torch.tensor([math.inf if v is None else v for v in values])
            if config.learned:
                row = _to_bounded(given, BOUNDS[name]).expand(self.n, self.size)
                setattr(self, f'raw_{name}', nn.Parameter(row.clone()))
            self.register_buffer(f'fixed_{name}', given, False)
        self.raw_weight = nn.Parameter(torch.full((self.n, self.size), INITIAL_WEIGHT))
        self.encoding: JointEncoding | None = None
        if config.weight_width:
            self.encoding = JointEncoding(is_revolute, position_scale)
            self.net = JetMLP(self.encoding.size, self.n * self.size, config.weight_width, 2)

    def parameter(self, name: str) -> Tensor:
        """Return 'zeta', 'slip_velocity' or 'relaxation_s', (J,) or, learned, (n, J)."""
        fixed: Tensor = getattr(self, f'fixed_{name}')
        if not self.config.learned:
            return fixed
        lower, upper = BOUNDS[name]
        share = torch.sigmoid(getattr(self, f'raw_{name}'))
        return torch.where(fixed.isinf(), fixed, lower * (upper / lower) ** share)

    def run(self, state: Tensor, q: Tensor, qd: Tensor, dt: Tensor) -> Run:
        """
        Advance along a path.

        Parameters
        ----------
        state : Tensor, (..., n, J + 1)
        q, qd : Tensor, (..., N, n)
            Path [rad | m] and speed [/s]. In float64 also for a float32 model, whose rounding
            would be of the size of the elements: differences are taken before the conversion.
        dt : Tensor, (..., N)
            Time since the point before [s].

        """
        keep, drive = self._along(state, q, qd, dt)
        y = linear_recurrence(keep, drive, state[..., :-1].to(keep.dtype))
        end = torch.cat([y[..., -1, :, :].to(q.dtype), q[..., -1, :, None]], -1)
        return Run(y, end)

    def response(self, state: Tensor, q: Tensor, qd: Tensor, dt: Tensor) -> Tensor:
        """Return what is left along a path of a start at y = 1, (..., N, n, J)."""
        return torch.cumprod(self._along(state, q, qd, dt)[0], -3)

    def _along(self, state: Tensor, q: Tensor, qd: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        before = torch.cat([state[..., None, :, -1], q[..., :-1, :]], -2)
        return self.coefficients(q - before, qd, dt)

    def coefficients(self, dq: Tensor, qd: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
        """Return A and B of `y+ = A y + B`, each (..., N, n, J)."""
        dtype = self.raw_weight.dtype
        way, sign = (x.to(dtype).unsqueeze(-1) for x in (dq.abs(), dq.sign()))
        speed = qd.to(dtype).abs().unsqueeze(-1)
        h = 1.0 / (1.0 + speed / self.parameter('slip_velocity'))
        bend = -way / (self.parameter('zeta') * h)
        relax = torch.exp(-dt.to(dtype)[..., None, None] / self.parameter('relaxation_s'))
        return torch.exp(bend) * relax, -torch.expm1(bend) * sign * h * relax

    def weight(self, q: Tensor) -> Tensor:
        """Return w, (B, n, J), in the model's unit of torque, > 0."""
        if self.encoding is None:
            return nn.functional.softplus(self.raw_weight).expand(len(q), -1, -1)
        return nn.functional.softplus(self.raw_weight + self._shift(self.net(self.encoding(q))))

    @torch.no_grad()
    def set_weights(self, weight: Tensor) -> None:
        """Set constant weights, (n, J), >= 0 in the model's unit of torque."""
        # The inverse of softplus; its floor stands for zero, which softplus never reaches.
        raw = weight + torch.log(-torch.expm1(-weight))
        self.raw_weight.copy_(raw.clamp_min(FLOOR))

    def force(self, q: Tensor, y: Tensor) -> Tensor:
        """Return d_mem, (B, n), at states y, (B, n, J), in the model's unit of torque."""
        if self.encoding is None:
            return (nn.functional.softplus(self.raw_weight) * y).sum(-1)
        x = self.encoding(q)
        jet = self.net.jet(x, torch.zeros_like(x))
        raw = self.raw_weight + self._shift(jet.y)
        ybar = torch.sigmoid(raw) * self.parameter('zeta') * y.square() / 2
        gradient = self.net.gradient(jet.slopes, ybar.flatten(1))
        return (nn.functional.softplus(raw) * y).sum(-1) + self.encoding.gradient(x, gradient)

    def stored(self, q: Tensor, y: Tensor) -> Tensor:
        """Return the storage S, (B,), in the model's unit of torque times rad."""
        return (self.weight(q) * self.parameter('zeta') * y.square()).sum((-1, -2)) / 2

    def start(self, q: Tensor, held: Tensor) -> Tensor:
        """
        Return y, (B, n, J), that holds a torque (B, n) with all elements bent alike.

        Leaves out the gradient of the storage, of the size of zeta, where weights depend on q.
        """
        return (
            (held / self.weight(q).sum(-1))
            .clamp(-1.0, 1.0)
            .unsqueeze(-1)
            .expand(-1, -1, self.size)
        )

    def _shift(self, y: Tensor) -> Tensor:
        return y.view(-1, self.n, self.size)


def _to_bounded(value: Tensor, bounds: tuple[float, float]) -> Tensor:
    lower, upper = bounds
    share = (value / lower).log() / math.log(upper / lower)
    return torch.logit(share.clamp(1e-3, 1 - 1e-3))


class _Recurrence(torch.autograd.Function):
    """y_k = A_k y_{k-1} + B_k along the first axis; the adjoint is one backwards."""

    @staticmethod
    def forward(ctx, keep, drive, start):
        """Return y, (N, ...)."""
        y = _scan(keep, drive, start)
        ctx.save_for_backward(keep, y, start)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, ybar):
        """Pull back through the recurrence."""
        keep, y, start = ctx.saved_tensors
        following = torch.cat([keep[1:], torch.ones_like(keep[:1])])
        bar = _scan(following.flip(0), ybar.flip(0), torch.zeros_like(start)).flip(0)
        before = torch.cat([start.unsqueeze(0), y[:-1]])
        return bar * before, bar, keep[0] * bar[0]


def linear_recurrence(keep: Tensor, drive: Tensor, start: Tensor) -> Tensor:
    """
    Solve y_k = keep_k y_{k-1} + drive_k along time, differentiably.

    Parameters
    ----------
    keep, drive : Tensor, (..., N, n, J)
    start : Tensor, (..., n, J)

    """
    keep, drive = (torch.movedim(x, -3, 0) for x in (keep, drive))
    return torch.movedim(_Recurrence.apply(keep, drive, start), 0, -3)


def _scan(keep: Tensor, drive: Tensor, start: Tensor) -> Tensor:
    """Solve blocks of about sqrt(N) steps side by side, then chain them."""
    steps = len(keep)
    length = math.isqrt(steps - 1) + 1
    blocks = -(-steps // length)
    shape = (blocks, length, *keep.shape[1:])
    fill = blocks * length - steps
    keep = torch.cat([keep, keep.new_ones(fill, *keep.shape[1:])]).view(shape)
    drive = torch.cat([drive, drive.new_zeros(fill, *drive.shape[1:])]).view(shape)
    local, gain = torch.empty_like(drive), torch.empty_like(keep)
    local[:, 0], gain[:, 0] = drive[:, 0], keep[:, 0]
    for k in range(1, length):
        torch.addcmul(drive[:, k], keep[:, k], local[:, k - 1], out=local[:, k])
        torch.mul(keep[:, k], gain[:, k - 1], out=gain[:, k])
    for block in range(blocks):
        local[block].addcmul_(gain[block], start.unsqueeze(0))
        start = local[block, -1]
    return local.view(blocks * length, *shape[2:])[:steps]
