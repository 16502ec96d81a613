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
    """Products (P, B) and their derivatives by the joint of each factor, (D, P, B)."""

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
        weight = self._potential_row().unsqueeze(1) - C.T @ self._energy_weights(qd.T)
        inertial = _times(self._fill(C @ products.value), qdd)
        Mdot_qd = _times(self._fill(C @ self._rate(products, qd.T)), qd)
        return inertial + Mdot_qd + self._gradient(products, weight)

    def terms(self, q: Tensor, qd: Tensor) -> ConservativeTerms:
        """Return M, c and g apart."""
        products = self._products(q)
        C = self._mass_rows()
        Mdot_qd = _times(self._fill(C @ self._rate(products, qd.T)), qd)
        c = Mdot_qd - self._gradient(products, C.T @ self._energy_weights(qd.T))
        g = self._gradient(products, self._potential_row().unsqueeze(1))
        return ConservativeTerms(self._fill(C @ products.value), c, g)

    def mass_matrix(self, q: Tensor) -> Tensor:
        """Return M, (B, n, n), symmetric."""
        return self._fill(self._mass_rows() @ self._products(q).value)

    def potential(self, q: Tensor) -> Tensor:
        """Return V, (B,), without its constant (Eq. 11)."""
        return self._potential_row() @ self._products(q).value

    def regressor(self, q: Tensor, qd: Tensor, qdd: Tensor) -> Tensor:
        """
        Return the columns that make the torque linear in the coefficients.

        Returns
        -------
        Tensor, (B, n, K_M + K_V)
            `regressor @ cat([mass_coefficients, potential_coefficients])` equals `inverse`.
            A view whose contiguous axis is the batch.

        """
        products = self._products(q)
        qd, qdd = qd.T, qdd.T
        masses = len(self.mass_coefficients)
        size = masses + len(self.potential_coefficients)
        k = torch.arange(size, device=q.device)
        m, v = k[:masses], k[masses:]
        i, j = self.rows[self.mass_entry], self.columns[self.mass_entry]
        phi = products.value[self.mass_product]
        phi_dot = self._rate(products, qd)[self.mass_product]
        w = self._energy_weights(qd)[self.mass_entry]
        # Row joint * size + column; adding whole rows is several times faster than 2-d indices.
        out = q.new_zeros(self.n * size, len(q))
        out.index_add_(0, i * size + m, phi * qdd[j] + phi_dot * qd[j])
        off = i != j
        momentum_rate = phi[off] * qdd[i[off]] + phi_dot[off] * qd[i[off]]
        out.index_add_(0, j[off] * size + m[off], momentum_rate)
        for slope, joint in zip(products.slope, self.joints.unbind(-1), strict=True):
            rows = joint[self.mass_product] * size + m
            out.index_add_(0, rows, slope[self.mass_product] * w, alpha=-1)
            rows = joint[self.potential_product] * size + v
            out.index_add_(0, rows, slope[self.potential_product])
        return out.view(self.n, size, len(q)).permute(2, 0, 1)

    # Below, the batch is the last axis: tables then pick whole rows of memory.

    def _products(self, q: Tensor) -> _Products:
        q = q.T
        scale = self.inverse_scale.unsqueeze(1)
        x, sin, cos = q * scale, torch.sin(q), torch.cos(q)
        one = torch.ones_like(q[:1])
        functions = self._row(one, sin, cos, x, x * x)
        slopes = self._row(0 * one, cos, -sin, scale.expand_as(q), 2 * x * scale)
        tables = self.factors.unbind(-1)
        if not tables:  # M constant, no V
            return _Products(one, q.new_zeros(0, 1, q.shape[1]))
        factors = [functions[table] for table in tables]
        slope = [
            _product([slopes[table], *factors[:d], *factors[d + 1 :]])
            for d, table in enumerate(tables)
        ]
        return _Products(_product(factors), torch.stack(slope))

    def _row(
        self, constant: Tensor, sin: Tensor, cos: Tensor, first: Tensor, second: Tensor
    ) -> Tensor:
        """Return the row of functions of all joints, (1 + 2 n, B)."""
        is_revolute = self.is_revolute.unsqueeze(1)
        f = torch.where(is_revolute, sin, first)
        g = torch.where(is_revolute, cos, second)
        return torch.cat([constant, torch.stack([f, g], 1).flatten(0, 1)])

    def _rate(self, products: _Products, qd: Tensor) -> Tensor:
        """Return the products' time derivatives, (P, B)."""
        return (products.slope * qd[self.joints.T]).sum(0)

    def _gradient(self, products: _Products, weight: Tensor) -> Tensor:
        """Return sum_p weight_p grad phi_p, (B, n); `weight` (P, B) or (P, 1)."""
        parts = (products.slope * weight).flatten(0, 1)
        zero = parts.new_zeros(self.n, parts.shape[1])
        return zero.index_add(0, self.joints.T.flatten(), parts).T

    def _energy_weights(self, qd: Tensor) -> Tensor:
        """Return the w of each entry of M, (E, B)."""
        w = qd[self.rows] * qd[self.columns]
        return torch.where((self.rows == self.columns).unsqueeze(1), 0.5 * w, w)

    def _mass_rows(self) -> Tensor:
        """Return C, (E, P)."""
        C = self.mass_coefficients.new_zeros(len(self.rows), len(self.factors))
        return C.index_put((self.mass_entry, self.mass_product), self.mass_coefficients)

    def _potential_row(self) -> Tensor:
        """Return the coefficient in V of each product, (P,)."""
        zero = self.potential_coefficients.new_zeros(len(self.factors))
        return zero.index_put((self.potential_product,), self.potential_coefficients)

    def _fill(self, entries: Tensor) -> Tensor:
        """Return symmetric matrices (B, n, n) of the entries (E, B)."""
        matrix = entries.new_zeros(self.n, self.n, entries.shape[1])
        matrix[self.rows, self.columns] = entries
        matrix[self.columns, self.rows] = entries
        return matrix.permute(2, 0, 1)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _product(factors: Sequence[Tensor]) -> Tensor:
    value = factors[0]
    for factor in factors[1:]:
        value = value * factor
    return value
