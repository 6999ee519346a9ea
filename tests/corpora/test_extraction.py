"""From packages to clean documents: no glued words, no doubled links, no menus, no other language."""

import pytest

from headscope.corpora.extraction import bible, declaration, handbook, plain_files
from headscope.corpora.html_text import paragraphs
from headscope.errors import ResourceError

LONG = "and this goes on for a while so that it counts as a sentence of the book"


def test_inline_elements_neither_glue_nor_split_words():
    page = "<p>un<b>believ</b>able <a href='x'>link</a>, <code>dpkg</code>\n  -L</p><p>two<br>lines</p>"
    assert paragraphs(page) == ["unbelievable link, dpkg -L", "two", "lines"]


def test_blocks_end_a_paragraph_even_when_they_are_not_closed():
    assert paragraphs("<ul><li>one<li>two</ul>tail<td>a</td><td>b</td>") == ["one", "two", "tail", "a", "b"]


def test_what_is_no_prose_is_left_out():
    page = (
        "<html><head><title>T</title><style>p{}</style></head><body><script>x()</script><nav>menu</nav>"
        "<pre>ls -l</pre><img src=x alt=y/><p>kept &amp; sound</p><div class='toc'><p>list</p></div>after</body></html>"
    )
    assert paragraphs(page, lambda tag, attributes: attributes.get("class") == "toc") == ["kept & sound", "after"]


def test_files_in_the_order_of_a_book():
    files = {f"d/{name}.txt": name.encode() for name in ("chapter_10", "chapter_2", "epilogue", "etymology")}
    documents = plain_files(files)[""]
    assert [document.text for document in documents] == ["etymology", "chapter_2", "chapter_10", "epilogue"]
    assert [document.key for document in documents] == [document.text for document in documents]


def test_documents_survive_being_separated():
    (document,) = plain_files({"a.txt": "\ufeffone\r\n  ***  \r\ntwo\xa0\xadthree    four \n\n\n\n\nfive\n".encode()})[
        ""
    ]
    assert document.text == "one\ntwo three four\n\nfive"


def test_a_bible_is_cut_into_chapters_and_never_executed():
    verses = ["In the beginning. ", "God`s Spirit. ", "Second chapter.", "Other book."]
    starts = [sum(map(len, verses[:n])) for n in range(4)]
    numbers = [1001001, 1001002, 1002001, 66001001]
    index = ",\n".join(f"        {number}: {start}" for number, start in zip(numbers, starts, strict=True))
    source = f'raise SystemExit\nbible = Bible(\n    V,\n    """{"".join(verses)}""",\n    {{\n{index},\n    }},\n)'
    documents = bible({"b.py": source.encode()})[""]
    assert [document.text for document in documents] == [
        "In the beginning. God's Spirit.",
        "Second chapter.",
        "Other book.",
    ]
    with pytest.raises(ResourceError, match="does not have the expected form"):
        bible({"b.py": b"bible = None"})


def test_articles_of_a_declaration_have_the_same_key_in_every_language():
    page = "<body><h1>{0}</h1><header><p>pre {0}</p></header><article><h2>1</h2><p>{0}</p></article></body>"
    parts = declaration({"d/deu.html": page.format("Recht").encode(), "d/eng.html": page.format("right").encode()})
    assert [document.text for document in parts["deu"]] == ["pre Recht", "1\n\nRecht"]
    assert [document.key for document in parts["deu"]] == [document.key for document in parts["eng"]]


def handbook_page(*lines: str) -> bytes:
    body = "".join(f"<div class='para'>{line}</div>" for line in lines)
    return f"<body><ul class='docnav'><li>Next</li></ul>{body}<pre class='screen'>ls</pre></body>".encode()


def test_what_a_translation_left_in_english_is_left_out():
    english = [f"See <a>Section 7</a> first, {LONG}.", f"The second one, {LONG}.", "Note"]
    german = [f"See <a>Abschnitt 7</a> first, {LONG}.", "Der zweite Absatz ist übersetzt, und er ist lang genug. " * 2]
    parts = handbook(
        {
            "h/en-US/a.html": handbook_page(*english),
            "h/de-DE/a.html": handbook_page(*german, "Note"),
            "h/de-DE/b.html": handbook_page(english[1], "Kurz"),
            "h/de-DE/index.html": handbook_page(german[1]),
        }
    )
    assert [document.key for document in parts["de-DE"]] == ["a"]
    assert parts["de-DE"][0].text == german[1].strip()
    assert len(parts["en-US"][0].text.split("\n\n")) == 3
