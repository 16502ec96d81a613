"""Friction with memory, Eq. (19), one sample at a time; the elements step in compiled code."""

from __future__ import annotations

from dlnn_ros.dynamics.architecture import BOUNDS, MemoryConfig
from dlnn_ros.runtime.kernels import memory_step
import numpy as np

from .numpy_networks import Checked, Encoding, Network


class Memory:
    """
    Bank of elements with its state; see :class:`~dlnn_ros.dynamics.memory.FrictionMemory`.

    Parameters
    ----------
    config : MemoryConfig
        Elements, and what was learned of them.
    encoding : Encoding
        Of the model; used by weights that depend on q.
    params : Checked
        Parameters under `prefix`.
    prefix : str
        'memory' and a dot.

    """

    def __init__(
        self, config: MemoryConfig, encoding: Encoding, params: Checked, prefix: str
    ) -> None:
        n, size = encoding.n, len(config.elements)
        self._raw = params.take(f'{prefix}raw_weight', n, size)
        zeta, slip_velocity, relaxation = (
            _parameter(name, config, n, params, prefix)
            for name in ('zeta', 'slip_velocity', 'relaxation_s')
        )
        self._zeta = zeta
        self._stiffness = 1.0 / zeta
        self._slowness = 1.0 / slip_velocity
        self._relaxing = np.flatnonzero(np.isfinite(relaxation).any(0))
        self._rate = np.ascontiguousarray(1.0 / relaxation[:, self._relaxing])
        self._encoding = encoding
        self._net: Network | None = None
        if config.weight_width:
            self._net = Network(
                params, f'{prefix}net', encoding.size, config.weight_width, 2, n * size
            )
        self._weight = np.logaddexp(0.0, self._raw)
        self._y = np.zeros((n, size))
        self._anchor = np.zeros(n)
        self._force = np.zeros(n)
        self._is_set = False

    def reset(self) -> None:
        """Forget the state."""
        self._is_set = False

    def capacity(self, q: np.ndarray) -> np.ndarray:
        """Return the most that the elements can hold at q, (n,), in the model's unit."""
        if self._net is not None:
            self._weigh(q, self._net)
        return self._weight.sum(1)

    def start(self, q: np.ndarray, bent: np.ndarray) -> None:
        """Begin at q with all elements of a joint bent by `bent`, (n,), from -1 to 1."""
        self._anchor[:] = q
        self._y[:] = bent[:, None]
        self._is_set = True

    def step(self, q: np.ndarray, qd: np.ndarray, dt: float) -> np.ndarray:
        """Advance by one sample; return d_mem, (n,); the array is reused by the next call."""
        if not self._is_set:
            self.start(q, np.zeros(len(q)))
        gradient = None if self._net is None else self._weigh(q, self._net)
        memory_step(
            self._y,
            self._anchor,
            q,
            qd,
            dt,
            self._stiffness,
            self._slowness,
            self._relaxing,
            self._rate,
            self._weight,
            self._force,
        )
        if gradient is not None and self._net is not None:
            x, slope, slopes = gradient
            ybar = slope * self._zeta * self._y**2 / 2
            self._force += self._encoding.gradient(x, self._net.gradient(slopes, ybar.ravel()))
        return self._force

    def _weigh(
        self, q: np.ndarray, net: Network
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Set the weights at q; return what the gradient of the storage needs."""
        x = self._encoding(q)
        y, _, slopes = net.jet(x, np.zeros_like(x))
        raw = self._raw + y.reshape(self._raw.shape)
        self._weight = np.logaddexp(0.0, raw)
        return x, 0.5 * (1.0 + np.tanh(0.5 * raw)), slopes


def _parameter(
    name: str, config: MemoryConfig, n: int, params: Checked, prefix: str
) -> np.ndarray:
    """Return a property of the elements, (n, J); rounded to float32 as in training."""
    values = [getattr(element, name) for element in config.elements]
    fixed = np.array([np.inf if v is None else v for v in values], np.float32).astype(float)
    given = np.broadcast_to(fixed, (n, len(values)))
    if not config.learned:
        return given
    raw = params.take(f'{prefix}raw_{name}', n, len(values))
    lower, upper = BOUNDS[name]
    share = 0.5 * (1.0 + np.tanh(0.5 * raw))
    return np.where(np.isinf(given), given, lower * (upper / lower) ** share)
