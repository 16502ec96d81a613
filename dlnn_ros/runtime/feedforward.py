"""The control law without ROS: joint states by name in, feed-forward effort or a reason out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
import math
from typing import Any, NamedTuple, TYPE_CHECKING

from dlnn_ros.config import REST_SPEED
from dlnn_ros.runtime import estimators
from dlnn_ros.runtime.estimators import Estimate, FilteredDifference
import numpy as np

if TYPE_CHECKING:
    from dlnn_ros.learning.model_folder import ModelDescription
    from dlnn_ros.runtime.predictor import Predictor

VELOCITY_SOURCES = ('estimate', 'message')
MEMORY_SOURCES = ('effort', 'unbent')
# For so long after a reset the robot may be found at rest [s]; noise can hide it at first.
START_WINDOW_S = 0.2

# Play against position noise, in its standard deviations: at rest, one sample of thousands still
# moves the position.
DEAD_BAND = 3.5

# How a memory began.
NO_MEMORY = 'no memory'
FROM_EFFORT = 'effort at rest'
UNBENT = 'unknown, unbent'

MISSING_JOINTS = 'missing_joints'
REPEATED_JOINTS = 'repeated_joints'
ARRAY_LENGTH = 'array_length'
NOT_FINITE_STAMP = 'not_finite_stamp'
NOT_FINITE_POSITION = 'not_finite_position'
NOT_FINITE_VELOCITY = 'not_finite_velocity'
NOT_FINITE_OUTPUT = 'not_finite_output'
PREDICTION_FAILED = 'prediction_failed'
REJECTED = (
    MISSING_JOINTS,
    REPEATED_JOINTS,
    ARRAY_LENGTH,
    NOT_FINITE_STAMP,
    NOT_FINITE_POSITION,
    NOT_FINITE_VELOCITY,
    NOT_FINITE_OUTPUT,
    PREDICTION_FAILED,
)

_RESETS = (estimators.CLOCK_JUMP, estimators.GAP, estimators.POSITION_JUMP)


def dead_band(description: ModelDescription, deviations: float = DEAD_BAND) -> np.ndarray | None:
    """Return the play of each joint for the noise that a model was trained with; None for none."""
    noise = np.array(description.position_noise)
    return deviations * noise if noise.size else None


class Output(NamedTuple):
    """
    What one joint state led to.

    Attributes
    ----------
    effort : array, (n,), or None
        Feed-forward in the order of `FeedForward.joints`, always finite; the array is reused by
        the next call. None where there is none.
    outcome : str
        One of `estimators.OUTCOMES` or `REJECTED`; the key of `FeedForward.counts`.
    reason : str
        Why there is no effort, in one line; empty where there is one.

    """

    effort: np.ndarray | None
    outcome: str
    reason: str = ''


class FeedForward:
    """
    Estimator and predictor behind one call per joint state.

    Every value is looked up by name; the look-up is rebuilt when the list of names changes. The
    message may carry other joints, which are ignored. Each message must carry all joints of the
    model: one that does not is rejected, nothing is merged from several messages.

    Parameters
    ----------
    predictor : Predictor
        Its description names the joints.
    estimator : FilteredDifference or None
        None makes the default one for the joints of the model.
    velocity_source : str
        'estimate': velocity from positions; 'message': as reported, where a message has any.
    joint_prefix : str
        Put before each joint name of the model to get the name in messages.
    memory_source : str
        'effort': the memory of a robot found at rest starts from its measured effort; 'unbent':
        it never does, for robots that rest on their brakes or report no measured effort.

    Attributes
    ----------
    joints : list of str
        Names in messages and of the output, in the order of the model.
    counts : Counter
        Messages per outcome.
    ignored : tuple of str
        Joints in the latest message that the model does not know.
    messages_without_velocity : int
        Messages served from the estimate although `velocity_source` is 'message'.
    memory_start : str
        How the friction with memory last began: `FROM_EFFORT`, `UNBENT` or `NO_MEMORY`.
    resets : int
        Times that the state of estimator and memory was dropped while serving.

    """

    def __init__(
        self,
        predictor: Predictor,
        estimator: FilteredDifference | None = None,
        velocity_source: str = 'estimate',
        joint_prefix: str = '',
        memory_source: str = 'effort',
    ) -> None:
        if velocity_source not in VELOCITY_SOURCES:
            raise ValueError(
                f'velocity_source is {velocity_source!r}, must be one of {VELOCITY_SOURCES}'
            )
        if memory_source not in MEMORY_SOURCES:
            raise ValueError(
                f'memory_source is {memory_source!r}, must be one of {MEMORY_SOURCES}'
            )
        robot = predictor.description.robot
        if estimator is None:
            estimator = FilteredDifference(
                robot.n,
                continuous=np.array([k == 'continuous' for k in robot.kinds]),
                dead_band=dead_band(predictor.description),
            )
        if estimator.n != robot.n:
            raise ValueError(f'estimator is for {estimator.n} joints, the model has {robot.n}')
        self.predictor = predictor
        self.estimator = estimator
        self.velocity_source = velocity_source
        self.joint_prefix = joint_prefix
        self.memory_source = memory_source
        self.joints = [joint_prefix + name for name in robot.joints]
        self.counts: Counter[str] = Counter()
        self.ignored: tuple[str, ...] = ()
        self.messages_without_velocity = 0
        self.memory_start = UNBENT if predictor.has_memory else NO_MEMORY
        self.resets = 0
        self._since_reset_s: float | None = None
        self._first_q = np.zeros(robot.n)
        self._names: list[str] | None = None
        self._index = np.zeros(robot.n, np.intp)
        self._names_fault: Output | None = None
        self._q = np.zeros(robot.n)
        self._qd = np.zeros(robot.n)
        self._measured = np.zeros(robot.n)
        self._effort = np.zeros(robot.n)
        self._has_effort = False

    def reset(self) -> None:
        """Forget the motion so far; counts stay."""
        self.estimator.reset()
        self._reset_predictor()

    def _reset_predictor(self) -> None:
        self.predictor.reset()
        self._has_effort = False
        self._since_reset_s = None
        if self.predictor.has_memory:
            self.memory_start = UNBENT

    def warm_up(self, samples: int = 50) -> None:
        """
        Run invented samples through every step, then forget them.

        Raises
        ------
        ValueError
            If none of them leads to an effort.

        """
        q = np.zeros(len(self.joints))
        for k in range(samples):
            q += 1e-4
            output = self._process(1e-3 * k, self.joints, q, q, q)
        reason = '' if output.effort is not None else output.reason
        self.reset()
        self.messages_without_velocity = 0
        if reason:
            raise ValueError(f'the model cannot be served: {reason}')

    def process(
        self,
        stamp_s: float,
        names: Sequence[str],
        position: Any,
        velocity: Any = (),
        effort: Any = (),
    ) -> Output:
        """
        Take one joint state.

        Parameters
        ----------
        stamp_s : float
            Time of the sample [s]; the caller puts the receive time where a message has none.
        names : sequence of str
            Joint names in the order of the arrays, in any order.
        position, velocity, effort : array-like, (len(names),)
            Velocity and effort may be empty. A finite effort of a robot at rest, not zero
            throughout, sets the memory of a model that has one, once after each reset; nothing
            else uses it.

        """
        output = self._process(stamp_s, names, position, velocity, effort)
        self.counts[output.outcome] += 1
        return output

    def _process(
        self, stamp_s: float, names: Sequence[str], position: Any, velocity: Any, effort: Any
    ) -> Output:
        count = len(names)
        if (
            len(position) != count
            or len(velocity) not in (0, count)
            or len(effort) not in (0, count)
        ):
            return Output(
                None,
                ARRAY_LENGTH,
                f'joint state has {count} names but {len(position)} positions, {len(velocity)} '
                f'velocities and {len(effort)} efforts; velocity and effort may be empty, '
                'nothing else',
            )
        if names != self._names:
            self._look_up(names)
        if self._names_fault is not None:
            return self._names_fault
        if not math.isfinite(stamp_s):
            return Output(None, NOT_FINITE_STAMP, f'stamp is {stamp_s}')
        q = self._take(position, self._q)
        if not np.isfinite(q).all():
            return self._not_finite(NOT_FINITE_POSITION, 'position', q)
        qd = None
        if self.velocity_source == 'message':
            if len(velocity):
                qd = self._take(velocity, self._qd)
                if not np.isfinite(qd).all():
                    return self._not_finite(NOT_FINITE_VELOCITY, 'velocity', qd)
            else:
                self.messages_without_velocity += 1
        try:
            return self._predict(stamp_s, q, qd, effort)
        except (ArithmeticError, ValueError, RuntimeError) as error:
            # The state may hold half of this sample now.
            self.reset()
            self.resets += 1
            return Output(None, PREDICTION_FAILED, f'{type(error).__name__}: {error}')

    def _predict(
        self, stamp_s: float, q: np.ndarray, qd: np.ndarray | None, effort: Any
    ) -> Output:
        estimator = self.estimator
        estimate: Estimate | None = estimator.update(stamp_s, q, qd)
        if estimate is None:
            return self._without_estimate(estimator.outcome)
        may_start = self.memory_source == 'effort' and self.memory_start == UNBENT
        if may_start and (self._since_reset_s or 0.0) <= START_WINDOW_S:
            self._start_memory(estimate, effort)
        tau = self.predictor.predict(estimate.q, estimate.qd, estimate.qdd, estimate.dt)
        if not np.isfinite(tau).all():
            at = f'q {estimate.q.tolist()}, qd {estimate.qd.tolist()}, qdd {estimate.qdd.tolist()}'
            values = np.asarray(tau).tolist()
            self.reset()
            self.resets += 1
            return Output(None, NOT_FINITE_OUTPUT, f'model gives {values} at {at}')
        self._effort[:] = tau
        self._has_effort = True
        return Output(self._effort, estimators.OK)

    def _start_memory(self, estimate: Estimate, effort: Any) -> None:
        """Set the memory from the effort of a robot at rest, once it was seen to rest."""
        # Once: to follow the effort would feed the controller's own torque back to it.
        if self._since_reset_s is None:
            self._since_reset_s = 0.0
            self._first_q[:] = estimate.q
            return
        self._since_reset_s += estimate.dt
        # A speed at once says little: on its play a position does not move at first.
        if not len(effort) or self._since_reset_s < self.estimator.delay_s:
            return
        way = np.abs(estimate.q - self._first_q).max()
        speed = max(np.abs(estimate.qd).max(), way / self._since_reset_s)
        if speed >= REST_SPEED:
            return
        measured = self._take(effort, self._measured)
        # All zeros is what drivers that do not measure effort fill in.
        if np.isfinite(measured).all() and measured.any():
            self.predictor.start(estimate.q, measured)
            self.memory_start = FROM_EFFORT

    def _without_estimate(self, outcome: str) -> Output:
        if outcome == estimators.REPEATED_SAMPLE and self._has_effort:
            return Output(self._effort, outcome)
        if outcome in _RESETS:
            self._reset_predictor()
            self.resets += 1
        return Output(None, outcome, self.estimator.detail or outcome.replace('_', ' '))

    def _take(self, values: Any, out: np.ndarray) -> np.ndarray:
        # mode='clip' lets numpy write into `out` without a buffer; the index is in range.
        return np.asarray(values, np.float64).take(self._index, out=out, mode='clip')

    def _not_finite(self, outcome: str, what: str, values: np.ndarray) -> Output:
        bad = [
            f'{name} {value}'
            for name, value in zip(self.joints, values.tolist(), strict=True)
            if not math.isfinite(value)
        ]
        return Output(None, outcome, f'{what} is not finite: {", ".join(bad)}')

    def _look_up(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._names_fault = None
        place = {name: i for i, name in enumerate(self._names)}
        missing = [name for name in self.joints if name not in place]
        wanted = set(self.joints)
        repeated = sorted({n for n in self._names if n in wanted and self._names.count(n) > 1})
        if missing:
            self._names_fault = Output(None, MISSING_JOINTS, self._explain_missing(missing))
        elif repeated:
            self._names_fault = Output(
                None,
                REPEATED_JOINTS,
                f'joint state has {", ".join(repeated)} more than once; which value holds?',
            )
        else:
            self._index[:] = [place[name] for name in self.joints]
            self.ignored = tuple(n for n in self._names if n not in wanted)

    def _explain_missing(self, missing: list[str]) -> str:
        assert self._names is not None
        bare = self.predictor.description.robot.joints
        prefixes = {
            n.removesuffix(b)
            for n in self._names
            for b in bare
            if n.endswith(b) and {n.removesuffix(b) + x for x in bare} <= set(self._names)
        }
        hint = ''
        if len(prefixes) == 1:
            hint = f'; the names fit with joint_prefix {prefixes.pop()!r}'
        elif self.joint_prefix:
            hint = f'; joint_prefix is {self.joint_prefix!r}'
        return (
            f'joint state lacks {", ".join(missing)}; it has '
            f'{", ".join(self._names) or "no names"}{hint}'
        )
