"""The ledger of claims: every checkable statement of the theory, executed.

Names are fetched when they are used, so that ids of claims and items of the index are checked without torch.
"""

from typing import TYPE_CHECKING

from headscope.lazy_names import lazy_names

if TYPE_CHECKING:
    from headscope.theory.checks import Lab
    from headscope.theory.claim import Chapter, Claim
    from headscope.theory.ledger import chapters, claims, judged

__all__ = ["Chapter", "Claim", "Lab", "chapters", "claims", "judged"]

__getattr__ = lazy_names(__name__, {"checks": "Lab", "claim": "Chapter Claim", "ledger": "chapters claims judged"})
