"""What the package says about itself, and that it stands on no particular machine."""

import ast
from importlib import import_module, metadata
from pathlib import Path
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import dlnn_ros
from packaging.requirements import Requirement
from packaging.version import Version
import pytest

ROOT = Path(__file__).parents[1]
TEXT_SUFFIXES = ('.py', '.md', '.rst', '.txt', '.yaml', '.toml', '.cfg', '.sh', '.xml', '.urdf')


def source_files():
    """Return the files of the package: what git knows, or all of an exported copy."""
    git = subprocess.run(
        ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if git.returncode == 0 and (ROOT / '.git').exists():
        paths = [ROOT / name for name in git.stdout.split('\0') if name]
    else:
        skipped = ('.venv', 'build', 'install', 'log', '__pycache__')
        paths = [
            p
            for p in ROOT.rglob('*')
            if not any(x in skipped or x.endswith(('_cache', '.egg-info')) for x in p.parts)
        ]
    return [p for p in paths if p.is_file()]


def text_files():
    plain = ('Makefile', 'LICENSE', 'run', '.gitignore', '.gitattributes')
    return [p for p in source_files() if p.suffix in TEXT_SUFFIXES or p.name in plain]


@pytest.fixture(scope='module')
def setup_arguments():
    """Return what setup.py hands to setuptools."""
    code = (
        'import setuptools, runpy\n'
        'setuptools.setup = lambda **arguments: print(repr(arguments))\n'
        "runpy.run_path('setup.py')\n"
    )
    done = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return ast.literal_eval(done.stdout)


@pytest.fixture(scope='module')
def manifest():
    return ET.parse(ROOT / 'package.xml').getroot()


def read_constraints():
    lines = (ROOT / 'constraints.txt').read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith('#')]


def pins(python_version):
    environment = {'python_version': python_version}
    found = {}
    for pin in read_constraints():
        if pin.marker is None or pin.marker.evaluate(environment):
            assert pin.name not in found, f'{pin.name} is pinned twice for {python_version}'
            found[pin.name.lower()] = Version(str(pin.specifier).removeprefix('=='))
    return found


def test_manifest_is_a_python_package(manifest):
    assert manifest.get('format') == '3'
    assert manifest.findtext('name') == 'dlnn_ros'
    assert manifest.findtext('export/build_type') == 'ament_python'
    assert manifest.findtext('license') == 'Apache-2.0'
    assert len(manifest.findtext('description').split()) > 10


def test_catkin_reads_the_manifest():
    catkin = pytest.importorskip('catkin_pkg.package')
    warnings = []
    catkin.parse_package(str(ROOT), warnings=warnings).validate()
    assert warnings == []


def test_versions_agree(manifest, setup_arguments):
    version = dlnn_ros.__version__
    assert manifest.findtext('version') == version
    assert setup_arguments['version'] == version
    changelog = (ROOT / 'CHANGELOG.rst').read_text()
    headings = re.findall(r'^(\S.*)\n-+$', changelog, re.MULTILINE)
    if headings[0] == 'Forthcoming':
        assert f'Version {version}' in changelog
    else:
        assert re.fullmatch(rf'{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)', headings[0])


def test_license_is_apache_2():
    text = (ROOT / 'LICENSE').read_text()
    assert 'Apache License' in text
    assert 'Version 2.0, January 2004' in text
    assert 'END OF TERMS AND CONDITIONS' in text


def test_each_ros_import_is_a_dependency(manifest):
    declared = {e.text for e in manifest.findall('exec_depend')}
    used = set()
    for path in (ROOT / 'dlnn_ros').rglob('*.py'):
        text = path.read_text(encoding='utf-8')
        used |= set(re.findall(r'^\s*(?:from|import) (\w+_msgs|\w+_srvs|rclpy)\b', text, re.M))
    assert used <= declared


def third_party_imports(path):
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {f'{node.module}.{alias.name}' for alias in node.names}
    known = {*sys.stdlib_module_names, 'dlnn_ros', 'compression'}  # compression: Python >= 3.14
    return {name for name in names if name.split('.')[0] not in known}


def test_each_third_party_import_is_a_dependency(setup_arguments):
    """Whoever installs with pip alone must get all that the package imports outside nodes/."""
    modules = {'pyyaml': 'yaml', 'pin': 'pinocchio'}
    extras = setup_arguments['extras_require']
    wanted = setup_arguments['install_requires'] + extras['rnea']
    declared = {modules.get(r.name, r.name) for r in map(Requirement, wanted)}
    for path in (ROOT / 'dlnn_ros').rglob('*.py'):
        if 'nodes' not in path.parts:
            for name in third_party_imports(path):
                found = {name.split('.')[0], '.'.join(name.split('.')[:2])} & declared
                assert found, f'{path.relative_to(ROOT)} imports {name}'


def test_console_scripts_import(setup_arguments):
    scripts = setup_arguments['entry_points']['console_scripts']
    assert scripts[0] == 'dlnn = dlnn_ros.cli.main:main'
    for script in scripts:
        module, _, function = script.partition(' = ')[2].partition(':')
        if '.nodes.' in module:
            pytest.importorskip('rclpy')
        assert callable(getattr(import_module(module), function)), script


def test_share_holds_every_launch_and_config_file(setup_arguments):
    installed = {name: folder for folder, names in setup_arguments['data_files'] for name in names}
    for path in source_files():
        name = path.relative_to(ROOT)
        if name.parts[0] in ('launch', 'config'):
            assert installed.get(str(name)) == f'share/dlnn_ros/{name.parent}'
    assert installed['package.xml'] == 'share/dlnn_ros'
    assert installed['resource/dlnn_ros'] == 'share/ament_index/resource_index/packages'


def test_every_file_of_the_package_is_installed(setup_arguments):
    packages = {p.replace('.', '/') for p in setup_arguments['packages']}
    patterns = setup_arguments['package_data']['']
    for path in source_files():
        name = path.relative_to(ROOT)
        if name.parts[0] == 'dlnn_ros':
            assert str(name.parent) in packages, f'{name}: __init__.py is missing beside it'
            assert name.suffix == '.py' or any(name.match(p) for p in patterns), name


@pytest.mark.parametrize('python_version', ['3.10', '3.11', '3.12', '3.13'])
def test_constraints_satisfy_the_ranges(setup_arguments, python_version):
    pinned = pins(python_version)
    wanted = list(setup_arguments['install_requires'])
    for extra in setup_arguments['extras_require'].values():
        wanted += extra
    for requirement in map(Requirement, wanted):
        pin = pinned[requirement.name.replace('.', '-')]
        assert pin in requirement.specifier, requirement
    wheels = re.findall(r'ros-kilted-[a-z-]+', (ROOT / 'tools' / 'setup.sh').read_text())
    assert len(wheels) >= 6
    assert set(wheels) <= set(pinned)


def test_constraints_hold_names_and_exact_versions_only():
    for pin in read_constraints():
        assert pin.url is None
        assert re.fullmatch(r'==[0-9][0-9a-z.]*', str(pin.specifier)), pin


def test_installed_versions_are_those_of_the_constraints():
    if not (Path(sys.prefix) / '.setup-done').exists():
        pytest.skip('this environment was not made by make setup')
    for name, version in pins(f'{sys.version_info[0]}.{sys.version_info[1]}').items():
        try:
            found = Version(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
        assert Version(found.public) == version, name


FORBIDDEN = {
    'a path of one machine': r'(?<![\w.~$}{*])/(?:root|work|home)/',
    'a package registry': r'https?://\S*(?:pypi|/whl|/simple\b)',
    'an index option': r'--(?:extra-)?index-url|--find-links|--trusted-host',
    'a conflict mark': r'^(?:<{7}|>{7}) ',
}


def find_forbidden(text):
    return [what for what, rule in FORBIDDEN.items() if re.search(rule, text, re.MULTILINE)]


def test_no_file_stands_on_one_machine():
    files = [p for p in text_files() if p != Path(__file__).resolve()]
    assert len(files) > 20
    found = {
        str(p.relative_to(ROOT)): wrong
        for p in files
        if (wrong := find_forbidden(p.read_text(encoding='utf-8')))
    }
    assert found == {}


@pytest.mark.parametrize(
    'text',
    [
        "open('/root/bag')",
        'path: /home/me/bag',
        'x\n<<<<<<< HEAD',
        'see https://index.example/simple',
        'pip install --index-url x',
    ],
)
def test_machine_paths_and_registries_are_found(text):
    assert len(find_forbidden(text)) == 1


def test_relative_paths_are_not_machine_paths():
    assert find_forbidden('../root/x ~/work/x config/home/x ${HOME}/root/x') == []


def test_no_file_is_large():
    for path in source_files():
        assert path.stat().st_size < 1_000_000, path
