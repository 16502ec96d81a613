"""A run that is interrupted and goes on has to end as one that was not."""

from dlnn_ros.learning.checkpoint import model_tensors
from dlnn_ros.learning.resume import ResumeFile
from dlnn_ros.learning.train import train
import numpy as np
import pytest


def check_resumed_run(dataset, settings, folder, stop_after):
    """Interrupt after so many validations, go on, and compare with the uninterrupted run."""
    whole = train(dataset, settings)
    resume = ResumeFile(folder / 'state')
    seen = []

    def stop(progress):
        seen.append(progress)
        if len(seen) == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(dataset, settings, resume, stop)
    again = train(dataset, settings, resume)
    for k, v in model_tensors(whole.model).items():
        np.testing.assert_array_equal(v, model_tensors(again.model)[k])
    assert [v.score for v in whole.curve] == [v.score for v in again.curve]
