"""
Index tables of the trigonometric model, shared by torch and numpy.

A product phi(q) takes at most one function of each joint: sin q or cos q of a revolute joint, x or
x^2 with x = q / scale of a prismatic one.  The functions of all joints stand in one row,

    [1, f_0, g_0, f_1, g_1, ...],    f, g = sin, cos  or  x, x^2

and a product is a row of indices into it, padded with 0, the constant.
"""

from __future__ import annotations

from collections.abc import Iterable
import itertools
from typing import NamedTuple

import numpy as np


class Terms(NamedTuple):
    """
    Index tables, all of int64.

    Attributes
    ----------
    factors : array, (P, D)
        Products as indices into the row of functions.
    joints : array, (P, D)
        The joint of each factor; 0 for padding, whose slope is zero.
    rows, columns : array, (E,)
        Upper triangle of M, rows <= columns.
    mass_entry, mass_product : array, (K_M,)
        Each mass term as an index into the upper triangle and one into the products.
    potential_product : array, (K_V,)
        Each term of V as an index into the products.

    """

    factors: np.ndarray
    joints: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    mass_entry: np.ndarray
    mass_product: np.ndarray
    potential_product: np.ndarray


def _products(joints: Iterable[int], degree: int) -> list[tuple[int, ...]]:
    """Return all products of up to `degree` different joints, the constant first."""
    functions = [(1 + 2 * j, 2 + 2 * j) for j in joints]
    return [
        product
        for size in range(degree + 1)
        for chosen in itertools.combinations(functions, size)
        for product in itertools.product(*chosen)
    ]


def make_terms(n: int, mass_degree: int, potential_degree: int, has_gravity: bool) -> Terms:
    """
    Return the terms of M and V of a serial chain whose joints are given in chain order.

    M_ij is the inertia of the links beyond joint max(i, j), seen from joints i and j; where they
    are seen from joint min(i, j), its own angle does not matter: M_ij depends on the joints after
    min(i, j) only.  V depends on all joints and has no constant, which no torque tells (Eq. 11).

    Parameters
    ----------
    n : int
        Number of joints.
    mass_degree, potential_degree : int
        Largest number of joints in a product, >= 0.
    has_gravity : bool
        False leaves V out.

    Raises
    ------
    ValueError
        A negative degree.

    """
    for name, degree in (('mass_degree', mass_degree), ('potential_degree', potential_degree)):
        if degree < 0:
            raise ValueError(f'{name} is {degree}, must be >= 0')
    rows, columns = np.triu_indices(n)
    mass = [
        (entry, product)
        for entry, i in enumerate(rows.tolist())
        for product in _products(range(i + 1, n), mass_degree)
    ]
    potential = _products(range(n), potential_degree)[1:] if has_gravity else []
    products = list(dict.fromkeys([*(product for _, product in mass), *potential]))
    index = {product: k for k, product in enumerate(products)}
    width = max(map(len, products))
    factors = np.array([p + (0,) * (width - len(p)) for p in products]).reshape(
        len(products), width
    )
    return Terms(
        factors=factors.astype(np.int64),
        joints=np.maximum(factors - 1, 0).astype(np.int64) // 2,
        rows=rows.astype(np.int64),
        columns=columns.astype(np.int64),
        mass_entry=np.array([entry for entry, _ in mass], np.int64),
        mass_product=np.array([index[p] for _, p in mass], np.int64),
        potential_product=np.array([index[p] for p in potential], np.int64),
    )
