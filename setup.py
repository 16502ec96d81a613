"""Build description; the version is read from the package, the data files from the folders."""

from pathlib import Path
import re

from setuptools import find_packages, setup

PACKAGE = 'dlnn_ros'


def version():
    text = Path(PACKAGE, '__init__.py').read_text(encoding='utf-8')
    return re.search(r"^__version__ = '(.+)'$", text, re.MULTILINE).group(1)


def share_files():
    """Return data_files: every launch and configuration file in the folder it has here."""
    found = {
        'share/ament_index/resource_index/packages': [f'resource/{PACKAGE}'],
        f'share/{PACKAGE}': ['package.xml'],
    }
    for root in ('launch', 'config'):
        for path in sorted(Path(root).rglob('*')):
            if path.is_file() and '__pycache__' not in path.parts:
                found.setdefault(f'share/{PACKAGE}/{path.parent}', []).append(str(path))
    return list(found.items())


test = ['pytest>=7.4']
rnea = ['pin>=2.7']
dev = ['ruff>=0.6', 'mypy>=1.8', 'colcon-common-extensions>=0.3']

setup(
    name=PACKAGE,
    version=version(),
    description='Learned, passive inverse-dynamics feed-forward for ROS 2',
    long_description=(
        'Trains deep Lagrangian networks with dissipation (dLNN) on recorded robot motion '
        'and serves their torque from a ROS 2 lifecycle node.'
    ),
    maintainer='dlnn_ros maintainers',
    maintainer_email='maintainers@dlnn-ros.invalid',
    license='Apache-2.0',
    packages=find_packages(include=[PACKAGE, f'{PACKAGE}.*']),
    package_data={'': ['*.md']},
    data_files=share_files(),
    python_requires='>=3.10',
    install_requires=[
        'numpy>=1.26',
        'scipy>=1.10',
        'pyyaml>=6',
        'torch>=2.3',
        'numba>=0.60',
        'safetensors>=0.4',
        'rosbags>=0.11',
        "backports.zstd>=1.0; python_version < '3.14'",
        'matplotlib>=3.7',
        'tqdm>=4.65',
    ],
    # `test` is what colcon looks for to run pytest; `rnea` is Pinocchio, the rigid-body reference.
    extras_require={'test': test, 'rnea': rnea, 'dev': [*test, *rnea, *dev]},
    zip_safe=False,
    entry_points={
        'console_scripts': [
            f'dlnn = {PACKAGE}.cli.main:main',
            f'feedforward_node = {PACKAGE}.nodes.feedforward_node:main',
            f'replay_node = {PACKAGE}.nodes.replay_node:main',
            f'record_node = {PACKAGE}.nodes.record_node:main',
        ],
    },
)
