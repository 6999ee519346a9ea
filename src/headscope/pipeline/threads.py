"""The threads of torch during a measurement: one for narrow models.

Lenses, and the layers of narrow models, make many small products. Two threads wait for each other at each of them and
take twice the processor time of one. Wide models make products that are worth sharing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from headscope.attention.bench.timing import one_thread
from headscope.core import ModelSpec

WIDE = 1024  # d_model from which on a model keeps the threads of its user


@contextmanager
def fitting_threads(model: ModelSpec) -> Iterator[int]:
    """Run torch and numpy on one thread if the model is narrow; afterwards on as many as before.

    The numbers of a narrow model then do not depend on how many threads there are: sums are never split among them.
    Yields the number of lenses that may work at the same time: as many as torch had threads, or one at a time where
    torch keeps its threads.
    """
    if model.d_model >= WIDE:
        yield 1
        return
    n_threads = torch.get_num_threads()
    # Threads of numpy's products spin between these, on the core where a lens could work.
    with one_thread(), threadpool_limits(1, user_api="blas"):
        yield n_threads
