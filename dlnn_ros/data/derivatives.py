"""
Offline, zero-phase derivatives of a recording.

A derivative is taken over one recording at a time, so never across a gap. Time stamps may be
irregular: methods that need a uniform grid (Savitzky-Golay, spectral, low-pass) work on one with
the median sample period, reached by cubic interpolation, and are evaluated back at the stamps.

    central    three-point differences, second order in the sample period
    spline     interpolating spline of odd degree `order` through every sample, no smoothing
    savgol     local polynomial of degree `order` over `window_s`
    spectral   sine series after a cubic is taken out, cut off smoothly at `cutoff_hz`
    lowpass    Butterworth of order 4, forward and backward, at `cutoff_hz`; then a cubic spline

'auto' takes the spline up to 50 Hz, where recordings are band-limited already and every sample
counts, and the low-pass at 20 Hz above that, where encoder noise dominates the acceleration.
Measured on the 250 Hz KUKA recordings, share of torque explained by rigid bodies, gravity scale
and friction fitted per axis, mean of six: spline .824, low-pass at 5 / 10 / 20 / 40 Hz .87 / .881
/ .894 / .898. Lower cut-offs ripple at rest, which costs the sign of the velocity; higher ones
let the noise of the acceleration through (it grows with the cut-off to the power 2.5).
"""

from __future__ import annotations

from dataclasses import dataclass
import math

from dlnn_ros.data.trajectory import Recording, Trajectory
import numpy as np
from scipy.interpolate import CubicSpline, make_interp_spline
from scipy.signal import butter, savgol_filter, sosfiltfilt

METHODS = ('auto', 'central', 'savgol', 'spline', 'spectral', 'lowpass')
AUTO_SPLINE_UP_TO_HZ = 50.0
DEFAULT_CUTOFF_HZ = 20.0
# A uniform grid this much longer than the recording means that most of it would be invented.
MAX_GRID_GROWTH = 4.0


@dataclass(frozen=True)
class Derivatives:
    """
    How velocity and acceleration are derived.

    Attributes
    ----------
    method : str
        One of `METHODS`.
    cutoff_hz : float or None
        Cut-off frequency of 'lowpass' [Hz], 20 where None, and of 'spectral', none where None.
    window_s : float or None
        Window of 'savgol' [s]; where None the shortest that smooths, `order + 4` samples.
    order : int
        Polynomial degree of 'savgol' and 'spline'; a spline needs an odd one.
    use_velocity : bool
        Take the velocity of the messages and derive the acceleration from it, which is better
        where position is coarse (Panda: noise of 2 to 4 in place of 65 to 97 rad/s^2).

    """

    method: str = 'auto'
    cutoff_hz: float | None = None
    window_s: float | None = None
    order: int = 3
    use_velocity: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f'derivative method {self.method!r} must be one of {METHODS}')
        for name in ('cutoff_hz', 'window_s'):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f'{name} must be positive, got {value}')
        if self.cutoff_hz is not None and self.method in ('central', 'savgol', 'spline'):
            raise ValueError(
                f'cutoff_hz {self.cutoff_hz:g} has no effect on method {self.method!r}; '
                'leave it out or choose lowpass or spectral'
            )
        if not 2 <= self.order <= 7:
            raise ValueError(f'order must be between 2 and 7, got {self.order}')
        if self.method == 'spline' and self.order % 2 == 0:
            raise ValueError(f'order of a spline must be odd, got {self.order}')


def differentiate(recording: Recording, derivatives: Derivatives | None = None) -> Trajectory:
    """
    Return the recording with velocity and acceleration.

    Raises
    ------
    ValueError
        The recording is too short or too sparse for the method, the cut-off is not below half
        the sample rate, or `use_velocity` is asked of a recording without velocity.

    """
    settings = derivatives or Derivatives()
    method = settings.method
    if method == 'auto':
        is_slow = recording.rate_hz <= AUTO_SPLINE_UP_TO_HZ and settings.cutoff_hz is None
        method = 'spline' if is_slow else 'lowpass'
    _check_length(recording, method, settings)
    derive = {
        'central': _central,
        'spline': _spline,
        'savgol': _savgol,
        'spectral': _spectral,
        'lowpass': _lowpass,
    }[method]
    q, qd, qdd, label = derive(recording, recording.q, settings)
    if settings.use_velocity:
        if recording.velocity is None:
            raise ValueError(
                f'{recording.name}: use_velocity is set but the recording has no velocity'
            )
        qd, qdd, _, label = derive(recording, recording.velocity, settings)
        label = f'{label}, qdd from the message velocity'
    return Trajectory(recording, q, qd, qdd, label)


Derived = tuple[np.ndarray, np.ndarray, np.ndarray, str]


def _check_length(recording: Recording, method: str, settings: Derivatives) -> None:
    least = {
        'central': 4,
        'spline': max(4, settings.order + 1),
        'savgol': _window(recording, settings),
        'spectral': 8,
        'lowpass': 8,
    }[method]
    if len(recording.t) < least:
        raise ValueError(
            f'{recording.name}: {len(recording.t)} samples are too few for method '
            f'{method!r}, which needs {least}'
        )


def _central(recording: Recording, x: np.ndarray, settings: Derivatives) -> Derived:
    del settings
    h = np.diff(recording.t)[:, None]
    slope = np.diff(x, axis=0) / h
    xdd = np.empty_like(x)
    xdd[1:-1] = 2 * (slope[1:] - slope[:-1]) / (h[1:] + h[:-1])
    # Linear extrapolation keeps second order at the ends.
    xdd[0] = xdd[1] + (xdd[1] - xdd[2]) * h[0] / h[1]
    xdd[-1] = xdd[-2] + (xdd[-2] - xdd[-3]) * h[-1] / h[-2]
    xd = np.gradient(x, recording.t, axis=0, edge_order=2)
    return x, xd, xdd, 'central differences'


def _spline(recording: Recording, x: np.ndarray, settings: Derivatives) -> Derived:
    t = recording.t - recording.t[0]
    spline = make_interp_spline(t, x, k=settings.order, axis=0)
    label = f'interpolating spline of degree {settings.order}'
    return x, spline(t, 1), spline(t, 2), label


def _savgol(recording: Recording, x: np.ndarray, settings: Derivatives) -> Derived:
    grid, y, dt = _uniform(recording, x)
    window = _window(recording, settings)
    parts = (
        savgol_filter(y, window, settings.order, deriv=k, delta=dt, axis=0, mode='interp')
        for k in range(3)
    )
    t = recording.t - recording.t[0]
    x, xd, xdd = (_at(grid, part, t) for part in parts)
    return x, xd, xdd, f'Savitzky-Golay of degree {settings.order} over {window * dt:.4g} s'


def _spectral(recording: Recording, x: np.ndarray, settings: Derivatives) -> Derived:
    grid, y, dt = _uniform(recording, x)
    span = grid[-1]
    # A cubic with the values and second derivatives of the ends: what is left vanishes there
    # together with its second derivative, so its odd extension is smooth enough for a series.
    ends = CubicSpline(grid, y, axis=0)(grid[[0, -1]], 2)
    s = (grid / span)[:, None]
    bend = span**2 * (ends[0] * (-(s**3) / 6 + s**2 / 2 - s / 3) + ends[1] * (s**3 / 6 - s / 6))
    bend_d = span * (ends[0] * (-(s**2) / 2 + s - 1 / 3) + ends[1] * (s**2 / 2 - 1 / 6))
    bend_dd = ends[0] * (1 - s) + ends[1] * s
    line_d = (y[-1] - y[0]) / span
    rest = y - (y[0] + line_d * grid[:, None]) - bend
    odd = np.concatenate([rest, -rest[-2:0:-1]])
    f = np.fft.rfftfreq(len(odd), dt)
    spectrum = np.fft.rfft(odd, axis=0)
    label = 'spectral'
    if settings.cutoff_hz is not None:
        _check_cutoff(recording, settings.cutoff_hz, dt)
        # A raised cosine over half an octave either way rings less than a sharp edge.
        octaves = np.log2(np.maximum(f, f[1]) / settings.cutoff_hz)
        gain = 0.5 - 0.5 * np.sin(np.pi * np.clip(octaves, -0.5, 0.5))
        spectrum = spectrum * gain[:, None]
        label = f'spectral, cut off at {settings.cutoff_hz:g} Hz'
    omega = 2j * np.pi * f[:, None]
    if len(odd) % 2 == 0:
        omega[-1] = 0  # the sign of the Nyquist frequency is not known
    n = len(grid)
    back = [np.fft.irfft(spectrum * omega**k, len(odd), axis=0)[:n] for k in range(3)]
    parts = (y[0] + line_d * grid[:, None] + bend + back[0], line_d + bend_d + back[1])
    t = recording.t - recording.t[0]
    x, xd, xdd = (_at(grid, part, t) for part in (*parts, bend_dd + back[2]))
    return x, xd, xdd, label


def _lowpass(recording: Recording, x: np.ndarray, settings: Derivatives) -> Derived:
    grid, y, dt = _uniform(recording, x)
    cutoff = DEFAULT_CUTOFF_HZ if settings.cutoff_hz is None else settings.cutoff_hz
    _check_cutoff(recording, cutoff, dt)
    sos = butter(4, cutoff, fs=1 / dt, output='sos')
    # Odd padding of two periods of the cut-off lets the start-up transient die out.
    pad = min(len(grid) - 1, math.ceil(2 / (cutoff * dt)))
    spline = CubicSpline(grid, sosfiltfilt(sos, y, axis=0, padtype='odd', padlen=pad), axis=0)
    t = recording.t - recording.t[0]
    label = f'zero-phase Butterworth low-pass of order 4 at {cutoff:g} Hz, cubic spline'
    return spline(t), spline(t, 1), spline(t, 2), label


def _check_cutoff(recording: Recording, cutoff_hz: float, dt: float) -> None:
    if cutoff_hz >= 0.5 / dt:
        raise ValueError(
            f'{recording.name}: cut-off {cutoff_hz:g} Hz is not below half the sample rate '
            f'of {1 / dt:.4g} Hz'
        )


def _window(recording: Recording, settings: Derivatives) -> int:
    """Return the window of Savitzky-Golay in samples, odd."""
    samples = settings.order + 4
    if settings.window_s is not None:
        samples = round(settings.window_s * recording.rate_hz)
        if samples <= settings.order:
            raise ValueError(
                f'{recording.name}: window_s {settings.window_s:g} s holds {samples} samples at '
                f'{recording.rate_hz:.4g} Hz, degree {settings.order} needs more'
            )
    return samples + (samples % 2 == 0)


def _uniform(recording: Recording, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return a uniform grid [s from the first stamp], `x` on it and its period [s]."""
    t = recording.t - recording.t[0]
    period = np.median(np.diff(t))
    n = round(t[-1] / period) + 1
    if n > MAX_GRID_GROWTH * len(t):
        raise ValueError(
            f'{recording.name}: {len(t)} samples over {t[-1]:.4g} s leave most of a grid of '
            f'{period * 1e3:.4g} ms empty; cut the recording at its gaps'
        )
    grid = np.linspace(0, t[-1], n)
    if n == len(t) and np.abs(grid - t).max() < 1e-6 * period:
        return grid, x, float(grid[1])
    return grid, CubicSpline(t, x, axis=0)(grid), float(grid[1])


def _at(grid: np.ndarray, x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return `x` at the times `t`."""
    if len(grid) == len(t) and np.abs(grid - t).max() < 1e-6 * grid[1]:
        return x
    return CubicSpline(grid, x, axis=0)(t)
