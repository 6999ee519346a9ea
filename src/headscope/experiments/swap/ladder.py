r"""Orders replacements: which head gets which cheaper mechanism next.

For each head the candidates that are on the lower convex hull of (pairs computed, damage) count; the others cost more
damage for the same saving. A step moves one head to its next cheaper candidate on the hull, and all steps of all heads
are sorted by damage per pair saved. The first k steps make plan k: for the predicted damage, no plan that computes as
few pairs does less (the damage of several heads taken as a sum).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from headscope.core import Site
from headscope.core.selection import selection_text
from headscope.experiments.swap.candidates import Candidate


@dataclass(frozen=True)
class LadderStep:
    """One head moves to a cheaper mechanism."""

    site: Site
    head: int
    candidate: Candidate
    damage: float  # that is added
    saved: float  # pairs

    @property
    def price(self) -> float:
        """Damage for each pair saved."""
        return self.damage / self.saved


@dataclass(frozen=True)
class Ladder:
    """All steps, the cheapest damage first.

    Properties:
        - pairs fall and predicted damage grows with every step  (tested: test_a_ladder_goes_down)
        - no other choice of candidates with as few pairs has less damage  (tested: test_a_ladder_by_brute_force)
    """

    steps: tuple[LadderStep, ...]

    def rules(self, count: int) -> dict[str, str]:
        """The heads of each mechanism after the first `count` steps."""
        spelling_by_head: dict[tuple[Site, int], str] = {}
        for step in self.steps[:count]:
            spelling_by_head[step.site, step.head] = step.candidate.spelling
        heads_by_mechanism: dict[str, dict[Site, list[int]]] = {}
        for (site, head), spelling in spelling_by_head.items():
            heads_by_mechanism.setdefault(spelling, {}).setdefault(site, []).append(head)
        return {spelling: selection_text(heads) for spelling, heads in sorted(heads_by_mechanism.items())}

    def saved(self, count: int) -> float:
        """The pairs that the first steps save."""
        return sum(step.saved for step in self.steps[:count])


def ladder(
    candidates: Mapping[Site, Sequence[Candidate]],
    damages: Mapping[Site, Float[Tensor, "candidates heads"]],
    full: Mapping[Site, float],
) -> Ladder:
    """The ladder of all heads; `full` says how many pairs a head of each site computes without a plan."""
    steps = [
        step
        for site, site_candidates in candidates.items()
        if site_candidates
        for head in range(site.n_heads)
        for step in _head_steps(site, head, site_candidates, damages[site][:, head].tolist(), full[site])
    ]
    # Within a head prices grow along the hull, so a stable sort keeps its steps in order.
    return Ladder(tuple(sorted(steps, key=lambda step: step.price)))


def _head_steps(
    site: Site, head: int, candidates: Sequence[Candidate], damages: Sequence[float], full: float
) -> list[LadderStep]:
    """The steps of one head along the lower convex hull, from all pairs to the fewest."""
    points = sorted(zip(candidates, damages, strict=True), key=lambda point: -point[0].pairs)
    steps: list[LadderStep] = []
    pairs, level = full, 0.0
    while True:
        reachable = [(c, d) for c, d in points if c.pairs < pairs]
        if not reachable:
            return steps
        candidate, damage = min(reachable, key=lambda point: (point[1] - level) / (pairs - point[0].pairs))
        steps.append(LadderStep(site, head, candidate, damage - level, pairs - candidate.pairs))
        pairs, level = candidate.pairs, damage
