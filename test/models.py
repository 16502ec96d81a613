"""Small models that the tests share: every kind, with random weights."""

from pathlib import Path

from dlnn_ros.config import Effort, Robot, to_mapping
from dlnn_ros.dynamics.architecture import make_config, Scales
from dlnn_ros.dynamics.dlnn import LagrangianModel
from dlnn_ros.dynamics.kinds import make_model
from dlnn_ros.learning.checkpoint import build_model, model_tensors
from dlnn_ros.learning.model_folder import ModelDescription, Range, save_model, TrainingRange
import torch

SMALL = {'width': 16, 'depth': 2}
# kind, options, joint kinds, whether effort contains gravity
CASES = {
    'dlnn': ('dlnn', SMALL, 'rrr', True),
    'dlnn_prismatic': ('dlnn', SMALL, 'rpr', True),
    'dlnn_no_gravity': ('dlnn', SMALL, 'rr', False),
    'dlnn_viscous': ('dlnn', {**SMALL, 'coulomb': False}, 'rrr', True),
    'dlnn_one_joint': ('dlnn', SMALL, 'r', True),
    'lnn': ('lnn', SMALL, 'rrr', True),
    'mlp': ('mlp', SMALL, 'rpr', True),
    'linear': ('linear', {}, 'rrr', True),
}
LAGRANGIAN = [name for name in CASES if name not in ('mlp', 'linear')]
LINEAR = {'mass_degree': 2, 'potential_degree': 3}
ELEMENTS = [{'zeta': 1e-3, 'slip_velocity': 0.1}, {'zeta': 3e-2, 'relaxation_s': 2.0}]
MEMORY_CASES = {
    'memory': ('dlnn_memory', SMALL, 'rrr', True),
    'memory_learned': (
        'dlnn_memory',
        {**SMALL, 'memory': {'elements': ELEMENTS, 'learned': True}},
        'rr',
        False,
    ),
    'memory_weights_of_q': (
        'dlnn_memory',
        {**SMALL, 'memory': {'elements': ELEMENTS, 'weight_width': 8}},
        'rpr',
        True,
    ),
    'linear_memory': ('linear_memory', LINEAR, 'rrr', True),
}
# Served through a state too.
SERVED_CASES = {
    'memory_asymmetric': (
        'dlnn_memory',
        {**SMALL, 'asymmetric': True, 'memory': {'elements': ELEMENTS}},
        'rrp',
        True,
    ),
    'linear_trigonometric': ('linear_memory', {**LINEAR, 'memory': None}, 'rpr', True),
    'ensemble': ('ensemble', {'kind': 'dlnn_memory', 'members': 3, 'options': SMALL}, 'rr', True),
    'ensemble_learned': (
        'ensemble',
        {
            'kind': 'dlnn_memory',
            'members': 2,
            'options': {**SMALL, 'memory': {'elements': ELEMENTS, 'learned': True}},
        },
        'rr',
        True,
    ),
    'mlp_window': ('mlp', {**SMALL, 'window': 3}, 'rpr', True),
}
ALL_CASES = {**CASES, **MEMORY_CASES}
KNOWN = {**ALL_CASES, **SERVED_CASES}


def make_scales(n: int) -> Scales:
    return Scales(12.3, (0.7,) * n, (2.1,) * n, (0.53,) * n)


def make(name: str, dtype: torch.dtype = torch.float64, seed: int = 0):
    """Return the model of a case with random weights of a size that bends every unit."""
    kind, options, joints, has_gravity = KNOWN[name]
    torch.manual_seed(seed)
    n = len(joints)
    config = make_config(kind, options, name)
    model = make_model(kind, config, make_scales(n), [j == 'r' for j in joints], has_gravity)
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.add_(0.3 * torch.randn_like(p))
            if key.endswith('memory.raw_weight'):
                p.normal_()  # they start too small to be seen
    return model.to(dtype).eval()


def states(n: int, batch: int, dtype: torch.dtype = torch.float64, seed: int = 1):
    """Return random q, qd, qdd, each (batch, n)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, batch, n, generator=generator, dtype=torch.float64).to(dtype)


def motion(n: int, samples: int, dtype: torch.dtype = torch.float64, seed: int = 1):
    """Return q, qd, qdd, (N, n), and dt, (N,): turns by ways that no element forgets at once."""
    generator = torch.Generator().manual_seed(seed)
    ways = torch.randn(samples, n, generator=generator)
    q = torch.randn(n, generator=generator) + 1e-3 * ways.cumsum(0)
    qd = 0.3 * ways * torch.rand(samples, n, generator=generator)
    qdd = torch.randn(samples, n, generator=generator)
    dt = 0.05 * torch.rand(samples, generator=generator)
    return tuple(x.to(dtype) for x in (q, qd, qdd, dt))


def context(model, qd, seed: int = 2):
    """Return the sign of motion and random admissible bends of a model with memory, else None."""
    if getattr(model, 'memory', None) is None:
        return None
    generator = torch.Generator().manual_seed(seed)
    y = torch.rand(*qd.shape, model.memory.size, generator=generator, dtype=torch.float64) * 2 - 1
    return torch.cat([model.dissipation.activation(qd).unsqueeze(-1), y.to(qd.dtype)], -1)


class Bent:
    """A model whose elements stay bent as they are, (B, n, J): one without memory."""

    def __init__(self, model, y):
        self.model, self.y = model, y
        self.n, self.conservative = model.n, model.conservative
        self.parameters, self.mass_matrix, self.energy = (
            model.parameters,
            model.mass_matrix,
            model.energy,
        )

    def context(self, qd):
        return torch.cat([self.model.dissipation.activation(qd).unsqueeze(-1), self.y], -1)

    def inverse_dynamics(self, q, qd, qdd):
        return self.model.torque(q, qd, qdd, self.context(qd))

    def terms(self, q, qd):
        return self.model.terms(q, qd, context=self.context(qd))

    def forward_dynamics(self, q, qd, tau):
        return self.model.forward_dynamics(q, qd, tau, context=self.context(qd))

    def power_balance(self, q, qd, qdd):
        return self.model.power_balance(q, qd, qdd, context=self.context(qd))


def is_lagrangian(model) -> bool:
    return isinstance(model, LagrangianModel)


def describe(kind: str, options: dict, robot: Robot, scales: Scales) -> ModelDescription:
    one = Range((-1.0,) * robot.n, (1.0,) * robot.n)
    return ModelDescription(
        kind=kind,
        config=to_mapping(make_config(kind, options, 'test')),
        scales=to_mapping(scales),
        robot=robot,
        rate_hz=250.0,
        derivatives='none',
        training_range=TrainingRange(one, one, one, one),
    )


def save_case(folder: Path, name: str, effort: Effort | None = None):
    """Save the model of a case; return its folder and the float64 model."""
    kind, options, joints, has_gravity = KNOWN[name]
    effort = effort or Effort('joint' if has_gravity else 'no_gravity')
    kinds = tuple('revolute' if j == 'r' else 'prismatic' for j in joints)
    robot = Robot('case', tuple(f'j{i}' for i in range(len(joints))), kinds, effort)
    model = make(name)
    description = describe(kind, options, robot, make_scales(robot.n))
    return save_model(folder, description, model_tensors(model)), model


def save_tiny_model(
    folder: Path,
    joints: tuple[str, ...] = ('j1', 'j2', 'j3'),
    kind: str = 'dlnn',
    options: dict | None = None,
    **robot,
) -> Path:
    """Save an untrained model of revolute joints and return its folder."""
    n = len(joints)
    description = describe(
        kind,
        options or ({} if kind == 'linear' else SMALL),
        Robot('tiny', joints, robot.pop('kinds', ('revolute',) * n), **robot),
        Scales(10.0, (1.0,) * n, (1.0,) * n, (1.0,) * n),
    )
    torch.manual_seed(3)
    return save_model(folder, description, model_tensors(build_model(description, 'test')))
