"""
The files of a rosbag2: found, decompressed, checked, opened in order of time.

Files compressed as a whole are recognised by name, messages compressed one by one by their first
bytes; metadata.yaml is used where it is there and not needed where it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
import contextlib
from pathlib import Path
import shutil
import sqlite3
import struct
import tempfile
from typing import Any, NamedTuple

from dlnn_ros.config import load_yaml
import yaml

JOINT_STATE = 'sensor_msgs/msg/JointState'
DEFAULT_TOPIC = '/joint_states'
CHUNK = 50_000
ZSTD_MAGIC = b'\x28\xb5\x2f\xfd'
MCAP_MAGIC = b'\x89MCAP0\r\n'


class File(NamedTuple):
    """An open file: its path, its rosbags reader, and what that reads, perhaps decompressed."""

    path: Path
    reader: Any
    data: Path


def open_files(path: Path, stack: contextlib.ExitStack) -> list[File]:
    """Open the files of a bag, in order of time."""
    files = []
    for file in _find_files(path):
        data = _decompress(file, stack)
        _check_intact(file, data)
        reader = _make_reader(file, data)
        try:
            reader.open()
        except Exception as error:
            # rosbags passes on what struct, lz4, zstd, apsw, ... raise on damaged input.
            raise ValueError(f'{file}: cannot be read ({_one_line(error)})') from None
        stack.callback(reader.close)
        files.append(File(file, reader, data))
    return sorted(files, key=lambda f: f.reader.start_time)


def _find_files(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(f'{path}: no such bag')
    name = path.name
    if name.endswith(('.bag', '.bag.active')):
        reindex = f'rosbag reindex {path}, then ' if name.endswith('.active') else ''
        target = path.with_name(name.split('.bag')[0])
        raise ValueError(
            f'{path}: is a ROS 1 bag; convert it to rosbag2 by: '
            f'{reindex}rosbags-convert --src {path} --dst {target}'
        )
    if path.is_file():
        if not _is_storage(path):
            raise ValueError(
                f'{path}: is neither a rosbag2 folder nor a .mcap or .db3 file (or .zstd of one)'
            )
        return [path]
    present = sorted(p for p in path.iterdir() if p.is_file() and _is_storage(p))
    information = _metadata(path)
    if information is not None:
        listed = [path / Path(str(p)).name for p in information.get('relative_file_paths') or []]
        missing = [p.name for p in listed if not p.exists()]
        if missing:
            rest = (
                f'; to do without, name the others one by one: {present[0]} ...' if present else ''
            )
            raise ValueError(f'{path}: metadata.yaml lists {", ".join(missing)}: not there{rest}')
        if listed:
            return listed
    if not present:
        old = next(path.glob('*.bag*'), None)
        if old is not None:
            return _find_files(old)
        raise ValueError(f'{path}: no .mcap or .db3 file in this folder')
    return present


def _is_storage(path: Path) -> bool:
    suffixes = path.suffixes
    while suffixes and suffixes[-1] in ('.zstd', '.zst'):
        suffixes.pop()
    return bool(suffixes) and suffixes[-1] in ('.mcap', '.db3')


def _metadata(path: Path) -> dict[str, Any] | None:
    """Return the content of metadata.yaml, None where there is no such file."""
    file = path / 'metadata.yaml'
    if not file.is_file():
        return None
    content = load_yaml(file)
    information = content.get('rosbag2_bagfile_information') if isinstance(content, dict) else None
    if not isinstance(information, dict):
        raise ValueError(
            f'{file}: no rosbag2_bagfile_information; remake it by: ros2 bag reindex {path}'
        )
    return information


def _decompress(file: Path, stack: contextlib.ExitStack) -> Path:
    """Return the file, or a decompressed copy that lives as long as the stack."""
    if file.suffix not in ('.zstd', '.zst'):
        return file
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix='dlnn_bag_')))
    target = folder / file.name[: -len(file.suffix)]
    try:
        with (
            file.open('rb') as source,
            _zstd().open(source, 'rb') as plain,
            target.open('wb') as copy,
        ):
            shutil.copyfileobj(plain, copy)
    except Exception as error:
        raise ValueError(
            f'{file}: cannot be decompressed ({_one_line(error)}); try: zstd -d {file}'
        ) from None
    return target


def _zstd() -> Any:
    try:
        from compression import zstd  # Python >= 3.14
    except ImportError:
        from backports import zstd
    return zstd


def _check_intact(file: Path, data: Path) -> None:
    """Say what is wrong with a damaged file in words that help."""
    size = data.stat().st_size
    if size == 0:
        raise ValueError(f'{file}: the file is empty (0 bytes)')
    with data.open('rb') as stream:
        start = stream.read(16)
        stream.seek(max(0, size - len(MCAP_MAGIC)))
        end = stream.read()
    if start[:4] == ZSTD_MAGIC:
        raise ValueError(f'{file}: is compressed by zstd as a whole; decompress it by: zstd -d')
    if data.suffix == '.mcap':
        if not start.startswith(MCAP_MAGIC):
            raise ValueError(f'{file}: is not an MCAP file (it starts with {start[:8].hex()})')
        if end != MCAP_MAGIC or size <= len(MCAP_MAGIC):
            raise ValueError(
                f'{file}: the file is truncated at byte {size} (no end mark); recover what is '
                f'intact by: mcap recover {file} -o recovered.mcap'
            )
    elif not start.startswith(b'SQLite format 3\0'):
        raise ValueError(f'{file}: is not an SQLite file (it starts with {start[:8].hex()})')


def _make_reader(file: Path, data: Path) -> Any:
    try:
        from rosbags.rosbag2 import Reader
    except ImportError:
        raise ImportError(
            f"{file}: reading bags needs the package rosbags; pip install 'rosbags>=0.11'"
        ) from None
    if '.mcap' not in getattr(Reader, 'STORAGE_PLUGINS', {}):
        from importlib.metadata import version

        raise ImportError(
            f'{file}: rosbags {version("rosbags")} cannot read single files; '
            "pip install 'rosbags>=0.11'"
        )
    return Reader(data)


def choose_topic(path: Path, files: Sequence[File], topic: str | None) -> str:
    counts: Counter[str] = Counter()
    types: dict[str, str] = {}
    for file in files:
        for connection in file.reader.connections:
            counts[connection.topic] += connection.msgcount
            types[connection.topic] = connection.msgtype
    states = {t: counts[t] for t in sorted(types) if types[t] == JOINT_STATE}
    there = ', '.join(f'{t} ({n} messages)' for t, n in states.items()) or 'none'
    if topic is None:
        filled = [t for t, n in states.items() if n]
        if DEFAULT_TOPIC in filled:
            return DEFAULT_TOPIC
        if len(filled) > 1:
            raise ValueError(f'{path}: several JointState topics; name one of: {there}')
        if filled:
            return filled[0]
        if not sum(counts.values()):
            raise ValueError(f'{path}: no messages in this bag')
        raise ValueError(f'{path}: no messages of type {JOINT_STATE}; JointState topics: {there}')
    topic = '/' + topic.lstrip('/')
    if topic not in types:
        raise ValueError(f'{path}: topic {topic} is not in the bag; JointState topics: {there}')
    if types[topic] != JOINT_STATE:
        raise ValueError(
            f'{path}: topic {topic} is of type {types[topic]}, not {JOINT_STATE}; '
            f'JointState topics: {there}'
        )
    if not counts[topic]:
        raise ValueError(
            f'{path}: topic {topic} is in the bag but has 0 messages; JointState topics: {there}'
        )
    return topic


def custom_data(path: Path, files: Sequence[File]) -> dict[str, str]:
    """Return the custom data of a bag, from metadata.yaml or from inside its files."""
    information = _metadata(path if path.is_dir() else path.parent)
    if information is not None and path.is_file():
        listed = [Path(str(p)).name for p in information.get('relative_file_paths') or []]
        information = information if path.name in listed else None
    if information is None:
        for file in files:
            text = _inner_metadata(file.data)
            with contextlib.suppress(yaml.YAMLError):
                information = yaml.safe_load(text) if text else None
            if isinstance(information, dict):
                break
    custom = information.get('custom_data') if isinstance(information, dict) else None
    return dict(custom) if isinstance(custom, dict) else {}


def _inner_metadata(data: Path) -> str | None:
    """Return the copy of metadata.yaml inside a storage file, None where there is none."""
    if data.suffix == '.db3':
        try:
            with contextlib.closing(sqlite3.connect(f'file:{data}?mode=ro', uri=True)) as db:
                row = db.execute('SELECT metadata FROM metadata ORDER BY id DESC').fetchone()
        except sqlite3.Error:
            return None  # written before there was such a table
        return row[0] if row else None
    found = None
    with data.open('rb') as stream:
        stream.seek(len(MCAP_MAGIC))
        while len(head := stream.read(9)) == 9:
            kind, length = struct.unpack('<BQ', head)
            if kind != 0x0C:  # a metadata record: name, then a map of strings
                stream.seek(length, 1)
                continue
            strings = stream.read(length)
            key = b'serialized_metadata'
            at = strings.find(key)
            if at > 0:
                at += len(key)
                (size,) = struct.unpack_from('<I', strings, at)
                found = strings[at + 4 : at + 4 + size].decode(errors='replace')
    return found


def read_chunks(
    topic: str, files: Sequence[File]
) -> Iterator[tuple[Path, list[bytes], list[int]]]:
    """Yield messages and log times, many at a time."""
    zstd: Any = None
    for file in files:
        connections = [c for c in file.reader.connections if c.topic == topic and c.msgcount]
        if not connections:
            continue
        raws: list[bytes] = []
        log: list[int] = []
        done = 0
        messages = file.reader.messages(connections)
        while True:
            try:
                _, time, raw = next(messages)
                if raw[:4] == ZSTD_MAGIC:
                    zstd = zstd or _zstd()
                    raw = zstd.decompress(raw)
            except StopIteration:
                break
            except Exception as error:
                raise ValueError(
                    f'{file.path}: damaged after {done + len(raws)} messages ({_one_line(error)})'
                ) from None
            raws.append(raw)
            log.append(time)
            if len(raws) == CHUNK:
                yield file.path, raws, log
                done += len(raws)
                raws, log = [], []
        if raws:
            yield file.path, raws, log


def _one_line(error: Exception) -> str:
    return ' '.join(str(error).split()) or type(error).__name__
