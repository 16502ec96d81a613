"""
One sample at a time in numpy, without torch in the process.

The same passes as dynamics/networks.py and dynamics/conservative.py, with value and tangent side
by side in one (size, 2) matrix per layer; float64.  The tests hold it to the torch models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import itertools
import math
from pathlib import Path

from dlnn_ros.config import from_mapping, Robot
from dlnn_ros.dynamics.architecture import (
    DlnnConfig,
    LinearConfig,
    make_config,
    MlpConfig,
    Scales,
)
from dlnn_ros.learning.model_folder import DESCRIPTION_FILE, load_description, load_params
import numpy as np
from scipy.special import ndtr

Params = Mapping[str, np.ndarray]
Torque = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


class NumpyPredictor:
    """
    Serve a model by numpy; see :class:`~dlnn_ros.runtime.predictor.Predictor`.

    Parameters
    ----------
    folder : Path
        Model folder.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        One line that names the file and what is wrong with it.

    """

    backend = 'numpy cpu'

    def __init__(self, folder: Path) -> None:
        self.description = load_description(folder)
        where = str(folder / DESCRIPTION_FILE)
        config = make_config(self.description.kind, self.description.config, f'{where}: config')
        scales = from_mapping(Scales, self.description.scales, f'{where}: scales')
        robot = self.description.robot
        params = Checked(where, load_params(folder, self.description))
        self._torque: Torque
        if isinstance(config, DlnnConfig):
            if config.aux_size:
                raise ValueError(f'{where}: models with auxiliary inputs cannot be served')
            self._torque = _Dlnn(config, scales, robot, self.description.has_gravity, params)
        elif isinstance(config, MlpConfig):
            self._torque = _Mlp(config, scales, robot, params)
        else:
            assert isinstance(config, LinearConfig)
            self._torque = _Linear(config, robot.n, params)
        params.check_all_used()
        self._gear_ratio = robot.gear_ratio

    def reset(self) -> None:
        """Forget the past; none of these models has one."""

    def predict(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray, dt: float) -> np.ndarray:
        """Return the effort, (n,), in the units that the model was trained on."""
        del dt
        return self._torque(q, qd, qdd) / self._gear_ratio


def _reciprocal(scale: tuple[float, ...]) -> np.ndarray:
    """Return 1 / scale, rounded to float32 as it was in training."""
    return (1.0 / np.array(scale, np.float32)).astype(float)


class Checked:
    """Parameters by name, each of an expected shape, all of them used."""

    def __init__(self, where: str, params: Params) -> None:
        self._where = where
        self._left = {k: v.astype(float) for k, v in params.items()}

    def take(self, name: str, *shape: int) -> np.ndarray:
        """Return a parameter; refuse another shape."""
        array = self._left.pop(name, None)
        if array is None or array.shape != shape:
            given = None if array is None else array.shape
            raise ValueError(
                f'{self._where}: parameter {name} is {given}, its configuration expects {shape}'
            )
        return array

    def check_all_used(self) -> None:
        """Refuse parameters that the configuration does not know."""
        if self._left:
            raise ValueError(
                f'{self._where}: parameters {", ".join(self._left)} do not belong to this model'
            )


class _Encoding:
    """Network inputs of q, their tangent and gradient, Eq. (15)."""

    def __init__(self, robot: Robot, scales: Scales) -> None:
        self.revolute = np.flatnonzero(robot.is_revolute)
        self.prismatic = np.flatnonzero(~robot.is_revolute)
        self.inverse_scale = _reciprocal(scales.position)[self.prismatic]
        self.n = robot.n
        self.size = 2 * len(self.revolute) + len(self.prismatic)

    def __call__(self, q: np.ndarray) -> np.ndarray:
        r = q[self.revolute]
        return np.concatenate((np.sin(r), np.cos(r), q[self.prismatic] * self.inverse_scale))

    def tangent(self, x: np.ndarray, qd: np.ndarray) -> np.ndarray:
        m = len(self.revolute)
        r = qd[self.revolute]
        return np.concatenate(
            (x[m : 2 * m] * r, -x[:m] * r, qd[self.prismatic] * self.inverse_scale)
        )

    def gradient(self, x: np.ndarray, xbar: np.ndarray) -> np.ndarray:
        m = len(self.revolute)
        qbar = np.empty(self.n)
        qbar[self.revolute] = xbar[:m] * x[m : 2 * m] - xbar[m : 2 * m] * x[:m]
        qbar[self.prismatic] = xbar[2 * m :] * self.inverse_scale
        return qbar


class _Network:
    """A perceptron with GELU."""

    def __init__(
        self, params: Checked, prefix: str, inputs: int, width: int, depth: int, outputs: int
    ) -> None:
        sizes = [inputs, *[width] * depth]
        self.hidden = [
            (
                params.take(f'{prefix}.hidden.{k}.weight', b, a),
                params.take(f'{prefix}.hidden.{k}.bias', b),
            )
            for k, (a, b) in enumerate(itertools.pairwise(sizes))
        ]
        self.weight = params.take(f'{prefix}.output.weight', outputs, width)
        self.bias = params.take(f'{prefix}.output.bias', outputs)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        for weight, bias in self.hidden:
            z = weight @ x + bias
            x = z * ndtr(z)
        return self.weight @ x + self.bias

    def jet(
        self, x: np.ndarray, xdot: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Return y, ydot and the slopes of the hidden layers."""
        pair = np.stack((x, xdot), 1)
        slopes = []
        for weight, bias in self.hidden:
            pair = weight @ pair
            z = pair[:, 0] + bias
            Phi = ndtr(z)
            slope = Phi + z * np.exp(-0.5 * z * z) * _INV_SQRT_2PI
            pair[:, 0] = z * Phi
            pair[:, 1] *= slope
            slopes.append(slope)
        pair = self.weight @ pair
        return pair[:, 0] + self.bias, pair[:, 1], slopes

    def gradient(self, slopes: list[np.ndarray], ybar: np.ndarray) -> np.ndarray:
        abar = ybar @ self.weight
        for (weight, _), slope in zip(reversed(self.hidden), reversed(slopes), strict=True):
            abar = (abar * slope) @ weight
        return abar


class _Triangle:
    """Lower triangle of an n x n matrix, row by row; softplus on the diagonal, Eq. (3)."""

    def __init__(self, n: int) -> None:
        self.rows, self.columns = np.tril_indices(n)
        self.size = len(self.rows)
        self.diagonal = np.flatnonzero(self.rows == self.columns)
        self.n = n

    def fill(self, entries: np.ndarray) -> np.ndarray:
        matrix = np.zeros((self.n, self.n))
        matrix[self.rows, self.columns] = entries
        return matrix

    def factor(self, y: np.ndarray) -> np.ndarray:
        y = y.copy()
        y[self.diagonal] = np.logaddexp(0.0, y[self.diagonal])
        return self.fill(y)

    def slope(self, y: np.ndarray) -> np.ndarray:
        slope = np.ones(self.size)
        slope[self.diagonal] = 0.5 * (1.0 + np.tanh(0.5 * y[self.diagonal]))
        return slope


class _Dlnn:
    """Inverse dynamics, Eq. (5), by one tangent and one gradient pass."""

    def __init__(
        self, config: DlnnConfig, scales: Scales, robot: Robot, has_gravity: bool, params: Checked
    ) -> None:
        self.config = config
        self.torque_scale = scales.torque
        self.encoding = _Encoding(robot, scales)
        self.triangle = _Triangle(robot.n)
        self.has_gravity = has_gravity
        size = self.triangle.size
        self.trunk = _Network(
            params,
            'conservative.trunk',
            self.encoding.size,
            config.width,
            config.depth,
            size + int(has_gravity),
        )
        self.dissipation: _Network | None = None
        if config.dissipative:
            self.inverse_velocity = _reciprocal(scales.velocity)
            self.dissipation = _Network(
                params,
                'dissipation.net',
                self.encoding.size + robot.n,
                config.dissipation_width,
                config.dissipation_depth,
                size + (robot.n if config.coulomb else 0),
            )

    def __call__(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
        size = self.triangle.size
        x = self.encoding(q)
        y, ydot, slopes = self.trunk.jet(x, self.encoding.tangent(x, qd))
        slope = self.triangle.slope(y[:size])
        chol = self.triangle.factor(y[:size])
        chol_dot = self.triangle.fill(slope * ydot[:size])
        u = qd @ chol
        tau = chol @ (qdd @ chol + qd @ chol_dot) + chol_dot @ u + self.config.mass_eps * qdd
        ybar = np.full(len(y), -1.0)
        ybar[:size] = slope * qd[self.triangle.rows] * u[self.triangle.columns]
        tau -= self.encoding.gradient(x, self.trunk.gradient(slopes, ybar))
        if self.dissipation is not None:
            tau += self._dissipate(self.dissipation, x, qd)
        return self.torque_scale * tau

    def _dissipate(self, net: _Network, x: np.ndarray, qd: np.ndarray) -> np.ndarray:
        """Return d, Eqs. (7) and (8)."""
        config = self.config
        size = self.triangle.size
        y = net(np.concatenate((x, qd * self.inverse_velocity)))
        chol = self.triangle.factor(config.dissipation_scale * y[:size])
        d = chol @ (qd @ chol) + config.dissipation_eps * qd
        if config.coulomb:
            d += np.logaddexp(0.0, y[size:]) * np.tanh(config.coulomb_gain * qd)
        return d


class _Mlp:
    """The perceptron baseline, Eq. (16)."""

    def __init__(self, config: MlpConfig, scales: Scales, robot: Robot, params: Checked) -> None:
        self.encoding = _Encoding(robot, scales)
        self.velocity_sign = config.velocity_sign
        self.inverse_velocity = _reciprocal(scales.velocity)
        self.inverse_acceleration = _reciprocal(scales.acceleration)
        self.torque_scale = scales.torque
        inputs = self.encoding.size + (3 if config.velocity_sign else 2) * robot.n
        self.net = _Network(params, 'net', inputs, config.width, config.depth, robot.n)

    def __call__(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
        parts = [self.encoding(q), qd * self.inverse_velocity, qdd * self.inverse_acceleration]
        if self.velocity_sign:
            parts.append(np.sign(qd))
        return self.torque_scale * self.net(np.concatenate(parts))


class _Linear:
    """The linear baseline, Eq. (16)."""

    def __init__(self, config: LinearConfig, n: int, params: Checked) -> None:
        self.config = config
        features = 3 * n + (n if config.velocity_sign else 0) + int(config.bias)
        self.weight = params.take('weight', n, features)

    def __call__(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
        parts = [q, qd, qdd]
        if self.config.velocity_sign:
            parts.append(np.sign(qd))
        if self.config.bias:
            parts.append(np.ones(1))
        return self.weight @ np.concatenate(parts)
