"""The state of an unfinished training run, on disk."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from safetensors import safe_open, SafetensorError
from safetensors.torch import save_file


class ResumeFile:
    """
    One safetensors file with tensors by group and plain values as JSON in its header.

    It is written under a temporary name and renamed, so that a kill at any moment leaves the
    last whole state.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """
        Keep a second training with the same destination out; a killed one lets go by itself.

        Raises
        ------
        FileExistsError
            If another process holds it.

        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        path = self.path.with_name(self.path.name + '.lock')
        with path.open('w') as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FileExistsError(
                    f'{path}: another training with this destination is running'
                ) from None
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def save(self, state: dict[str, Any]) -> None:
        """Write `state`: 'tensors' {group: {name: Tensor}} and 'values' (JSON types)."""
        flat = {
            f'{group}/{name}': tensor.detach().cpu().contiguous()
            for group, tensors in state['tensors'].items()
            for name, tensor in tensors.items()
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(self.path.name + '.tmp')
        try:
            save_file(flat, temporary, metadata={'values': json.dumps(state['values'])})
            os.replace(temporary, self.path)
        except (SafetensorError, OSError) as error:
            temporary.unlink(missing_ok=True)
            raise OSError(
                f'{self.path}: the state of the training cannot be kept: {error}'
            ) from None

    def load(self) -> dict[str, Any] | None:
        """
        Read the state back; None where there is none.

        Raises
        ------
        ValueError
            If the file is damaged.

        """
        if not self.path.exists():
            return None
        tensors: dict[str, dict[str, Any]] = {}
        try:
            with safe_open(self.path, 'pt') as file:
                values = json.loads(file.metadata()['values'])
                for key in list(file.keys()):
                    group, name = key.split('/', 1)
                    tensors.setdefault(group, {})[name] = file.get_tensor(key)
        except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(
                f'{self.path}: damaged training state ({error}); delete it to start anew'
            ) from None
        return {'tensors': tensors, 'values': values}

    def delete(self) -> None:
        """Remove the file, and a half-written one."""
        self.path.unlink(missing_ok=True)
        self.path.with_name(self.path.name + '.tmp').unlink(missing_ok=True)
