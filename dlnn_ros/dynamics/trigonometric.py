r"""
The conservative half, linear in its parameters: trigonometric M and V, Eqs. (1), (4), (21).

With products phi(q) of functions of different joints (see trigonometric_terms.py), one
coefficient each,

    M_ij = sum_m a_m phi_m,    V = sum_m b_m phi_m,

energies and torque are linear in the coefficients.  A term phi of M_ij, and of M_ji, has

    T = w phi,    w = qd_i qd_j (i != j)  or  qd_i^2 / 2 (i = j),

and Lagrange's equation, Eq. (1), makes of it, with phi_dot = sum_l (dphi/dq_l) qd_l,

    tau_i += phi qdd_j + phi_dot qd_j
    tau_j += phi qdd_i + phi_dot qd_i                                   (only if i != j)
    tau_l -= (dphi/dq_l) w                                              for every joint l;

a term of V gives tau_l += dphi/dq_l.  These are the columns of :meth:`regressor`.  Summed over
the terms, with C_ep the coefficient of product p in entry e of M, b_p that in V, w_e as above,

    M = C phi,   Mdot = C phi_dot,
    tau = M qdd + Mdot qd + sum_p (b_p - (w C)_p) grad phi_p                   Eq. (4)

which :meth:`inverse` evaluates without the columns.  M is symmetric, but nothing here makes it
positive definite: that is a property of the coefficients, to be certified after the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn, Tensor

from .conservative import ConservativeTerms
from .trigonometric_terms import make_terms


class _Products(NamedTuple):
    """Products (B, P) and their derivatives by the joint of each factor, (B, P, D)."""

    value: Tensor
    slope: Tensor


class TrigonometricConservative(nn.Module):
    """
    M(q) and V(q) as sums of products of sin, cos (revolute) or powers (prismatic), Eq. (21).

    Offers the methods of :class:`~.conservative.ConservativeNetwork`; the joints must be in
    chain order, base first.  M need not be positive definite.

    Parameters
    ----------
    is_revolute, position_scale : sequences, n
        Kind of each joint; a prismatic one enters as x = q / position_scale, its square too.
    mass_degree, potential_degree : int
        Largest number of joints in a product of M and V, >= 0.
    has_gravity : bool
        False leaves V out, for efforts recorded with the gravity torque taken out.

    Attributes
    ----------
    mass_coefficients : Parameter, (K_M,)
        Coefficients of M in the model's unit of torque per rad/s^2; zero at the start.
    potential_coefficients : Parameter, (K_V,)
        Coefficients of V in the model's unit of torque times rad; zero at the start.

    """

    is_revolute: Tensor
    inverse_scale: Tensor
    factors: Tensor
    joints: Tensor
    rows: Tensor
    columns: Tensor
    mass_entry: Tensor
    mass_product: Tensor
    potential_product: Tensor

    def __init__(
        self,
        is_revolute: Sequence[bool],
        position_scale: Sequence[float],
        mass_degree: int,
        potential_degree: int,
        has_gravity: bool = True,
    ) -> None:
        super().__init__()
        self.n = len(is_revolute)
        terms = make_terms(self.n, mass_degree, potential_degree, has_gravity)
        for name, table in terms._asdict().items():
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(table)), False)
        self.register_buffer('is_revolute', torch.tensor(is_revolute, dtype=torch.bool), False)
        self.register_buffer('inverse_scale', 1.0 / torch.tensor(position_scale), False)
        self.mass_coefficients = nn.Parameter(torch.zeros(len(terms.mass_entry)))
        self.potential_coefficients = nn.Parameter(torch.zeros(len(terms.potential_product)))

    def inverse(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """Return M qdd + c + g, (B, n)."""
        products = self._products(q)
        C = self._mass_rows()
        energy = -(self._energy_weights(qd) @ C) + self._potential_row()
        momentum_rate = self._times(products.value @ C.T, qdd)
        Mdot_qd = self._times(self._rate(products, qd) @ C.T, qd)
        return momentum_rate + Mdot_qd + self._gradient(products, energy)

    def terms(self, q: Tensor, qd: Tensor) -> ConservativeTerms:
        """Return M, c and g apart."""
        products = self._products(q)
        C = self._mass_rows()
        Mdot_qd = self._times(self._rate(products, qd) @ C.T, qd)
        c = Mdot_qd - self._gradient(products, self._energy_weights(qd) @ C)
        g = self._gradient(products, self._potential_row().expand(len(q), -1))
        return ConservativeTerms(self._fill(products.value @ C.T), c, g)

    def mass_matrix(self, q: Tensor) -> Tensor:
        """Return M, (B, n, n), symmetric."""
        return self._fill(self._products(q).value @ self._mass_rows().T)

    def potential(self, q: Tensor) -> Tensor:
        """Return V, (B,), without its constant (Eq. 11)."""
        return self._products(q).value @ self._potential_row()

    def regressor(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """
        Return the columns that make the torque linear in the coefficients.

        Returns
        -------
        Tensor, (B, n, K_M + K_V)
            `regressor @ cat([mass_coefficients, potential_coefficients])` equals `inverse`.

        """
        products = self._products(q)
        m = torch.arange(len(self.mass_coefficients), device=q.device)
        i, j = self.rows[self.mass_entry], self.columns[self.mass_entry]
        phi = products.value[:, self.mass_product]
        phi_dot = self._rate(products, qd)[:, self.mass_product]
        w = self._energy_weights(qd)[:, self.mass_entry]
        masses = q.new_zeros(len(q), self.n, len(self.mass_coefficients))
        masses[:, i, m] = phi * qdd[:, j] + phi_dot * qd[:, j]
        off = i != j
        i, j = i[off], j[off]
        masses[:, j, m[off]] = phi[:, off] * qdd[:, i] + phi_dot[:, off] * qd[:, i]
        potentials = q.new_zeros(len(q), self.n, len(self.potential_coefficients))
        v = torch.arange(len(self.potential_coefficients), device=q.device)
        # One factor at a time, so that no index pair comes twice.
        for slope, joint in zip(products.slope.unbind(-1), self.joints.unbind(-1), strict=True):
            masses[:, joint[self.mass_product], m] -= slope[:, self.mass_product] * w
            potentials[:, joint[self.potential_product], v] += slope[:, self.potential_product]
        return torch.cat([masses, potentials], -1)

    def _products(self, q: Tensor) -> _Products:
        x = q * self.inverse_scale
        sin, cos = torch.sin(q), torch.cos(q)
        rate = self.inverse_scale.expand_as(q)
        one = q.new_ones(len(q), 1)
        functions = self._row(one, sin, cos, x, x * x)
        slopes = self._row(0 * one, cos, -sin, rate, 2 * x * rate)
        factors = functions[:, self.factors].unbind(-1)
        slope = [
            _product([slopes[:, index], *factors[:d], *factors[d + 1 :]])
            for d, index in enumerate(self.factors.unbind(-1))
        ]
        if not factors:  # M constant, no V
            return _Products(one, q.new_zeros(len(q), 1, 0))
        return _Products(_product(factors), torch.stack(slope, -1))

    def _row(
        self, constant: Tensor, sin: Tensor, cos: Tensor, first: Tensor, second: Tensor
    ) -> Tensor:
        """Return the row of functions of all joints, (B, 1 + 2 n)."""
        f = torch.where(self.is_revolute, sin, first)
        g = torch.where(self.is_revolute, cos, second)
        return torch.cat([constant, torch.stack([f, g], -1).flatten(1)], 1)

    def _rate(self, products: _Products, qd: Tensor) -> Tensor:
        """Return the products' time derivatives, (B, P)."""
        return (products.slope * qd[:, self.joints]).sum(-1)

    def _gradient(self, products: _Products, weight: Tensor) -> Tensor:
        """Return sum_p weight_p grad phi_p, (B, n); `weight` (B, P)."""
        parts = (products.slope * weight.unsqueeze(-1)).flatten(1)
        return parts.new_zeros(len(parts), self.n).index_add(1, self.joints.flatten(), parts)

    def _energy_weights(self, qd: Tensor) -> Tensor:
        """Return the w of each entry of M, (B, E)."""
        w = qd[:, self.rows] * qd[:, self.columns]
        return torch.where(self.rows == self.columns, 0.5 * w, w)

    def _mass_rows(self) -> Tensor:
        """Return C, (E, P)."""
        C = self.mass_coefficients.new_zeros(len(self.rows), len(self.factors))
        return C.index_put((self.mass_entry, self.mass_product), self.mass_coefficients)

    def _potential_row(self) -> Tensor:
        """Return the coefficient in V of each product, (P,)."""
        zero = self.potential_coefficients.new_zeros(len(self.factors))
        return zero.index_put((self.potential_product,), self.potential_coefficients)

    def _fill(self, entries: Tensor) -> Tensor:
        matrix = entries.new_zeros(len(entries), self.n, self.n)
        matrix[:, self.rows, self.columns] = entries
        matrix[:, self.columns, self.rows] = entries
        return matrix

    def _times(self, entries: Tensor, vector: Tensor) -> Tensor:
        return (self._fill(entries) @ vector.unsqueeze(-1)).squeeze(-1)


def _product(factors: Sequence[Tensor]) -> Tensor:
    value = factors[0]
    for factor in factors[1:]:
        value = value * factor
    return value
