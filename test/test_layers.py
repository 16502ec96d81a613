"""The direction of imports, read from the source itself; imports inside functions count too."""

import ast
from pathlib import Path
import textwrap
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / 'dlnn_ros'

# A layer may import those with a smaller number; equal numbers are siblings that may not.
LAYERS = {
    'config': 0,
    'dynamics': 1,
    'data': 2,
    'learning': 3,
    'symbolic': 3,
    'runtime': 4,
    'nodes': 5,
    'cli': 5,
    'bench': 5,
}
# `dlnn bench` is the one door to bench/, which itself knows nothing of the command line.
DOORS = {('dlnn_ros.cli.bench', 'bench')}
ROS = ('rclpy', 'ament_index_python', 'builtin_interfaces', 'rcl_interfaces', 'launch')
ROS_SUFFIXES = ('_msgs', '_srvs')

# Never import torch, not even inside a function.
WITHOUT_TORCH = ('config', 'data', 'learning.model_folder')
WITHOUT_TORCH += ('runtime.estimators', 'runtime.feedforward', 'nodes')
# Loading these must not load torch; a torch backend may be imported when it is asked for.
LOAD_WITHOUT_TORCH = (*WITHOUT_TORCH, 'runtime.predictor', 'runtime.latency', 'cli.main')


class Import(NamedTuple):
    target: str
    line: int
    at_load: bool


def read_imports(path, module):
    """Return what a file imports; a dynamic import counts by the constant part of its name."""
    package = module if path.name == '__init__.py' else module.rpartition('.')[0]
    found = []

    def visit(node, at_load):
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, at_load) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split('.')[: len(package.split('.')) - node.level + 1]
            name = '.'.join([*base, *filter(None, [node.module])]) if node.level else node.module
            found.extend(Import(f'{name}.{a.name}', node.lineno, at_load) for a in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func
            name = getattr(called, 'attr', getattr(called, 'id', ''))
            target = node.args[0]
            if isinstance(target, ast.JoinedStr) and target.values:
                target = target.values[0]
            if name in ('import_module', '__import__') and isinstance(target, ast.Constant):
                found.append(Import(str(target.value).rstrip('.'), node.lineno, at_load))
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        type_only = isinstance(node, ast.If) and 'TYPE_CHECKING' in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            visit(child, at_load and not inside and not type_only)

    visit(ast.parse(path.read_text(encoding='utf-8'), str(path)), True)
    return found


def read_package(source):
    """Return {module: imports} of a package folder."""
    modules = {}
    for path in sorted(source.rglob('*.py')):
        parts = path.relative_to(source.parent).with_suffix('').parts
        module = '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)
        modules[module] = read_imports(path, module)
    return modules


def layer_of(target):
    """Return the part below dlnn_ros, or None for the package itself and foreign modules."""
    parts = target.split('.')
    if parts[0] != 'dlnn_ros' or len(parts) < 2 or parts[1].startswith('__'):
        return None
    return parts[1]


def is_ros(target):
    top = target.split('.')[0]
    return top in ROS or top.endswith(ROS_SUFFIXES) or top.startswith(('rosidl_', 'launch_'))


def belongs(module, names):
    return any(f'{module}.'.startswith(f'dlnn_ros.{name}.') for name in names)


def loaded_with(module, modules):
    """Return {target: module that imports it} for all that loading `module` loads."""
    seen, todo = {}, [(module, module)]
    while todo:
        target, by = todo.pop()
        if target in seen:
            continue
        seen[target] = by
        # `import a.b.c` runs a and a.b too; the last part may be a name inside a module.
        if '.' in target:
            todo.append((target.rpartition('.')[0], by))
        todo += [(i.target, target) for i in modules.get(target, ()) if i.at_load]
    return seen


def find_violations(source):
    modules = read_package(source)
    found = []
    for module, imports in modules.items():
        layer = layer_of(module)
        if layer is None:
            continue
        if layer not in LAYERS:
            found.append(f'{module}: {layer} is in no layer')
            continue
        for target, line, _ in imports:
            other = layer_of(target)
            where = f'{module}:{line} imports {target}'
            if other is not None and other != layer:
                if (module, other) in DOORS:
                    continue
                if LAYERS.get(other, 99) >= LAYERS[layer]:
                    found.append(f'{where}: {layer} may not import {other}')
            elif is_ros(target) and layer != 'nodes':
                found.append(f'{where}: ROS is for nodes/ alone')
            elif target.split('.')[0] == 'torch' and belongs(module, WITHOUT_TORCH):
                found.append(f'{where}: no torch here')
        if belongs(module, LOAD_WITHOUT_TORCH):
            for target, by in loaded_with(module, modules).items():
                if target.split('.')[0] == 'torch' and by != module:
                    found.append(f'{module}: loading it loads torch through {by}')
    return found


def test_layers_import_downwards_only():
    assert find_violations(SOURCE) == []


def test_every_module_is_seen():
    modules = read_package(SOURCE)
    assert 'dlnn_ros.cli.main' in modules
    assert any(i.target.startswith('dlnn_ros.config') for i in modules['dlnn_ros.data.trajectory'])


@pytest.fixture
def tree(tmp_path):
    """Return a function that writes a small package and returns what is wrong with it."""

    def check(files):
        for name, text in {'__init__.py': '', **files}.items():
            path = tmp_path / 'dlnn_ros' / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        return find_violations(tmp_path / 'dlnn_ros')

    return check


@pytest.mark.parametrize(
    ('name', 'text', 'complaint'),
    [
        ('data/a.py', 'from dlnn_ros.learning import train', 'data may not import learning'),
        ('config.py', 'import dlnn_ros.data.bags', 'config may not import data'),
        ('dynamics/a.py', 'def f():\n    from dlnn_ros import data', 'may not import data'),
        ('dynamics/a.py', 'from ..data.bags import x', 'dynamics may not import data'),
        ('dynamics/sub/a.py', 'from ...data import x', 'dynamics may not import data'),
        ('learning/a.py', 'from dlnn_ros.symbolic import b', 'may not import symbolic'),
        ('cli/a.py', 'from dlnn_ros.nodes.b import main', 'cli may not import nodes'),
        ('bench/a.py', 'import dlnn_ros.cli', 'bench may not import cli'),
        ('cli/train.py', 'import dlnn_ros.bench', 'cli may not import bench'),
        ('runtime/a.py', "import_module('dlnn_ros.cli.b')", 'runtime may not import cli'),
        ('data/a.py', "i.import_module(f'dlnn_ros.cli.{x}')", 'data may not import cli'),
        ('runtime/a.py', 'import rclpy', 'ROS is for nodes/ alone'),
        ('cli/a.py', 'def f():\n    from sensor_msgs.msg import JointState', 'nodes/ alone'),
        ('bench/a.py', 'from std_srvs.srv import SetBool', 'nodes/ alone'),
        ('data/a.py', 'def f():\n    import torch', 'no torch here'),
        ('learning/model_folder.py', 'from torch import nn', 'no torch here'),
        ('runtime/feedforward.py', 'class A:\n    import torch.nn', 'no torch here'),
        ('extra/a.py', '', 'extra is in no layer'),
    ],
)
def test_wrong_import_is_found(tree, name, text, complaint):
    found = tree({name: text})
    assert len(found) == 1, found
    assert complaint in found[0]


def test_torch_through_another_module_is_found(tree):
    files = {
        'dynamics/networks.py': 'import torch',
        'runtime/backend.py': 'from dlnn_ros.dynamics.networks import make',
        'runtime/predictor.py': 'from dlnn_ros.runtime.backend import load',
    }
    (found,) = tree(files)
    assert 'loading it loads torch through dlnn_ros.dynamics.networks' in found


def test_torch_through_a_package_init_is_found(tree):
    files = {
        'learning/__init__.py': 'from dlnn_ros.learning.train import fit',
        'learning/train.py': 'import torch',
        'learning/model_folder.py': '',
    }
    (found,) = tree(files)
    assert found.startswith('dlnn_ros.learning.model_folder: loading it loads torch')


def test_lazy_torch_backend_and_downward_imports_are_allowed(tree):
    files = {
        'dynamics/networks.py': 'import torch',
        'runtime/predictor.py': 'def f():\n    from dlnn_ros.dynamics import networks',
        'nodes/a.py': 'import rclpy\nfrom sensor_msgs.msg import JointState\nimport dlnn_ros',
        'cli/bench.py': 'def run():\n    from dlnn_ros.bench import training',
        'cli/main.py': "import_module(f'dlnn_ros.cli.{name}')\nfrom dlnn_ros import __version__",
    }
    assert tree(files) == []
