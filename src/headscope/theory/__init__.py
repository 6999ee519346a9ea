"""The ledger of claims: every checkable statement of the theory, executed."""

from headscope.theory.checks import Lab
from headscope.theory.claim import Chapter, Claim
from headscope.theory.ledger import chapters, claims, judged, ledger

__all__ = ["Chapter", "Claim", "Lab", "chapters", "claims", "judged", "ledger"]
