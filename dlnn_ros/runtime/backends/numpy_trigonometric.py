"""
The model that is linear in its parameters, one sample at a time in numpy, without torch.

The same sums as dynamics/trigonometric.py and dynamics/linear_friction.py; float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlnn_ros.dynamics.trigonometric_terms import make_terms
import numpy as np

if TYPE_CHECKING:
    from .numpy_networks import Checked


class Trigonometric:
    """
    Conservative torque and friction in units of the torque scale; Eqs. (4), (21).

    Parameters
    ----------
    is_revolute, position_scale : sequences, n
        See :class:`~dlnn_ros.dynamics.trigonometric.TrigonometricConservative`.
    mass_degree, potential_degree : int
        See there.
    has_gravity : bool
        See there.
    stribeck_velocities : sequence of float
        See :class:`~dlnn_ros.dynamics.linear_friction.LinearDissipation`.
    params : Checked
        The parameters, under `conservative.` and `dissipation.` after `prefix`.
    prefix : str
        See `params`.

    Raises
    ------
    ValueError
        A parameter of another shape than the configuration says.

    """

    def __init__(
        self,
        is_revolute: Sequence[bool],
        position_scale: Sequence[float],
        mass_degree: int,
        potential_degree: int,
        has_gravity: bool,
        stribeck_velocities: Sequence[float],
        params: Checked,
        prefix: str = '',
    ) -> None:
        n = len(is_revolute)
        terms = make_terms(n, mass_degree, potential_degree, has_gravity)
        self._n = n
        self._is_revolute = np.array(is_revolute, bool)
        # Rounded to float32 as it was in training, as the velocities below.
        self._inverse_scale = (1.0 / np.array(position_scale, np.float32)).astype(float)
        # Factor by factor: long rows are what numpy is fast at.
        self._factors = np.ascontiguousarray(terms.factors.T)
        self._joints = np.ascontiguousarray(terms.joints.T)
        self._rows, self._columns = terms.rows, terms.columns
        self._half = np.where(terms.rows == terms.columns, 0.5, 1.0)
        mass = params.take(f'{prefix}conservative.mass_coefficients', len(terms.mass_entry))
        self._C = np.zeros((len(terms.rows), len(terms.factors)))
        self._C[terms.mass_entry, terms.mass_product] = mass
        self._potential = np.zeros(len(terms.factors))
        self._potential[terms.potential_product] = params.take(
            f'{prefix}conservative.potential_coefficients', len(terms.potential_product)
        )
        self._squared_velocity = np.square(np.array(stribeck_velocities, np.float32)).astype(float)
        self._viscous = np.maximum(params.take(f'{prefix}dissipation.viscous', n), 0.0)
        self._coulomb = np.maximum(params.take(f'{prefix}dissipation.coulomb', n), 0.0)
        stribeck = params.take(f'{prefix}dissipation.stribeck', n, len(stribeck_velocities))
        self._stribeck = np.maximum(stribeck, 0.0)

    def __call__(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
        """Return M qdd + c + g, (n,)."""
        phi, slopes = self._products(q)
        phi_dot = (slopes * qd[self._joints]).sum(0)
        entries = self._C @ np.stack((phi, phi_dot), 1)
        tau = self._fill(entries[:, 0]) @ qdd + self._fill(entries[:, 1]) @ qd
        w = self._half * qd[self._rows] * qd[self._columns]
        energy = (self._potential - w @ self._C) * slopes
        return tau + np.bincount(self._joints.ravel(), energy.ravel(), self._n)

    def dissipate(self, qd: np.ndarray, activation: np.ndarray) -> np.ndarray:
        """Return d, (n,), given the activation of Coulomb friction, (n,), in [-1, 1]."""
        v2 = self._squared_velocity
        peak = (self._stribeck * (v2 / (v2 + np.square(qd)[:, None]))).sum(1)
        return self._viscous * qd + activation * (self._coulomb + peak)

    def _products(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the products, (P,), and their derivatives by the joint of each factor."""
        functions = np.ones(1 + 2 * self._n)
        slopes = np.zeros(1 + 2 * self._n)
        x, sin, cos = q * self._inverse_scale, np.sin(q), np.cos(q)
        functions[1::2] = np.where(self._is_revolute, sin, x)
        functions[2::2] = np.where(self._is_revolute, cos, x * x)
        slopes[1::2] = np.where(self._is_revolute, cos, self._inverse_scale)
        slopes[2::2] = np.where(self._is_revolute, -sin, 2 * x * self._inverse_scale)
        factors, slope = functions[self._factors], slopes[self._factors]
        phi = np.ones(self._factors.shape[1])
        for d, factor in enumerate(factors):
            phi *= factor
            slope[:d] *= factor
            slope[d + 1 :] *= factor
        return phi, slope

    def _fill(self, entries: np.ndarray) -> np.ndarray:
        matrix = np.empty((self._n, self._n))
        matrix[self._rows, self._columns] = entries
        matrix[self._columns, self._rows] = entries
        return matrix
