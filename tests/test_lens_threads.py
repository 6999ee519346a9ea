"""Lenses on several threads: in order, without gradients, one at a time where they draw from torch's generator."""

import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from threadpoolctl import threadpool_info

from headscope.errors import ResourceError
from headscope.lenses.lens import AS_IS, Batch
from headscope.lenses.shared.head_threads import mapped
from headscope.pipeline.fold import Fold
from headscope.pipeline.lens_threads import TURN, lens_threads


class Own:
    """Stands for a lens of headscope."""

    __module__ = "headscope.lenses.own.lens"


class Foreign:
    """Stands for a lens of another package."""

    __module__ = "elsewhere.lens"


def batch_of(number):
    tokens = torch.tensor([[number]])
    return Batch(AS_IS, tokens, tokens >= 0)


class NotingFold(Fold):
    """A fold that notes its batches and the threads on which they came."""

    def __init__(self, lens=Own, update=None):
        self.plan = SimpleNamespace(question=SimpleNamespace(lens=lens()))
        self.batches, self.thread_names, self.with_gradients = [], [], []
        self._update = update

    def update(self, batch):
        if self._update is not None:
            self._update(batch)
        self.batches.append(int(batch.tokens))
        self.thread_names.append(threading.current_thread().name)
        self.with_gradients.append(torch.is_grad_enabled())


def test_lenses_work_at_the_same_time():
    meeting = threading.Barrier(2)  # each waits until the other has come: one after the other they would wait forever
    folds = [NotingFold(update=lambda batch: meeting.wait()) for _ in range(2)]
    with lens_threads(2) as threads:
        for number in range(3):
            threads.update([(fold, batch_of(number)) for fold in folds])
        threads.wait()
    assert [fold.batches for fold in folds] == [[0, 1, 2]] * 2
    threads_by_number = zip(*(fold.thread_names for fold in folds), strict=True)
    assert all(
        {name.partition("_")[0] for name in names} == {"lens", threading.current_thread().name}
        for names in threads_by_number
    )


def test_a_lens_takes_its_batches_in_order():
    folds = [NotingFold() for _ in range(5)]
    with lens_threads(3) as threads:
        for number in range(50):
            threads.update([(fold, batch_of(number)) for fold in folds])
        threads.wait()
    assert all(fold.batches == list(range(50)) for fold in folds)


def test_gradients_are_off_in_every_thread():
    fold = NotingFold()
    with torch.no_grad(), lens_threads(2) as threads:
        threads.update([(fold, batch_of(0))])
        threads.wait()
    assert fold.with_gradients == [False]


def test_every_thread_computes_on_one_thread():
    """Also of libraries that ask torch's OpenMP, which knows nothing of torch's number in a new thread of Python."""
    meeting, counts = threading.Barrier(2), []

    def note(part):
        meeting.wait()
        # Other packages bring an OpenMP of their own, which torch does not tell.
        of_torch = [info for info in threadpool_info() if info["user_api"] == "openmp" and "torch" in info["filepath"]]
        counts.extend(info["num_threads"] for info in of_torch)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with lens_threads(2) as threads, threads.helping():
            mapped(note, range(2))
    finally:
        torch.set_num_threads(before)
    assert set(counts) <= {1}  # empty where torch has no OpenMP


@pytest.mark.parametrize(("count", "lens"), [(1, Own), (2, Foreign)], ids=["one-thread", "of-another-package"])
def test_the_caller_does_the_work(count, lens):
    fold = NotingFold(lens)
    with lens_threads(count) as threads:
        threads.update([(fold, batch_of(0))])
        assert fold.batches == [0]
        (answer,) = threads.answers(lambda fold: threading.current_thread().name, [fold])
        assert answer[1]() == threading.current_thread().name
    assert fold.thread_names == [threading.current_thread().name]


def test_answers_come_in_the_order_of_the_folds():
    folds = [NotingFold(), NotingFold(Foreign), NotingFold()]
    with lens_threads(2) as threads:
        answers = [(fold, answer()) for fold, answer in threads.answers(id, folds)]
    assert answers == [(fold, id(fold)) for fold in folds]


def test_the_caller_works_on_other_answers_while_it_waits():
    meeting = threading.Barrier(2)

    def answer(fold):
        meeting.wait()
        return threading.current_thread().name

    folds = [NotingFold() for _ in range(4)]
    with lens_threads(2) as threads:
        names = [answer() for _, answer in threads.answers(answer, folds)]
    assert sorted(name.partition("_")[0] for name in names) == [threading.current_thread().name] * 2 + ["lens"] * 2


def test_turns_are_quick_while_lenses_work_and_as_before_afterwards():
    before = sys.getswitchinterval()
    with lens_threads(2):
        assert sys.getswitchinterval() == pytest.approx(TURN)
    assert sys.getswitchinterval() == before


def test_what_is_no_failure_of_the_lens_reaches_the_caller():
    def fails(batch):
        raise ResourceError("the machine is full")

    with lens_threads(2) as threads:
        threads.update([(NotingFold(update=fails), batch_of(0))])
        with pytest.raises(ResourceError, match="full"):
            threads.wait()


def test_an_interrupt_ends_a_lens_that_is_at_work():
    at_work = threading.Event()

    def endless(batch):
        at_work.set()
        while True:
            pass

    with pytest.raises(KeyboardInterrupt), lens_threads(2) as threads:
        threads.update([(NotingFold(update=endless), batch_of(0))])
        at_work.wait()
        raise KeyboardInterrupt
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lens")]
