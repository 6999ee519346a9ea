"""The languages of LibreOffice's help, whose packages have the same paragraphs under the same identifiers."""

import re
from dataclasses import dataclass

from headscope.corpora.package_file import PackageFile

LICENCE = "MPL-2.0"
TITLE = "office help"
SUMMARY = "LibreOffice's help, aligned by the identifiers of its paragraphs; the splits keep near-duplicates together"
_PAGES = r"usr/share/libreoffice/help/[\w-]+/text/.+\.html"
_NAME = re.compile(r"([a-z]{2})-([a-z]{2})")


@dataclass(frozen=True)
class HelpLanguage:
    """A language and its package."""

    code: str
    package: PackageFile


# The first of two languages names the pair; any two may be paired, and in both directions.
LANGUAGES: dict[str, HelpLanguage] = {
    code: HelpLanguage(code, PackageFile("apt", f"libreoffice-help-{name}", size_bytes, _PAGES))
    for code, name, size_bytes in (
        ("en", "en-us", 1_753_504),
        ("de", "de", 3_293_908),
        ("es", "es", 3_271_860),
        ("fr", "fr", 3_237_008),
        ("it", "it", 3_183_388),
        ("nl", "nl", 3_243_012),
        ("pt", "pt-br", 3_239_640),
    )
}
# The pairs that lists show.
HELP_PAIRS: tuple[str, ...] = tuple(f"en-{code}" for code in LANGUAGES if code != "en")


def languages_of(name: str) -> tuple[HelpLanguage, HelpLanguage] | None:
    """The two languages of a name such as `en-it`; None where it is not such a name."""
    match = _NAME.fullmatch(name)
    if match is None or match[1] == match[2] or not {match[1], match[2]} <= LANGUAGES.keys():
        return None
    return LANGUAGES[match[1]], LANGUAGES[match[2]]
