"""
The networks of a model for one sample in numpy; float64.

The same passes as dynamics/networks.py, with value and tangent side by side in one (size, 2)
matrix per layer.
"""

from __future__ import annotations

from collections.abc import Mapping
import itertools
import math

from dlnn_ros.config import Robot
from dlnn_ros.dynamics.architecture import Scales
import numpy as np
from scipy.special import ndtr

Params = Mapping[str, np.ndarray]

_INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


def reciprocal(scale: tuple[float, ...]) -> np.ndarray:
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


class Encoding:
    """Network inputs of q, their tangent and gradient, Eq. (15)."""

    def __init__(self, robot: Robot, scales: Scales) -> None:
        self.revolute = np.flatnonzero(robot.is_revolute)
        self.prismatic = np.flatnonzero(~robot.is_revolute)
        self.inverse_scale = reciprocal(scales.position)[self.prismatic]
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


class Network:
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


class Triangle:
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
