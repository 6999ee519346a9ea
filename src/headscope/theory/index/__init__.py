"""The index of the documents: every item with the command that reproduces it.

Items are figures, tables, formulas, theorems and questions. Names are fetched when they are used, so that the name of
an item is checked without torch.
"""

from typing import TYPE_CHECKING

from headscope.lazy_names import lazy_names

if TYPE_CHECKING:
    from headscope.theory.index.catalogue import document_of, documents, item_named, items, reproducing, ways, why_not
    from headscope.theory.index.item import KINDS, MODEL, Document, Item, Published, Step, Way

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
    "reproducing",
    "ways",
    "why_not",
]

__getattr__ = lazy_names(
    __name__,
    {
        "catalogue": "document_of documents item_named items reproducing ways why_not",
        "item": "KINDS MODEL Document Item Published Step Way",
    },
)
