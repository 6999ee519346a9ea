"""Windows that lenses make themselves, seeded and checked."""

import hashlib
from collections import Counter

import torch
from torch import Tensor

from headscope.core import ModelSpec
from headscope.corpora import Windows
from headscope.errors import LensError
from headscope.lenses.lens import MadeWindows, Needs
from headscope.model.ordinary_tokens import first_token_id, ordinary_token_ids
from headscope.pipeline.subject import Subject


def check_request(needs: Needs) -> None:
    """Refuse a request that cannot be met, before any work.

    Raises:
        LensError: Windows without a name or with a name twice, of no size, or that nobody looks at.
    """
    for name, times in Counter(windows.name for windows in needs.made).items():
        if not name or times > 1:
            raise LensError(f"the lens asks {times} times for made windows named {name!r}: each needs its own name")
    for windows in needs.made:
        if windows.count < 1 or windows.length < 1:
            raise LensError(
                f"the made windows {windows.name!r}: {windows.count} windows of {windows.length} tokens cannot be made"
            )
    if needs.made and not needs.text:
        raise LensError("the lens asks for made windows, and for neither statistics nor captures of them")
    if needs.text and not needs.reads_text and not needs.made:
        raise LensError("the lens reads no text and makes no windows: there is nothing to run the model on")


def make_windows(request: MadeWindows, subject: Subject, seed: int) -> Windows:
    """The windows that a lens makes for this model, no longer than its context.

    Raises:
        LensError: What it makes are not windows of the model's tokens.
    """
    spec = subject.spec
    ids = ordinary_token_ids(subject.model.tokenizer, spec.vocabulary)
    if not len(ids):
        raise LensError(f"the made windows {request.name!r}: it is not known which tokens {spec.name} has")
    length = min(request.length, spec.context or request.length)
    tokens = request.make(ids, _generator(seed, request.name), request.count, length)
    _check_tokens(tokens, request, length, spec)
    first = first_token_id(subject.model.tokenizer, spec.vocabulary) if request.begins else None
    if first is not None:
        tokens = torch.cat((torch.full_like(tokens[:, :1], first), tokens[:, 1:]), 1)
    return Windows(tokens, None, 0)


def _generator(seed: int, name: str) -> torch.Generator:
    """A generator whose numbers follow from the run's seed and the name alone."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big"))


def _check_tokens(tokens: object, request: MadeWindows, length: int, spec: ModelSpec) -> None:
    expected = f"expected {request.count} windows of {length} tokens, int64"
    if not isinstance(tokens, Tensor):
        raise LensError(f"the made windows {request.name!r} are {type(tokens).__name__}, {expected}")
    if tokens.shape != (request.count, length) or tokens.dtype != torch.int64:
        dtype = str(tokens.dtype).removeprefix("torch.")
        raise LensError(f"the made windows {request.name!r} have the shape {tuple(tokens.shape)}, {dtype}; {expected}")
    lowest, highest = int(tokens.min()), int(tokens.max())
    if lowest < 0 or highest >= spec.vocabulary:
        raise LensError(
            f"the made windows {request.name!r} hold the token {lowest if lowest < 0 else highest}, "
            f"expected ids from 0 to {spec.vocabulary - 1}, which {spec.name} embeds"
        )
