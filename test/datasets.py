"""Small data sets whose dynamics are known in closed form."""

from dlnn_ros.config import Effort, Robot
from dlnn_ros.data.trajectory import Dataset, Recording, Trajectory
import numpy as np

INERTIA = np.array([2.0, 0.5])
GRAVITY = np.array([6.0, 1.5])
VISCOUS = np.array([0.8, 0.2])
COULOMB = np.array([1.0, 0.4])


def two_pendulums(rng, trajectories=6, samples=400, effort=None) -> Dataset:
    """Two independent pendulums with viscous and Coulomb friction, moved by random sines."""
    effort = effort or Effort()
    robot = Robot('pendulums', ('p1', 'p2'), ('revolute', 'revolute'), effort)
    made = []
    for k in range(trajectories):
        t = np.arange(samples) * 0.02
        q = qd = qdd = np.zeros((samples, 2))
        for _ in range(3):
            w, a, phase = rng.uniform(0.5, 2.5, 2), rng.uniform(0.2, 0.7, 2), rng.uniform(0, 6, 2)
            angle = w * t[:, None] + phase
            q = q + a * np.sin(angle)
            qd = qd + a * w * np.cos(angle)
            qdd = qdd - a * w * w * np.sin(angle)
        tau = INERTIA * qdd + GRAVITY * np.sin(q) + VISCOUS * qd + COULOMB * np.sign(qd)
        role = {0: 'validation', 1: 'test'}.get(k, 'train')
        recording = Recording(t, q, tau / robot.gear_ratio, name=f'r{k}', role=role)
        made.append(Trajectory(recording, q, qd, qdd, 'exact'))
    return Dataset(robot, tuple(made), 'pendulums')
