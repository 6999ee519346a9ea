"""Random tokens that come twice, and the head that attends most to what followed the first time."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from headscope.core import Site
from headscope.errors import UsageError
from headscope.experiments.why.target_pairs import MARGIN
from headscope.model.model import Model
from headscope.model.ordinary_tokens import ordinary_token_ids

SEQUENCES = 4  # on which the heads of a model are compared


@dataclass(frozen=True)
class Induction:
    """The head that attends most to the token after the first occurrence, its mean mass there, and the null."""

    site: Site
    head: int
    mass: float
    null: float


def repeated_tokens(model: Model, count: int, seed: int, sequences: int = 1) -> Int[Tensor, "sequences tokens"]:
    """The token that begins a text, where the model has one, then random ordinary tokens, and the same again."""
    ids = ordinary_token_ids(model.tokenizer, model.spec.vocabulary)
    room = (model.spec.context or 2 * count + 1) - 1
    count = min(count, room // 2)
    generator = torch.Generator().manual_seed(seed)
    first = ids[torch.randint(len(ids), (sequences, count), generator=generator)]
    begin = None if model.tokenizer is None else model.tokenizer.bos_token_id
    start = torch.full((sequences, 0 if begin is None else 1), begin or 0)
    return torch.cat([start, first, first], dim=1)


def strongest_induction(model: Model, count: int, seed: int) -> Induction:
    """The head that attends most from the second copy to the token after the first occurrence.

    The null is the largest mass that any head gives to the same distances where nothing comes twice.

    Raises:
        UsageError: No head gives it clearly more than the null.
    """
    tokens = repeated_tokens(model, count, seed + 1, SEQUENCES)
    length = (tokens.shape[1] - (tokens.shape[1] % 2)) // 2
    masses, nulls = _masses(model, tokens, length), _masses(model, _not_repeated(tokens, length), length)
    if not masses:
        raise UsageError(f"{model.spec.name} has no causal self-attention", hint="name a head, such as L1.H3")
    null = max(nulls.values())
    (site, head), mass = max(masses.items(), key=lambda entry: entry[1])
    if mass <= null + MARGIN:
        raise UsageError(
            f"{model.spec.name} has no induction head: {site.head_label(head)} comes nearest, with mass {mass:.2f} on "
            f"the token after the first occurrence; without a repeat {null:.2f} occur",
            hint=f"name a head, such as {site.head_label(head)}",
        )
    return Induction(site, head, mass, null)


def _not_repeated(tokens: Int[Tensor, "sequences tokens"], length: int) -> Int[Tensor, "sequences tokens"]:
    """The same tokens with the second copies of the sequences exchanged."""
    return torch.cat([tokens[:, :-length], tokens[:, -length:].roll(1, 0)], dim=1)


def _masses(model: Model, tokens: Int[Tensor, "sequences tokens"], length: int) -> dict[tuple[Site, int], float]:
    with model.session() as session:
        captured = session.capture("pattern")
        session.run(tokens, head=False)
        patterns = captured.take()["pattern"]
    masses = {}
    for site, pattern in patterns.items():
        if site.kind == "self" and site.causal:
            after = pattern.double().diagonal(1 - length, dim1=2, dim2=3)[..., -length:]
            masses.update({(site, head): float(mass) for head, mass in enumerate(after.mean((0, 2)))})
    return masses
