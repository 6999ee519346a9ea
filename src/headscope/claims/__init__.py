"""The ledger of claims: every checkable statement of the theory, executed."""

from headscope.claims.claim import Chapter, Claim
from headscope.claims.lab import Lab
from headscope.claims.ledger import chapters, claims, judged, ledger

__all__ = ["Chapter", "Claim", "Lab", "chapters", "claims", "judged", "ledger"]
