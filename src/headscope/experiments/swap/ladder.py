r"""Orders replacements: which head gets which cheaper mechanism next.

What moves is a unit: a head, or the heads that share a cache (`aims`). For each unit the candidates on the lower
convex hull of (spent, damage) count; the others cost more damage for the same saving. A step moves one unit to its next
cheaper candidate on the hull, and all steps of all units are sorted by damage for what is saved. The first k steps make
plan k: for the predicted damage, no plan that spends as little does less (the damage of several heads taken as a sum).
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
    """The heads of one unit move to a cheaper mechanism."""

    site: Site
    heads: tuple[int, ...]
    candidate: Candidate
    damage: float  # that is added
    saved: float  # of what candidates spend

    @property
    def price(self) -> float:
        """Damage for what is saved."""
        return self.damage / self.saved


@dataclass(frozen=True)
class Ladder:
    """All steps, the cheapest damage first.

    Properties:
        - what is spent falls and predicted damage grows with every step  (tested: test_a_ladder_goes_down)
        - no other choice of candidates that spends as little has less damage  (tested: test_a_ladder_by_brute_force)
    """

    steps: tuple[LadderStep, ...]

    def rules(self, count: int) -> dict[str, str]:
        """The heads of each mechanism after the first `count` steps."""
        spelling_by_head: dict[tuple[Site, int], str] = {}
        for step in self.steps[:count]:
            spelling_by_head |= {(step.site, head): step.candidate.spelling for head in step.heads}
        heads_by_mechanism: dict[str, dict[Site, list[int]]] = {}
        for (site, head), spelling in spelling_by_head.items():
            heads_by_mechanism.setdefault(spelling, {}).setdefault(site, []).append(head)
        return {spelling: selection_text(heads) for spelling, heads in sorted(heads_by_mechanism.items())}

    def saved(self, count: int) -> float:
        """What the first steps save."""
        return sum(step.saved for step in self.steps[:count])


def ladder(
    candidates: Mapping[Site, Sequence[Candidate]],
    damages: Mapping[Site, Float[Tensor, "candidates heads"]],
    full: Mapping[Site, float],
    units: Mapping[Site, Sequence[tuple[int, ...]]] | None = None,
) -> Ladder:
    """The ladder of all units, each head alone where none are named; `full`: what a unit spends without a plan."""
    steps = [
        step
        for site, site_candidates in candidates.items()
        if site_candidates
        for heads in ([(head,) for head in range(site.n_heads)] if units is None else units[site])
        for step in _unit_steps(site, heads, site_candidates, damages[site], full[site])
    ]
    # Within a unit prices grow along the hull, so a stable sort keeps its steps in order.
    return Ladder(tuple(sorted(steps, key=lambda step: step.price)))


def _unit_steps(
    site: Site,
    heads: tuple[int, ...],
    candidates: Sequence[Candidate],
    damages: Float[Tensor, "candidates heads"],
    full: float,
) -> list[LadderStep]:
    """The steps of one unit along the lower convex hull, from what it spends without a plan to the least."""
    summed = damages[:, list(heads)].sum(dim=1).tolist()
    points = sorted(zip(candidates, summed, strict=True), key=lambda point: -point[0].spent)
    steps: list[LadderStep] = []
    spent, level = full, 0.0
    while True:
        reachable = [(c, d) for c, d in points if c.spent < spent]
        if not reachable:
            return steps
        candidate, damage = min(reachable, key=lambda point: (point[1] - level) / (spent - point[0].spent))
        steps.append(LadderStep(site, heads, candidate, damage - level, spent - candidate.spent))
        spent, level = candidate.spent, damage
