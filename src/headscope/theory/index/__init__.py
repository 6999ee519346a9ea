"""The index of the documents: every item with the command that reproduces it.

Items are figures, tables, formulas, theorems and questions.
"""

from headscope.theory.index.catalogue import document_of, documents, item_named, items, reproducing, ways, why_not
from headscope.theory.index.item import KINDS, MODEL, Document, Item, Published, Step, Way
from headscope.theory.index.page import page

__all__ = [
    "KINDS",
    "MODEL",
    "Document",
    "Item",
    "Published",
    "Step",
    "Way",
    "document_of",
    "documents",
    "item_named",
    "items",
    "page",
    "reproducing",
    "ways",
    "why_not",
]
