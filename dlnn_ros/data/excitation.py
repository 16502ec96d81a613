"""
Reference motion for identification: multi-sine and stop-and-go, inside the joint limits.

A motion starts and ends at rest. Its first part is a sum of sines of random frequency under a
smooth window; its second part goes from pose to pose on quintic polynomials with a pause at each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# Excitation band [Hz]: slow sines reach far, fast ones reverse often.
LOWEST_HZ, HIGHEST_HZ, SINES = 0.05, 0.6, 6
PAUSE_S = (0.25, 0.6)
# Rest at the start and the end of a motion [s].
END_PAUSE_S = 0.4
# Share of the joints that take part in a move from pose to pose.
MOVING_JOINTS = 0.9
SHORTEST_MOVE_S = 0.8
ATTEMPTS = 40

# Peak speed and acceleration of the quintic 10 x^3 - 15 x^4 + 6 x^5 over a unit time.
QUINTIC_SPEED, QUINTIC_ACCELERATION = 15 / 8, 10 / 3**0.5


class Motion(NamedTuple):
    """Reference on a time grid, arrays (N, n) [rad | m, /s, /s^2]."""

    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray


@dataclass(frozen=True, eq=False)
class Box:
    """
    What a motion must stay inside.

    Attributes
    ----------
    lower, upper, velocity, acceleration : array, (n,)
        Bounds on position, speed and acceleration [rad | m, /s, /s^2].
    is_within_torque : callable
        Says of a :class:`Motion` whether the drives can follow it.

    """

    lower: np.ndarray
    upper: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray
    is_within_torque: Callable[[Motion], bool]


def make_motion(
    rng: np.random.Generator, box: Box, duration_s: float, time_step_s: float, stop_and_go: float
) -> Motion:
    """
    Draw a random motion.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of all random numbers.
    box : Box
        Limits.
    duration_s, time_step_s : float
        Duration and grid [s].
    stop_and_go : float
        Share of the time for stop-and-go, 0 to 1.

    Raises
    ------
    ValueError
        If no motion inside the torque limits is found.

    """
    count = round(duration_s / time_step_s)
    pause = round(END_PAUSE_S / time_step_s)
    moving = count - 2 * pause
    sines = round(moving * (1.0 - stop_and_go))
    sines = sines if sines * time_step_s > 2 * SHORTEST_MOVE_S else 0
    parts = [rest_at(_draw_pose(rng, box), pause)]
    if sines:
        multi_sine = _make_multi_sine(rng, box, sines, time_step_s)
        parts = [rest_at(multi_sine.q[0], pause), multi_sine]
    left = count - sum(len(p.q) for p in parts)
    while left > 0:
        here = parts[-1].q[-1]
        longest = left - pause
        if longest * time_step_s < SHORTEST_MOVE_S:
            parts.append(rest_at(here, left))
            break
        if len(parts) > 1:
            stop = min(round(rng.uniform(*PAUSE_S) / time_step_s), left)
            parts.append(rest_at(here, stop))
            longest -= stop
        if longest * time_step_s >= SHORTEST_MOVE_S:
            parts.append(_make_move(rng, box, here, longest, time_step_s))
        left = count - sum(len(p.q) for p in parts)
    return Motion(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def rest_at(q: np.ndarray, count: int) -> Motion:
    """Return `count` samples of rest at the pose `q`, (n,)."""
    zero = np.zeros((count, len(q)))
    return Motion(zero + q, zero, zero)


def _draw_pose(rng: np.random.Generator, box: Box) -> np.ndarray:
    """Draw a pose of the middle 60 % of the range that the drives can hold."""
    for _ in range(ATTEMPTS):
        q = box.lower + (box.upper - box.lower) * rng.uniform(0.2, 0.8, len(box.lower))
        if box.is_within_torque(rest_at(q, 1)):
            return q
    raise ValueError(
        f'no pose found that the effort limits can hold, in {ATTEMPTS} attempts; '
        'check effort limits, payload and counterbalance'
    )


def _make_multi_sine(rng: np.random.Generator, box: Box, count: int, time_step_s: float) -> Motion:
    t = time_step_s * np.arange(count)
    n = len(box.lower)
    window = _window(t, min(2.0, t[-1] / 3))
    for _ in range(ATTEMPTS):
        center = _draw_pose(rng, box)
        hz = np.exp(rng.uniform(np.log(LOWEST_HZ), np.log(HIGHEST_HZ), (SINES, n)))
        omega = 2 * np.pi * hz
        # Equal speed of all sines on average.
        size = rng.uniform(0.3, 1.0, (SINES, n)) / omega
        phase = omega * t[:, None, None] + rng.uniform(0, 2 * np.pi, (SINES, n))
        sine, cosine = np.sin(phase), np.cos(phase)
        s = (size * sine).sum(1)
        sd = (size * omega * cosine).sum(1)
        sdd = -(size * omega**2 * sine).sum(1)
        w, wd, wdd = (x[:, None] for x in window)
        y, yd, ydd = w * s, wd * s + w * sd, wdd * s + 2 * wd * sd + w * sdd
        scale = _largest_scale(box, center, y, yd, ydd) * rng.uniform(0.7, 1.0, n)
        for shrink in 0.85 ** np.arange(10):
            a = shrink * scale
            motion = Motion(center + a * y, a * yd, a * ydd)
            if box.is_within_torque(motion):
                return motion
    raise ValueError(f'no motion inside the effort limits found in {ATTEMPTS} attempts')


def _largest_scale(
    box: Box, center: np.ndarray, y: np.ndarray, yd: np.ndarray, ydd: np.ndarray
) -> np.ndarray:
    tiny = 1e-9
    return np.min(
        [
            (box.upper - center) / np.maximum(y.max(0), tiny),
            (center - box.lower) / np.maximum(-y.min(0), tiny),
            box.velocity / np.maximum(np.abs(yd).max(0), tiny),
            box.acceleration / np.maximum(np.abs(ydd).max(0), tiny),
        ],
        axis=0,
    )


def _window(t: np.ndarray, ramp_s: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a window that rises and falls smoothly, with two derivatives."""
    up = _quintic(np.minimum(t / ramp_s, 1.0))
    down = _quintic(np.minimum((t[-1] - t) / ramp_s, 1.0))
    return (
        up[0] * down[0],
        (up[1] * down[0] - up[0] * down[1]) / ramp_s,
        (up[2] * down[0] - 2 * up[1] * down[1] + up[0] * down[2]) / ramp_s**2,
    )


def _quintic(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return 10 x^3 - 15 x^4 + 6 x^5 and two derivatives; at rest at x = 0 and 1."""
    return (
        x**3 * (10 - 15 * x + 6 * x * x),
        30 * x**2 * (1 - x) ** 2,
        60 * x * (1 - x) * (1 - 2 * x),
    )


def _make_move(
    rng: np.random.Generator, box: Box, start: np.ndarray, longest: int, time_step_s: float
) -> Motion:
    """Move to another pose in at most `longest` samples; some joints stay where they are."""
    longest_s = longest * time_step_s
    for _ in range(ATTEMPTS):
        moves = rng.random(len(start)) < MOVING_JOINTS
        way = np.where(moves, _draw_pose(rng, box) - start, 0.0)
        fastest_s = max(
            (QUINTIC_SPEED * np.abs(way) / box.velocity).max(),
            np.sqrt(QUINTIC_ACCELERATION * np.abs(way) / box.acceleration).max(),
            SHORTEST_MOVE_S,
        )
        duration_s = fastest_s * rng.uniform(1.0, 1.6)
        if duration_s > longest_s:
            # Shorter by the square: speed and acceleration both stay inside.
            way = way * min(1.0, (longest_s / fastest_s) ** 2)
            duration_s = longest_s
        for slower in (1.0, 1.3, 1.7):
            count = min(round(slower * duration_s / time_step_s), longest)
            x = np.arange(1, count + 1) / count
            T = count * time_step_s
            p, pd, pdd = (f[:, None] for f in _quintic(x))
            motion = Motion(start + way * p, way * pd / T, way * pdd / T**2)
            if box.is_within_torque(motion):
                return motion
    return rest_at(start, longest)
