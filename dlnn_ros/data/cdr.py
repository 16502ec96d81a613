"""
sensor_msgs/JointState as CDR bytes, many messages at a time.

A joint state broadcaster sends the same names in the same order over and over, so thousands of
messages differ only in the stamp and the numbers. Those are parsed by one `numpy.frombuffer`;
messages of other layouts are grouped in turn, and what stays alone is parsed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import struct
from typing import NamedTuple

import numpy as np

HEADER = 4  # encapsulation: representation identifier and options; alignment counts from its end
# Fewer messages of one layout than this are parsed one by one.
MIN_GROUP = 8


@dataclass(frozen=True)
class Layout:
    """
    Where things are in a message, as byte offsets.

    Attributes
    ----------
    order : str
        '<' or '>', as in numpy.
    names : tuple of str
        Joint names in the order of the message.
    position, velocity, effort : tuple of int
        Offset of the first number and how many there are.
    fixed : tuple of (int, int)
        First and last + 1 byte of what makes the layout: lengths, counts and strings. Padding
        is none of it, since some serialisers leave it uninitialised.

    """

    order: str
    names: tuple[str, ...]
    position: tuple[int, int]
    velocity: tuple[int, int]
    effort: tuple[int, int]
    fixed: tuple[tuple[int, int], ...]

    @property
    def fields(self) -> tuple[tuple[int, int], ...]:
        return self.position, self.velocity, self.effort


class Group(NamedTuple):
    """Messages of one layout: which they are, stamps [ns] and (K, n) arrays, n = 0 if empty."""

    members: np.ndarray
    names: tuple[str, ...]
    stamps: np.ndarray
    position: np.ndarray
    velocity: np.ndarray
    effort: np.ndarray


def read_layout(raw: bytes) -> Layout:
    """
    Find the parts of one message.

    Raises
    ------
    ValueError
        The bytes are not a JointState in plain CDR.

    """
    try:
        order = {0: '>', 1: '<'}[raw[1]] if raw[0] == 0 else ''
        if not order:
            raise ValueError(f'representation {raw[:2].hex()} is not plain CDR')
        u32 = struct.Struct(order + 'I')
        at = 12
        (length,) = u32.unpack_from(raw, at)
        fixed = [(0, 2), (at, at + 4 + length)]
        at = _align(at + 4 + length, 4)
        (count,) = u32.unpack_from(raw, at)
        fixed.append((at, at + 4))
        at += 4
        names = []
        for _ in range(count):
            at = _align(at, 4)
            (length,) = u32.unpack_from(raw, at)
            names.append(raw[at + 4 : at + 4 + length].rstrip(b'\0').decode())
            fixed.append((at, at + 4 + length))
            at += 4 + length
            if at > len(raw):
                raise ValueError('names run past the end')
        fields = []
        for _ in range(3):
            at = _align(at, 4)
            (count,) = u32.unpack_from(raw, at)
            fixed.append((at, at + 4))
            at += 4
            start = _align(at, 8) if count else at
            at = start + 8 * count
            if at > len(raw):
                raise ValueError('numbers run past the end')
            fields.append((start, count))
    except (struct.error, IndexError, KeyError, ValueError) as error:
        raise ValueError(f'not a sensor_msgs/JointState ({error})') from None
    if len(raw) - at > 7:
        raise ValueError(f'not a sensor_msgs/JointState ({len(raw) - at} bytes too many)')
    return Layout(order, tuple(names), fields[0], fields[1], fields[2], tuple(fixed))


def stamp_ns(raw: bytes) -> int:
    """
    Return the header stamp of a serialised message [ns].

    Raises
    ------
    ValueError
        If the message is too short to have one.

    """
    if len(raw) < 12:
        raise ValueError(f'a message has only {len(raw)} bytes')
    sec, nanosec = struct.unpack_from(('<' if raw[1] == 1 else '>') + 'iI', raw, 4)
    return int(sec) * 1_000_000_000 + int(nanosec)


def parse(raws: Sequence[bytes]) -> list[Group]:
    """
    Parse messages; together the groups hold every message once.

    Raises
    ------
    ValueError
        One of them is not a JointState.

    """
    by_length: dict[int, list[int]] = {}
    for k, raw in enumerate(raws):
        by_length.setdefault(len(raw), []).append(k)
    groups = []
    for length, members in by_length.items():
        index = np.array(members)
        table = np.frombuffer(b''.join([raws[k] for k in members]), np.uint8)
        table = table.reshape(len(members), length)
        while len(index):
            layout = read_layout(table[0].tobytes())
            fixed = np.concatenate([np.arange(*part) for part in layout.fixed])
            same = (table[:, fixed] == table[0, fixed]).all(axis=1)
            groups.append(_numbers(layout, table[same], index[same]))
            table, index = table[~same], index[~same]
            if same.sum() < MIN_GROUP:
                # Layouts change all the time: comparing each with all others would be quadratic.
                groups += [
                    _numbers(read_layout(row.tobytes()), row[None], index[k : k + 1])
                    for k, row in enumerate(table)
                ]
                break
    return groups


def patch(template: bytes, stamps: np.ndarray, fields: Sequence[np.ndarray]) -> list[bytes]:
    """
    Return copies of a message with other stamps [ns] and numbers.

    Parameters
    ----------
    template : bytes
        A JointState.
    stamps : array of int, (N,)
        Header stamps [ns].
    fields : three arrays, (N, n)
        Position, velocity and effort, each with as many numbers as in the template.

    """
    layout = read_layout(template)
    table = np.tile(np.frombuffer(template, np.uint8), (len(stamps), 1))
    seconds = (stamps // 10**9).astype(layout.order + 'i4')
    nanoseconds = (stamps % 10**9).astype(layout.order + 'u4')
    table[:, 4:8] = seconds[:, None].view(np.uint8)
    table[:, 8:12] = nanoseconds[:, None].view(np.uint8)
    for (start, count), numbers in zip(layout.fields, fields, strict=True):
        if numbers.shape != (len(stamps), count):
            raise ValueError(f'numbers of shape {numbers.shape} for {len(stamps)} x {count}')
        end = start + 8 * count
        if count:
            data = np.ascontiguousarray(numbers, layout.order + 'f8')
            table[:, start:end] = data.view(np.uint8)
    return [row.tobytes() for row in table]


def _align(at: int, size: int) -> int:
    return HEADER + -(-(at - HEADER) // size) * size


def _numbers(layout: Layout, table: np.ndarray, index: np.ndarray) -> Group:
    seconds = np.ascontiguousarray(table[:, 4:8]).view(layout.order + 'i4')[:, 0]
    nanoseconds = np.ascontiguousarray(table[:, 8:12]).view(layout.order + 'u4')[:, 0]
    stamps = seconds.astype(np.int64) * 10**9 + nanoseconds
    arrays = []
    for start, count in layout.fields:
        end = start + 8 * count
        block = np.ascontiguousarray(table[:, start:end])
        numbers = block.view(layout.order + 'f8') if count else np.empty((len(table), 0))
        arrays.append(numbers.astype(float))
    return Group(index, layout.names, stamps, arrays[0], arrays[1], arrays[2])
