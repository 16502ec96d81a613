"""
One sample at a time in numpy, without torch in the process; float64.

The same sums as the models of dynamics/; the tests hold it to them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dlnn_ros.config import from_mapping, Robot
from dlnn_ros.dynamics.architecture import (
    DlnnConfig,
    DlnnMemoryConfig,
    EnsembleConfig,
    LinearConfig,
    LinearMemoryConfig,
    make_config,
    MemoryConfig,
    MlpConfig,
    Scales,
    WAY_GAIN,
)
from dlnn_ros.learning.model_folder import (
    DESCRIPTION_FILE,
    load_description,
    load_params,
    ModelDescription,
)
import numpy as np

from .numpy_networks import Checked, Encoding, Network, reciprocal, Triangle
from .numpy_trigonometric import Trigonometric

if TYPE_CHECKING:
    from .numpy_memory import Memory


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
        params = Checked(where, load_params(folder, self.description))
        self._model = _make(self.description, where, params)
        params.check_all_used()
        self.has_memory = self._model.has_memory
        self._gear_ratio = self.description.robot.gear_ratio

    def reset(self) -> None:
        """Forget the past; the next sample starts a new motion."""
        self._model.reset()

    def start(self, q: np.ndarray, effort: np.ndarray) -> None:
        """Begin at rest at q, (n,), with the effort, (n,), that was measured there."""
        self._model.start(q, effort * self._gear_ratio)

    def predict(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray, dt: float) -> np.ndarray:
        """Return the effort, (n,), in the units that the model was trained on."""
        return self._model(q, qd, qdd, dt) / self._gear_ratio


def _make(description: ModelDescription, where: str, params: Checked) -> _Model:
    """Build what evaluates a model."""
    config = make_config(description.kind, description.config, f'{where}: config')
    scales = from_mapping(Scales, description.scales, f'{where}: scales')
    robot = description.robot
    if isinstance(config, MlpConfig):
        return _Mlp(config, scales, robot, params)
    if isinstance(config, LinearConfig):
        return _Linear(config, robot.n, params)
    prefixes = ['']
    if isinstance(config, EnsembleConfig):
        prefixes = [f'members.{k}.' for k in range(config.members)]
        config = make_config(config.kind, config.options, f'{where}: config.options')
    return _Lagrangian(config, scales, robot, description.has_gravity, where, params, prefixes)


class _Model:
    """Torque of a sample, (n,) [N m | N], on the joint side."""

    has_memory = False

    def __call__(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray, dt: float) -> np.ndarray:
        raise NotImplementedError

    def reset(self) -> None:
        """Forget the past."""

    def start(self, q: np.ndarray, tau: np.ndarray) -> None:
        """Begin at rest."""


class _Lagrangian(_Model):
    """Conservative part, friction, and friction with memory; the mean over the members."""

    def __init__(
        self,
        config: DlnnConfig | LinearMemoryConfig,
        scales: Scales,
        robot: Robot,
        has_gravity: bool,
        where: str,
        params: Checked,
        prefixes: list[str],
    ) -> None:
        self._unit = scales.torque / len(prefixes)
        self._rest = np.zeros(robot.n)
        encoding = Encoding(robot, scales)
        self._members: list[_Dlnn | _Linearly] = []
        memory: MemoryConfig | None = None
        if isinstance(config, LinearMemoryConfig):
            memory = config.memory
            for prefix in prefixes:
                member = _Linearly(config, scales, robot, has_gravity, where, params, prefix)
                self._members.append(member)
        else:
            if config.aux_size:
                raise ValueError(f'{where}: models with auxiliary inputs cannot be served')
            if isinstance(config, DlnnMemoryConfig):
                memory = config.memory
            for prefix in prefixes:
                self._members.append(_Dlnn(config, scales, encoding, has_gravity, params, prefix))
        self._memories: list[Memory] = []
        if memory is not None:
            from .numpy_memory import Memory  # numba takes 0.3 s to import

            self._memories = [Memory(memory, encoding, params, f'{p}memory.') for p in prefixes]
        self.has_memory = memory is not None

    def __call__(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray, dt: float) -> np.ndarray:
        tau = np.zeros(len(q))
        for member in self._members:
            tau += member.conserve(q, qd, qdd)
            tau += member.dissipate(q, qd)
        for memory in self._memories:
            tau += memory.step(q, qd, dt)
        return self._unit * tau

    def reset(self) -> None:
        for memory in self._memories:
            memory.reset()

    def start(self, q: np.ndarray, tau: np.ndarray) -> None:
        if not self._memories:
            return
        gravity = sum(m.conserve(q, self._rest, self._rest) for m in self._members)
        capacity = sum(memory.capacity(q) for memory in self._memories)
        bent = np.clip((tau / self._unit - gravity) / capacity, -1.0, 1.0)
        for memory in self._memories:
            memory.start(q, bent)


class _Dlnn:
    """The networks of a dLNN: one tangent and one gradient pass, and the friction."""

    def __init__(
        self,
        config: DlnnConfig,
        scales: Scales,
        encoding: Encoding,
        has_gravity: bool,
        params: Checked,
        prefix: str,
    ) -> None:
        self.config = config
        self.encoding = encoding
        n = encoding.n
        self.triangle = Triangle(n)
        size = self.triangle.size
        self.trunk = Network(
            params,
            f'{prefix}conservative.trunk',
            encoding.size,
            config.width,
            config.depth,
            size + int(has_gravity),
        )
        self.dissipation: Network | None = None
        if config.dissipative:
            self.inverse_velocity = reciprocal(scales.velocity)
            levels = (2 if config.asymmetric else 1) * n if config.coulomb else 0
            self.dissipation = Network(
                params,
                f'{prefix}dissipation.net',
                encoding.size + n,
                config.dissipation_width,
                config.dissipation_depth,
                size + levels,
            )

    def conserve(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
        """Return M qdd + c + g, Eqs. (3), (4)."""
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
        return tau - self.encoding.gradient(x, self.trunk.gradient(slopes, ybar))

    def dissipate(self, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
        """Return d, Eqs. (7) and (8)."""
        if self.dissipation is None:
            return np.zeros(len(q))
        config = self.config
        size = self.triangle.size
        y = self.dissipation(np.concatenate((self.encoding(q), qd * self.inverse_velocity)))
        chol = self.triangle.factor(config.dissipation_scale * y[:size])
        d = chol @ (qd @ chol) + config.dissipation_eps * qd
        if config.coulomb:
            level = np.logaddexp(0.0, y[size:])
            if config.asymmetric:
                forwards, backwards = np.split(level, 2)
                level = np.where(qd > 0, forwards, backwards)
            d += level * np.tanh(config.coulomb_gain * qd)
        return d


class _Linearly:
    """The parts of a model that is linear in its parameters, Eq. (21)."""

    def __init__(
        self,
        config: LinearMemoryConfig,
        scales: Scales,
        robot: Robot,
        has_gravity: bool,
        where: str,
        params: Checked,
        prefix: str,
    ) -> None:
        self._gain = config.coulomb_gain
        mass_degree, potential_degree = config.mass_degree, config.potential_degree
        if mass_degree is None or potential_degree is None:
            raise ValueError(f'{where}: config: mass_degree and potential_degree are missing')
        self._terms = Trigonometric(
            robot.is_revolute.tolist(),
            scales.position,
            mass_degree,
            potential_degree,
            has_gravity,
            config.stribeck_velocities,
            params,
            prefix,
        )

    def conserve(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
        """Return M qdd + c + g."""
        return self._terms(q, qd, qdd)

    def dissipate(self, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
        """Return d."""
        del q
        return self._terms.dissipate(qd, np.tanh(self._gain * qd))


class _Mlp(_Model):
    """The perceptron baseline, Eq. (16), with its window of past samples."""

    def __init__(self, config: MlpConfig, scales: Scales, robot: Robot, params: Checked) -> None:
        self.encoding = Encoding(robot, scales)
        self.velocity_sign = config.velocity_sign
        self.inverse_velocity = reciprocal(scales.velocity)
        self.inverse_acceleration = reciprocal(scales.acceleration)
        self.torque_scale = scales.torque
        signs = robot.n if config.velocity_sign else 0
        inputs = self.encoding.size + 2 * robot.n + signs
        inputs += config.window * (2 * robot.n + signs)
        self.net = Network(params, 'net', inputs, config.width, config.depth, robot.n)
        self._past_q = np.zeros((config.window, robot.n))
        self._past_qd = np.zeros((config.window, robot.n))
        self._has_past = False
        self._window = config.window

    def __call__(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray, dt: float) -> np.ndarray:
        del dt
        parts = [self.encoding(q), qd * self.inverse_velocity, qdd * self.inverse_acceleration]
        if self.velocity_sign:
            parts.append(np.sign(qd))
        if self._window:
            parts += self._look_back(q, qd)
        return self.torque_scale * self.net(np.concatenate(parts))

    def reset(self) -> None:
        self._has_past = False

    def _look_back(self, q: np.ndarray, qd: np.ndarray) -> list[np.ndarray]:
        """Return the inputs of the window, and move it on."""
        if not self._has_past:
            self._past_q[:] = q
            self._past_qd[:] = 0.0
            self._has_past = True
        parts = [
            np.arcsinh((q - self._past_q) * WAY_GAIN).ravel(),
            (self._past_qd * self.inverse_velocity).ravel(),
        ]
        if self.velocity_sign:
            parts.append(np.sign(self._past_qd).ravel())
        for past, present in ((self._past_q, q), (self._past_qd, qd)):
            past[:-1] = past[1:]
            past[-1] = present
        return parts


class _Linear(_Model):
    """The linear baseline, Eq. (16)."""

    def __init__(self, config: LinearConfig, n: int, params: Checked) -> None:
        self.config = config
        features = 3 * n + (n if config.velocity_sign else 0) + int(config.bias)
        self.weight = params.take('weight', n, features)

    def __call__(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray, dt: float) -> np.ndarray:
        del dt
        parts = [q, qd, qdd]
        if self.config.velocity_sign:
            parts.append(np.sign(qd))
        if self.config.bias:
            parts.append(np.ones(1))
        return self.weight @ np.concatenate(parts)
