"""What every sub-command shares: its result, and one line in place of a traceback."""

from __future__ import annotations

from dataclasses import dataclass
import sys
from typing import Any


@dataclass(frozen=True)
class Result:
    """
    Outcome of a sub-command.

    Attributes
    ----------
    data : dict
        Printed as JSON on stdout with --json.
    text : str
        Printed on stdout without --json.
    exit_code : int
        Exit code of the process.

    """

    data: dict[str, Any]
    text: str = ''
    exit_code: int = 0


def progress(line: str) -> None:
    """Print a line about ongoing work on stderr."""
    print(line, file=sys.stderr, flush=True)
