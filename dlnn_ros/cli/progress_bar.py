"""A progress bar for training, on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

LINE_EVERY_S = 10.0  # where stderr is a file


class TrainingBar:
    """Shows progress, time left and the live validation score; lines where there is no screen."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._is_screen = sys.stderr.isatty()
        self._bar = tqdm(
            total=100.0,
            desc=f'training {title}',
            unit='%',
            disable=not self._is_screen,
            bar_format='{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining} {postfix}',
        )
        self._last_line = time.monotonic()

    def __enter__(self) -> TrainingBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def update(self, progress) -> None:
        """Show a :class:`dlnn_ros.learning.trainer.Progress`."""
        score = f'validation {progress.validation.score:.4f}, best {progress.best_score:.4f}'
        self._bar.update(100 * min(progress.fraction, 1.0) - self._bar.n)
        self._bar.set_postfix_str(score)
        now = time.monotonic()
        if not self._is_screen and (
            now - self._last_line > LINE_EVERY_S or progress.fraction >= 1
        ):
            self._last_line = now
            print(
                f'training {self._title}: {progress.fraction:4.0%}, {score}',
                file=sys.stderr,
                flush=True,
            )
