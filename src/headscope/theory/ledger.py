"""The ledger: all claims, each judged by its own numbers."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

from headscope.core import Finding
from headscope.core.verdict import Entry, Evidence, Ledger, Verdict, correction_passes, rounded_evidence, verdict_of
from headscope.errors import NumericsError, UsageError
from headscope.theory.checks import Lab
from headscope.theory.claim import Chapter, Claim
from headscope.theory.claim_ids import ids_meant

_FOLDER = "headscope.theory.chapters"
_AUTHORS = ("W", "C", "R", "B", "P")  # the order of the works in the ledger
Step = Callable[[str, int, int], None]


@cache
def chapters() -> tuple[Chapter, ...]:
    """Every chapter; a scan of the folder finds them."""
    folder = importlib.import_module(_FOLDER)
    ordered_chapters = []
    for info in sorted(pkgutil.iter_modules(folder.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{_FOLDER}.{info.name}")
        chapter: object = getattr(module, "CHAPTER", None)
        if not isinstance(chapter, Chapter):
            raise UsageError(f"{module.__name__} must bind CHAPTER to a Chapter, found {chapter!r}")
        ordered_chapters.append(chapter)
    return tuple(ordered_chapters)


def claims(ids: Sequence[str] = ()) -> tuple[Claim, ...]:
    """All claims in the order of the works, or those of these ids.

    A section (W-5.2) names all claims in it.
    """
    everything = sorted((claim for chapter in chapters() for claim in chapter.claims), key=_place)
    claim_by_id = {name: claim for claim in everything for name in claim.ids}
    selected_claims = [claim_by_id[name] for selector in ids for name in ids_meant(selector, claim_by_id)]
    return tuple(dict.fromkeys(selected_claims)) if ids else tuple(everything)


def meant_ids(ids: Sequence[str]) -> frozenset[str]:
    """Every id that these ids and sections name; all where there is none."""
    all_ids = [name for claim in claims() for name in claim.ids]
    return frozenset(name for selector in ids for name in ids_meant(selector, all_ids)) if ids else frozenset(all_ids)


def judged(claim: Claim, seed: int = 0, findings: Mapping[str, Finding] | None = None, model: str = "") -> Entry:
    """The claim with its verdict; `findings` of a model settle what needs one."""
    if claim.check is not None:
        evidence = rounded_evidence(claim.check(Lab(seed, claim.ids[0])))
        return _entry(claim, _verdict(claim, evidence), evidence)
    measured = _measured(claim, findings or {})
    if measured is None:
        return _entry(claim, "needs a model" if claim.waits else "not testable", None)
    evidence = rounded_evidence(measured)
    elsewhere = bool(claim.checkpoint) and claim.checkpoint != model  # measured there, but not its verdict
    return _entry(claim, "needs a model" if elsewhere else _verdict(claim, evidence, model), evidence, model)


def _measured(claim: Claim, findings: Mapping[str, Finding]) -> Evidence | None:
    """What the judge makes of the findings.

    There is nothing where a finding is missing or the model cannot show it.
    """
    needed = [findings[lens] for lens in (claim.lens, *claim.also) if lens in findings]
    complete = len(needed) == 1 + len(claim.also) and all(finding.status == "ok" for finding in needed)
    return claim.judge(*needed) if claim.judge is not None and complete else None


def ledger(
    ids: Sequence[str] = (),
    *,
    seed: int = 0,
    findings: Mapping[str, Finding] | None = None,
    model: str = "",
    step: Step | None = None,
) -> Ledger:
    """Every claim judged."""
    selected_claims = claims(ids)
    entries = []
    for done, claim in enumerate(selected_claims):
        if step is not None:
            step("judging claim", done, len(selected_claims))
        entries.append(judged(claim, seed, findings, model))
    return Ledger(tuple(entries), seed)


def lenses_needed(selected_claims: Iterable[Claim]) -> tuple[str, ...]:
    """The lenses and experiments whose findings settle some of these claims."""
    return tuple(
        sorted({lens for claim in selected_claims if claim.judge is not None for lens in (claim.lens, *claim.also)})
    )


def _verdict(claim: Claim, evidence: Evidence, model: str = "") -> Verdict:
    try:
        return verdict_of(evidence, claim.wording, on_model=bool(model))
    except NumericsError as error:
        raise NumericsError(f"{', '.join(claim.ids)}: {error.message}", hint=error.hint) from None


def _entry(claim: Claim, verdict: Verdict, evidence: Evidence | None, model: str = "") -> Entry:
    """The claim as data; a correction is printed only where its comparisons pass."""
    wrong = verdict in ("refuted", "approximate", "open question")
    passes = evidence is not None and (bool(evidence.answer) or correction_passes(evidence))
    return Entry(
        ids=claim.ids,
        source=claim.source,
        statement=claim.statement,
        formula=claim.formula,
        verdict=verdict,
        lesson=claim.lesson,
        correction=claim.correction if wrong and passes else "",
        corrected_formula=claim.corrected if wrong and passes else "",
        slip=claim.slip and verdict == "refuted",
        evidence=evidence,
        lens=", ".join(lens for lens in (claim.lens, *claim.also) if lens),
        reason=claim.reason,
        model=model,
        checkpoint=claim.checkpoint,
        related=claim.related,
    )


def _place(claim: Claim) -> tuple[object, ...]:
    """Sorting key: W-2.1a before W-2.1b before W-2.10; the works in their order."""
    author, _, number = claim.ids[0].partition("-")
    pieces = tuple(
        (0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in re.findall(r"\d+|[^\d.]+", number)
    )
    return (_AUTHORS.index(author) if author in _AUTHORS else len(_AUTHORS), pieces)
