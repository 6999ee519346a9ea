r"""A claim (a statement of the theory with a check), and chapters of claims.

A chapter is one file in `theory/chapters/` that binds CHAPTER; a scan finds it. A claim is a function under the
decorator `CHAPTER.claim(…)`, which is given a `Lab` and returns `Evidence`:

    CHAPTER = Chapter("Wertich", "Exploring the Hidden Structures …")

    @CHAPTER.claim(
        "W-5.1a",
        section="5.1",
        statement="The mean of the exponential of a normal variable is …",
        formula=r"E[e^X] = e^{(\mu + \sigma^2)/2}",
        correction="Only the variance is halved.",
        corrected=r"E[e^X] = e^{\mu + \sigma^2/2}",
        lesson="Two or three sentences that a student understands.",
        slip=True,
    )
    def log_normal_mean(lab: Lab) -> Evidence: …

The function computes both predictions and measures; what follows from the numbers is `core.verdict.verdict_of`'s
business, and the rule is written there. A question that the source leaves open ends in a question mark and returns
`Evidence(answer=…)`. Formulas are TeX as the report sets it (the subset of matplotlib's mathtext).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from headscope.core.claim_wording import Wording, wording
from headscope.core.verdict import Evidence, Source
from headscope.errors import UsageError
from headscope.theory.checks import Lab

Check = Callable[[Lab], Evidence]
Judge = Callable[..., Evidence | None]  # given the findings; None: this model cannot show it


@dataclass(frozen=True)
class Claim:
    """One statement, or several of one argument, and how to settle it.

    Exactly one of these: `check` (mathematics: run it), `waits` (a trained model settles it, by `judge` where a `lens`
    of headscope measures what is needed), or neither, and then `reason` says why nothing here can test it.
    """

    ids: tuple[str, ...]
    source: Source
    statement: str
    formula: str
    lesson: str
    correction: str = ""
    corrected: str = ""
    slip: bool = False
    related: tuple[str, ...] = ()  # ids of claims that belong to it
    check: Check | None = None
    lens: str = ""
    also: tuple[str, ...] = ()  # further lenses whose findings the judge is given
    judge: Judge | None = None
    waits: bool = False  # about trained models
    checkpoint: str = ""  # the one checkpoint that the statement is about
    reason: str = ""

    @property
    def wording(self) -> Wording:
        """The strength of the statement, from its own words."""
        return wording(self.statement, self.formula)


@dataclass
class Chapter:
    """The claims of one chapter of one work, in the order of their definition."""

    author: str
    work: str
    claims: list[Claim] = field(default_factory=list)

    def claim(
        self,
        *ids: str,
        section: str,
        statement: str,
        formula: str = "",
        lesson: str,
        correction: str = "",
        corrected: str = "",
        slip: bool = False,
        related: tuple[str, ...] = (),
    ) -> Callable[[Check], Check]:
        """Decorate the function that checks a mathematical statement."""

        def register(check: Check) -> Check:
            self._add(
                Claim(
                    ids, self._source(section), statement, formula, lesson,
                    correction=correction, corrected=corrected, slip=slip, related=related, check=check,
                )
            )  # fmt: skip
            return check

        return register

    def of_a_model(
        self,
        *ids: str,
        section: str,
        statement: str,
        formula: str = "",
        lesson: str,
        reason: str,
        lens: str = "",
        also: tuple[str, ...] = (),
        checkpoint: str = "",
        judge: Judge | None = None,
        correction: str = "",
        corrected: str = "",
        related: tuple[str, ...] = (),
    ) -> None:
        """Add a statement about trained models, and what settles it.

        `lens` (or an experiment) and those in `also` measure, `judge` turns their findings, in this order, into
        evidence, `reason` says what is needed; `checkpoint` names the one that it is about. Without a lens nothing
        that headscope has can measure it.
        """
        self._add(
            Claim(
                ids, self._source(section), statement, formula, lesson, correction=correction, corrected=corrected,
                lens=lens, also=also, judge=judge, checkpoint=checkpoint, reason=reason, related=related, waits=True,
            )
        )  # fmt: skip

    def untestable(self, *ids: str, section: str, statement: str, formula: str = "", lesson: str, reason: str) -> None:
        """A statement that nothing here can test, with the reason."""
        self._add(Claim(ids, self._source(section), statement, formula, lesson, reason=reason))

    def _source(self, section: str) -> Source:
        return Source(self.author, self.work, section)

    def _add(self, claim: Claim) -> None:
        if not claim.ids:
            raise UsageError(f"a claim of {self.work} has no id: {claim.statement}")
        self.claims.append(claim)
