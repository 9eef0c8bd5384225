"""Room for packages that change the process around them: what they change is put back when they are done."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import warnings
from collections.abc import Iterator

import numpy as np

SEED = 1234
"""Of what a package draws inside."""


@contextlib.contextmanager
def contained(logger: str) -> Iterator[None]:
    """Put back what a package and what it imports change, and keep them quiet meanwhile.

    Random states (set to `SEED` inside), environment, logging, progress bars, threads, warnings, what goes to stderr.

    Args:
        logger: the name under which the package logs; only errors come through.
    """
    import datasets
    import torch

    states = random.getstate(), np.random.get_state()
    environment, threads = dict(os.environ), torch.get_num_threads()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    bars = datasets.is_progress_bar_enabled()
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(_quiet_logging(logger))
        stack.enter_context(torch.random.fork_rng())
        try:
            datasets.disable_progress_bars()
            random.seed(SEED)
            np.random.seed(SEED)
            torch.manual_seed(SEED)
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_num_threads(threads)
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
            if bars:
                datasets.enable_progress_bars()
            for name in set(os.environ) - set(environment):
                del os.environ[name]
            os.environ.update(environment)


@contextlib.contextmanager
def _quiet_logging(logger: str) -> Iterator[None]:
    """Errors only from `logger`; the root logger's level and handlers as they were."""
    root, own = logging.getLogger(), logging.getLogger(logger)
    before = root.level, list(root.handlers), own.level, list(own.handlers), own.propagate
    own.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before[0])
        own.setLevel(before[2])
        root.handlers[:], own.handlers[:], own.propagate = before[1], before[3], before[4]
