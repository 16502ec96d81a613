"""
Rigid-body reference from a URDF, computed by Pinocchio.

    tau = (M_urdf(q) + diag(armature)) qdd + c(q, qd) + g(q) + dV_cb/dq [+ d(qd)]

`M_urdf`, `c` and `g` are what the URDF describes.  Rotor inertia and counterbalance are no part
of a URDF and come from the robot file.  `d = damping qd + friction sgn(qd)` of the URDF is added
on request only.  All torques are on the joint side and arrays are (..., n) in the order of
`Robot.joints`; Pinocchio's names (q, v, a), its joint order and its two numbers for a continuous
joint stay in this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dlnn_ros.config import Counterbalance, Robot, share_path
import numpy as np

JOINT_TYPES = {'revolute': 'revolute', 'continuous': 'revolute', 'prismatic': 'prismatic'}


def _import_pinocchio() -> Any:
    try:
        import pinocchio

        pinocchio.rnea  # noqa: B018  (other packages of this name have no such function)
    except (ImportError, AttributeError) as error:
        place = getattr(locals().get('pinocchio'), '__file__', None)
        found = f' (found a broken one at {place})' if place else ''
        raise ImportError(
            f'the rigid-body reference needs Pinocchio{found}: pip install pin ({error})'
        ) from error
    return pinocchio


def find_urdf(robot: Robot) -> Path:
    """
    Return the path of the robot's URDF, beside the robot files or in the share folder.

    Raises
    ------
    ValueError
        If the robot names no URDF.
    FileNotFoundError
        Names the places tried.

    """
    if robot.urdf is None:
        raise ValueError(f'robot {robot.name!r} names no URDF; add the key urdf to its file')
    path = Path(robot.urdf).expanduser()
    if path.is_absolute():
        if not path.is_file():
            raise FileNotFoundError(f'{path}: no such file (URDF of robot {robot.name!r})')
        return path
    try:
        return share_path(f'config/robots/{robot.urdf}')
    except FileNotFoundError:
        return share_path(robot.urdf)


def read_urdf(source: str | Path) -> str:
    """
    Return URDF text from a path, a file:// address or the text itself, checked.

    Raises
    ------
    FileNotFoundError
        A path without a file.
    ValueError
        Empty text, broken XML, another root element than robot, not exactly one root link.

    """
    where = 'URDF text'
    text = str(source)
    if isinstance(source, Path) or '<' not in text:
        if not text.strip():
            raise ValueError('URDF is empty; expected a path or XML text')
        if text.startswith('package://'):
            raise ValueError(f'{text}: package:// addresses are not resolved here; give the path')
        path = Path(text.removeprefix('file://')).expanduser()
        where = str(path)
        if path.is_dir():
            raise ValueError(f'{where}: is a folder, expected a URDF file')
        try:
            text = path.read_text(encoding='utf-8-sig')
        except FileNotFoundError:
            raise FileNotFoundError(f'{where}: no such URDF file, and not XML text') from None
        except UnicodeDecodeError:
            raise ValueError(f'{where}: is not a UTF-8 text file') from None
    text = text.lstrip('\ufeff \t\r\n')
    if not text:
        raise ValueError(f'{where}: is empty')
    try:
        # Encoded because a declared encoding contradicts text that is already decoded.
        root = ElementTree.fromstring(text.encode('utf-8'))
    except (ElementTree.ParseError, LookupError) as error:
        raise ValueError(f'{where}: not well-formed XML, {error}') from None
    if root.tag != 'robot':
        raise ValueError(f'{where}: root element is <{root.tag}>, expected <robot>')
    links = [link.get('name', '') for link in root.iterfind('link')]
    children = {c.get('link') for c in root.iterfind('joint/child')}
    roots = [name for name in links if name not in children]
    if len(roots) != 1:
        raise ValueError(
            f'{where}: {len(roots)} root links ({", ".join(roots)}), expected one; '
            'join them by a fixed joint'
        )
    return text


def _check_link_inertias(root: ElementTree.Element, where: str) -> None:
    """Refuse links whose mass is negative or whose inertia has a negative eigenvalue."""
    bad = []
    for link in root.iterfind('link'):
        inertial = link.find('inertial')
        if inertial is None:
            continue
        mass, inertia = inertial.find('mass'), inertial.find('inertia')
        values = {} if inertia is None else inertia.attrib
        try:
            m = float('nan' if mass is None else mass.get('value', 'nan'))
            xx, xy, xz, yy, yz, zz = (
                float(values.get(k, 'nan')) for k in ('ixx', 'ixy', 'ixz', 'iyy', 'iyz', 'izz')
            )
        except ValueError:
            m = xx = xy = xz = yy = yz = zz = float('nan')
        matrix = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
        is_bad = not (np.isfinite(matrix).all() and np.isfinite(m) and m >= 0)
        if not is_bad:
            eigenvalues = np.linalg.eigvalsh(matrix)
            is_bad = bool(eigenvalues[0] < -1e-9 * max(abs(eigenvalues[-1]), 1e-30))
        if is_bad:
            bad.append(link.get('name', ''))
    if bad:
        raise ValueError(
            f'{where}: links with negative or incomplete mass or inertia, or an inertia that is '
            f'not positive: {", ".join(bad)}; correct <inertial> there'
        )


class RigidBody:
    """
    Inverse and forward dynamics of a fixed-base arm by Pinocchio.

    Every method takes arrays (..., n) whose leading axes broadcast. An object holds work space
    of Pinocchio and must not be used from two threads at once.

    Parameters
    ----------
    urdf : str or Path
        Path, file:// address or XML text.
    joints : sequence of str
        Joints of the model, in the order of all arrays. All others are locked; the mass behind
        them is kept.
    kinds : sequence of str, optional
        Expected kinds of `joints`, checked against the URDF.
    gravity : sequence of float
        Gravity vector in the base frame [m/s^2].
    armature : sequence of float, optional
        Reflected rotor inertia per joint [kg m^2].
    counterbalance : Counterbalance, optional
        Hydraulic spring on one of `joints`.
    friction : bool
        Add `damping qd + friction sgn(qd)` of the URDF.
    locked : mapping of str to float, optional
        Position of joints that are not in `joints` [rad | m]; neutral (0) where not given.

    Attributes
    ----------
    joints : tuple of str
        Joint names.
    armature, damping, dry_friction : array, (n,)
        Rotor inertia [kg m^2]; viscous [N m s/rad] and Coulomb friction [N m] of the URDF, which
        enter the torques only with `friction`.
    content : str
        One line that says what the torques include.

    Raises
    ------
    ImportError
        If Pinocchio is missing.
    ValueError
        If the URDF cannot be used; the message names links or joints.

    """

    def __init__(
        self,
        urdf: str | Path,
        joints: tuple[str, ...] | list[str],
        *,
        kinds: tuple[str, ...] | list[str] = (),
        gravity: tuple[float, ...] = (0.0, 0.0, -9.81),
        armature: tuple[float, ...] | np.ndarray = (),
        counterbalance: Counterbalance | None = None,
        friction: bool = False,
        locked: Mapping[str, float] | None = None,
    ) -> None:
        pin = self._pin = _import_pinocchio()
        text = read_urdf(urdf)
        where = 'URDF' if '<' in str(urdf) else str(urdf)
        root = ElementTree.fromstring(text.encode('utf-8'))
        _check_link_inertias(root, where)
        self.joints = tuple(joints)
        n = len(self.joints)
        try:
            model = pin.buildModelFromXML(text)
        except (ValueError, RuntimeError) as error:
            raise ValueError(f'{where}: Pinocchio cannot read it: {error}') from None
        model = self._reduce(model, where, root, dict(locked or {}), tuple(kinds))
        model.gravity = pin.Motion(np.array(gravity, float), np.zeros(3))
        # Added explicitly below: whether rnea and crba include it depends on the version.
        model.armature = np.zeros(model.nv)
        self._model, self._data = model, model.createData()
        joint_models = [model.joints[model.getJointId(name)] for name in self.joints]
        self._iq = np.array([j.idx_q for j in joint_models])
        self._iv = np.array([j.idx_v for j in joint_models])
        self._two = np.array([j.nq == 2 for j in joint_models])
        self._check_bodies(where, root)
        self.armature = np.array(armature, float) if len(armature) else np.zeros(n)
        if self.armature.shape != (n,):
            raise ValueError(f'armature has {len(self.armature)} numbers for {n} joints')
        self._rotor = np.diag(self.armature)
        self._is_ordered = bool((self._iv == np.arange(n)).all())
        self._upper, self._above = np.triu(np.ones((n, n))), np.triu(np.ones((n, n)), 1)
        # Read from the XML: Pinocchio keeps them under names that depend on its version.
        self.damping, self.dry_friction = self._dynamics_tags(root)
        self.has_friction = friction
        self._counterbalance = counterbalance
        if counterbalance is not None:
            if counterbalance.joint not in self.joints:
                raise ValueError(
                    f'counterbalance joint {counterbalance.joint!r} is not one of '
                    f'{", ".join(self.joints)}'
                )
            self._balanced = self.joints.index(counterbalance.joint)

    @classmethod
    def from_robot(
        cls,
        robot: Robot,
        urdf_path: Path | str | None = None,
        friction: bool = False,
        locked: Mapping[str, float] | None = None,
    ) -> RigidBody:
        """
        Build the model of `robot`; see :class:`RigidBody`.

        Parameters
        ----------
        robot : Robot
            Gives joints, gravity, armature and counterbalance.
        urdf_path : Path or str, optional
            URDF path or XML text in place of `robot.urdf`.
        friction : bool
            Add the friction terms of the URDF.
        locked : mapping, optional
            Positions of joints that are not in the robot.

        """
        return cls(
            find_urdf(robot) if urdf_path is None else urdf_path,
            robot.joints,
            kinds=robot.kinds,
            gravity=robot.gravity,
            armature=robot.armature,
            counterbalance=robot.counterbalance,
            friction=friction,
            locked=locked,
        )

    @property
    def n(self) -> int:
        """Number of joints."""
        return len(self.joints)

    @property
    def content(self) -> str:
        """Say in one line what the torques include."""
        parts = ['rigid bodies of the URDF']
        if self.armature.any():
            parts.append('rotor inertia')
        if self._counterbalance is not None:
            parts.append('counterbalance')
        if self.has_friction:
            parts.append('viscous and Coulomb friction of the URDF')
        return ' + '.join(parts) + ('' if self.has_friction else '; no friction')

    def inverse_dynamics(self, q: Any, qd: Any, qdd: Any) -> np.ndarray:
        """
        Compute the joint torque of a motion, Eq. (5).

        Parameters
        ----------
        q, qd, qdd : array, (..., n)
            Position, velocity, acceleration [rad | m, /s, /s^2].

        Returns
        -------
        tau : array, (..., n)
            Joint-side torque [N m | N].

        """
        q, qd, qdd = self._arrays(q=q, qd=qd, qdd=qdd)
        tau = self._rnea(q, qd, qdd) + self.armature * qdd + self._spring(q)
        return tau + self._friction(qd) if self.has_friction else tau

    def forward_dynamics(self, q: Any, qd: Any, tau: Any) -> np.ndarray:
        """
        Solve for the joint acceleration under the joint-side torque `tau`, Eq. (6).

        Returns
        -------
        qdd : array, (..., n)
            Joint acceleration [rad/s^2 | m/s^2].

        """
        q, qd, tau = self._arrays(q=q, qd=qd, tau=tau)
        drift = self.inverse_dynamics(q, qd, np.zeros(self.n))
        return np.linalg.solve(self.mass_matrix(q), (tau - drift)[..., None])[..., 0]

    def mass_matrix(self, q: Any) -> np.ndarray:
        """Compute M(q), (..., n, n) [kg m^2], rotor inertia included."""
        (q,) = self._arrays(q=q)
        M = np.empty((*q.shape, self.n))
        pick = np.ix_(self._iv, self._iv)
        for k, x in zip(np.ndindex(q.shape[:-1]), self._positions(q), strict=True):
            # Only the upper triangle: older versions of Pinocchio fill no other.
            upper = np.triu(self._pin.crba(self._model, self._data, x))
            M[k] = (upper + np.triu(upper, 1).T)[pick]
        return M + self._rotor

    def mass_and_drift(self, q: np.ndarray, qd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        Compute M(q) and c(q, qd) + g(q) of K states for a simulation: fast and unchecked.

        Parameters
        ----------
        q, qd : array, (K, n)
            States.

        Returns
        -------
        M : array, (K, n, n)
            Mass matrix, rotor inertia included.
        drift : array, (K, n)
            Torque without acceleration and friction [N m].

        """
        crba, nle, model, data = (
            self._pin.crba,
            self._pin.nonLinearEffects,
            self._model,
            self._data,
        )
        x, v = self._positions(q), np.empty_like(qd)
        v[:, self._iv] = qd
        M, drift = np.empty((*q.shape, self.n)), np.empty_like(q)
        for k in range(len(x)):
            M[k] = crba(model, data, x[k])
            drift[k] = nle(model, data, x[k], v[k])
        # Only the upper triangle, as in mass_matrix; masks because np.triu is slow.
        M *= self._upper
        M += (M * self._above).swapaxes(1, 2)
        if not self._is_ordered:
            M, drift = M[:, self._iv[:, None], self._iv], drift[:, self._iv]
        M += self._rotor
        if self._counterbalance is not None:
            i = self._balanced
            drift[:, i] += counterbalance_torque(self._counterbalance, q[:, i])
        return M, drift

    def gravity(self, q: Any) -> np.ndarray:
        """Compute g(q), (..., n) [N m]: gravity and counterbalance."""
        (q,) = self._arrays(q=q)
        zero = np.zeros_like(q)
        return self._rnea(q, zero, zero) + self._spring(q)

    def coriolis(self, q: Any, qd: Any) -> np.ndarray:
        """Compute c(q, qd), (..., n) [N m]: Coriolis and centrifugal torque."""
        q, qd = self._arrays(q=q, qd=qd)
        zero = np.zeros_like(q)
        return self._rnea(q, qd, zero) - self._rnea(q, zero, zero)

    def potential_energy(self, q: Any) -> np.ndarray:
        """Compute V(q), (...) [J]: gravity and gas spring; the constant is arbitrary."""
        (q,) = self._arrays(q=q)
        V = np.array(
            [
                self._pin.computePotentialEnergy(self._model, self._data, x)
                for x in self._positions(q)
            ]
        ).reshape(q.shape[:-1])
        if self._counterbalance is not None:
            V = V + counterbalance_energy(self._counterbalance, q[..., self._balanced])
        return V

    def energy(self, q: Any, qd: Any) -> np.ndarray:
        """Compute E = 1/2 qd' M qd + V(q), (...) [J], Eq. (9)."""
        q, qd = self._arrays(q=q, qd=qd)
        kinetic = 0.5 * np.einsum('...i,...ij,...j->...', qd, self.mass_matrix(q), qd)
        return kinetic + self.potential_energy(q)

    def _arrays(self, **named: Any) -> tuple[np.ndarray, ...]:
        arrays = {name: np.asarray(value, dtype=float) for name, value in named.items()}
        for name, array in arrays.items():
            if array.ndim == 0 or array.shape[-1] != self.n:
                raise ValueError(
                    f'{name} has shape {array.shape}, the rigid body has {self.n} joints '
                    f'({", ".join(self.joints)}); expected (..., {self.n})'
                )
            if not np.isfinite(array).all():
                raise ValueError(f'{name} has values that are not finite')
        try:
            return tuple(np.broadcast_arrays(*arrays.values()))
        except ValueError:
            shapes = ', '.join(f'{k} {v.shape}' for k, v in arrays.items())
            raise ValueError(f'shapes do not broadcast: {shapes}') from None

    def _positions(self, q: np.ndarray) -> np.ndarray:
        """Return Pinocchio's configurations, (samples, nq)."""
        flat = q.reshape(-1, self.n)
        if self._is_ordered and not self._two.any():
            return flat
        x = np.empty((len(flat), self._model.nq))
        x[:, self._iq] = np.where(self._two, np.cos(flat), flat)
        x[:, self._iq[self._two] + 1] = np.sin(flat[:, self._two])
        return x

    def _rnea(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
        x = self._positions(q)
        v, a = np.empty((len(x), self.n)), np.empty((len(x), self.n))
        v[:, self._iv], a[:, self._iv] = qd.reshape(-1, self.n), qdd.reshape(-1, self.n)
        rnea, model, data = self._pin.rnea, self._model, self._data
        tau = np.empty_like(v)
        for k in range(len(x)):
            tau[k] = rnea(model, data, x[k], v[k], a[k])
        return tau[:, self._iv].reshape(q.shape)

    def _spring(self, q: np.ndarray) -> np.ndarray:
        tau = np.zeros_like(q)
        if self._counterbalance is not None:
            tau[..., self._balanced] = counterbalance_torque(
                self._counterbalance, q[..., self._balanced]
            )
        return tau

    def _friction(self, qd: np.ndarray) -> np.ndarray:
        return self.damping * qd + self.dry_friction * np.sign(qd)

    def _reduce(
        self,
        model: Any,
        where: str,
        root: ElementTree.Element,
        locked: dict[str, float],
        kinds: tuple[str, ...],
    ) -> Any:
        """Lock every joint that is not one of ours."""
        movable = list(model.names)[1:]
        missing = [name for name in self.joints if name not in movable]
        if missing:
            raise ValueError(
                f'{where}: no movable joint {", ".join(missing)}; it has {", ".join(movable)}'
            )
        types = {j.get('name'): j.get('type', '') for j in root.iterfind('joint')}
        for name, kind in zip(self.joints, kinds or [None] * len(self.joints), strict=True):
            found = JOINT_TYPES.get(types[name])
            if found is None:
                raise ValueError(f'{where}: joint {name} is {types[name]}, which is not supported')
            if kind is not None and found != JOINT_TYPES[kind]:
                raise ValueError(
                    f'{where}: joint {name} is {types[name]}, the robot file says {kind}'
                )
        others = [name for name in movable if name not in self.joints]
        unknown = [name for name in locked if name not in others]
        if unknown:
            raise ValueError(
                f'{where}: cannot lock {", ".join(unknown)}; joints to lock: '
                f'{", ".join(others) or "none"}'
            )
        x = self._pin.neutral(model)
        for name, value in locked.items():
            joint = model.joints[model.getJointId(name)]
            if joint.nv != 1:
                raise ValueError(f'{where}: joint {name} has {joint.nv} degrees of freedom')
            x[joint.idx_q] = np.cos(value) if joint.nq == 2 else value
            if joint.nq == 2:
                x[joint.idx_q + 1] = np.sin(value)
        if others:
            model = self._pin.buildReducedModel(model, [model.getJointId(j) for j in others], x)
        return model

    def _check_bodies(self, where: str, root: ElementTree.Element) -> None:
        """Refuse moving bodies (links merged over fixed and locked joints) without inertia."""
        child = {j.get('name'): j.find('child') for j in root.iterfind('joint')}
        bad = []
        for name in self.joints:
            body = self._model.inertias[self._model.getJointId(name)]
            ok = body.mass > 0 and np.linalg.eigvalsh(body.inertia)[0] > 0
            if not ok:
                link = child[name]
                bad.append(link.get('link', '') if link is not None else name)
        if bad:
            raise ValueError(
                f'{where}: links without mass or with an inertia that is not positive definite: '
                f'{", ".join(bad)}; add <inertial> there'
            )

    def _dynamics_tags(self, root: ElementTree.Element) -> tuple[np.ndarray, np.ndarray]:
        damping, friction = np.zeros(self.n), np.zeros(self.n)
        for joint in root.iterfind('joint'):
            tag = joint.find('dynamics')
            name = joint.get('name')
            if tag is None or name not in self.joints:
                continue
            i = self.joints.index(name)
            damping[i] = float(tag.get('damping', 0.0))
            friction[i] = float(tag.get('friction', 0.0))
        if (damping < 0).any() or (friction < 0).any():
            raise ValueError(
                f'negative friction in the URDF: {damping.tolist()}, {friction.tolist()}'
            )
        return damping, friction


def counterbalance_torque(counterbalance: Counterbalance, q: Any) -> np.ndarray:
    """
    Compute the torque a gas spring adds to gravity, dV/dq [N m].

    With the law of cosines for the cylinder length s, its extension x = s - (D - k), the lever
    h = dx/dq and the gas pressure p = Z R T m / (v - A x), the torque is h p A.

    Parameters
    ----------
    counterbalance : Counterbalance
        The spring.
    q : array, (...)
        Position of its joint [rad].

    """
    s = counterbalance
    D, k, area = s.anchor_parent, s.anchor_child, s.ring_area
    angle = np.asarray(q, float) + s.angle_offset
    length = np.sqrt(D * D + k * k - 2 * D * k * np.cos(angle))
    lever = D * k * np.sin(angle) / length
    volume = s.gas_volume - area * (length - abs(D - k))
    return lever * area * _gas(s) / volume


def counterbalance_energy(counterbalance: Counterbalance, q: Any) -> np.ndarray:
    """Compute the energy of a gas spring [J], zero at its shortest length; see above."""
    s = counterbalance
    D, k, area = s.anchor_parent, s.anchor_child, s.ring_area
    length = np.sqrt(D * D + k * k - 2 * D * k * np.cos(np.asarray(q, float) + s.angle_offset))
    return -_gas(s) * np.log1p(-area * (length - abs(D - k)) / s.gas_volume)


def _gas(s: Counterbalance) -> float:
    """Pressure times volume [J]."""
    return s.compressibility * s.gas_constant * s.temperature * s.gas_mass
