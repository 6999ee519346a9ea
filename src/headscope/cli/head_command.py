"""`headscope head MODEL HEAD…`: one head, or a few, as a picture on the terminal, a drawing or a page."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope.catalogue import check_heads
from headscope.cli.argument_checks import check_file, check_request, requested_text
from headscope.cli.list_options import listed
from headscope.cli.options import Device, Form, Hub, Model, Seed, TextFile, examples
from headscope.cli.output import Format, check_destination, console, show_json, show_rows, show_table
from headscope.cli.progress_display import shown_progress
from headscope.cli.screen import note
from headscope.core.selection import Selection
from headscope.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from headscope.core import HeadView, HeadViews

DEFAULT_TOKENS = 64
FORMATS = ("html", "png", "svg", "pdf")
_DRAWN_LARGE = 2  # heads; more are drawn as thumbnails
_THUMBNAIL = 24  # columns of a thumbnail
_MEANINGS = "a label such as L1.H3, dec.L0.H1 or dec.L0.cross.H1, or a selection such as L1, L0-2 or cross"


def head(
    model: Model,
    heads: Annotated[
        list[str],
        typer.Argument(metavar="HEAD...", help=f"Which: {_MEANINGS}.", show_default=False),
    ],
    text: TextFile = None,
    first_tokens: Annotated[
        int,
        typer.Option("--first-tokens", min=1, metavar="N", help="Draw the head on the first N tokens of the text."),
    ] = DEFAULT_TOKENS,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a page (.html) or a drawing (.png, .svg, .pdf)."),
    ] = None,
    hub: Hub = False,
    device: Device = None,
    seed: Seed = 0,
    form: Form = Format.TABLE,
) -> None:
    """Draw one head, or a few: where each token of a text looks.

    Without --out the picture goes to the terminal, with the numbers of the head on this text: each next to the number
    for attention that is uniform over the visible keys. --format json and csv give every weight.
    """
    check_destination(form)
    spellings = listed(heads)
    check_spellings(spellings)
    check_picture(out)
    check_request(model, hub=hub, text=text, first_tokens=first_tokens)
    check_heads(model, spellings, hub=hub)
    with shown_progress() as progress:
        from headscope import api

        views = api.heads(
            model,
            *spellings,
            text=requested_text(text, device, progress),
            tokens=first_tokens,
            hub=hub,
            device=device,
            seed=seed,
            progress=progress,
        )
        if out is not None:
            progress.step("drawing", 0, 1)
            views.save(out)
            progress.step("drawing", 1, 1)
    _show(views, form, out)


def check_spellings(spellings: Sequence[str]) -> None:
    """Refuse what cannot be read as a selection of heads."""
    for spelling in spellings:
        Selection.parse(spelling)


def check_picture(out: Path | None) -> None:
    """Refuse a file that cannot be written, or whose name asks for no format that there is."""
    if out is None:
        return
    if out.suffix.lower().removeprefix(".") not in FORMATS:
        ending = f"unknown format {out.suffix!r}" if out.suffix else "its name has no ending"
        raise UsageError(
            f"cannot draw heads as {out.name!r}: {ending}",
            hint=f"end the name in {', '.join(f'.{kind}' for kind in FORMATS)}",
        )
    check_file(out, "--out")


def _show(views: "HeadViews", form: Format, out: Path | None) -> None:
    if form is Format.JSON:
        show_json([_as_object(view) for view in views])
    elif form is not Format.TABLE:
        show_table(_weight_table(views), form)
    else:
        _show_on_screen(views, is_drawn=out is None)
    if out is not None:
        word = "page" if out.suffix.lower() == ".html" else "picture"
        message = f"The {word}: {out.resolve()}"
        typer.echo(message) if form is Format.TABLE else note(message)


def _as_object(view: "HeadView") -> dict[str, Any]:
    """A head as plain data: its numbers, its tokens and every weight."""
    site = view.site
    return {
        "model": view.model,
        "label": view.label,
        "stack": site.stack,
        "kind": site.kind,
        "layer": site.layer,
        "head": view.head,
        "text": view.text,
        "quantities": view.quantities,
        "uniform": view.nulls,
        "tokens": view.tokens,
        "key_tokens": view.key_tokens,
        "pattern": view.pattern.tolist(),
    }


def _weight_table(views: "HeadViews") -> Any:
    """A row for each head, query and key."""
    import numpy as np
    import polars as pl

    frames = []
    for view in views:
        n_queries, n_keys = view.pattern.shape
        queries, keys = np.repeat(np.arange(n_queries), n_keys), np.tile(np.arange(n_keys), n_queries)
        place = {"stack": view.site.stack, "kind": view.site.kind, "layer": view.site.layer, "head": view.head}
        columns = {
            "query": queries,
            "query_token": np.array(view.tokens, dtype=object)[queries],
            "key": keys,
            "key_token": np.array(view.key_tokens, dtype=object)[keys],
            "weight": view.pattern.numpy().ravel(),
        }
        frames.append(
            pl.DataFrame(columns).select(*(pl.lit(entry).alias(name) for name, entry in place.items()), pl.all())
        )
    return pl.concat(frames)


def _show_on_screen(views: "HeadViews", *, is_drawn: bool) -> None:
    from rich.text import Text

    screen = console()
    if len(views) <= _DRAWN_LARGE:
        for view in views:
            screen.print(Text(view.title, style="bold"))
            _print_lines(screen, [*(_picture_lines(view, screen) if is_drawn else ()), Text(), *_number_lines(view)])
        return
    screen.print(Text(views.title, style="bold"))
    screen.print()
    if is_drawn:
        _print_lines(screen, list(_thumbnail_lines(views, screen)))
    show_rows([_row(view) for view in views], Format.TABLE)


def _print_lines(screen: "Console", lines: "Sequence[Text]") -> None:
    for line in lines:
        line.rstrip()
        screen.print(line, no_wrap=True, overflow="ignore", crop=False)


def _canvas(screen: "Console") -> Any:
    from headscope.cli.head_picture import Canvas

    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower()
    return Canvas(screen.width, screen.color_system is not None, encoding.startswith("utf"))


def _picture_lines(view: "HeadView", screen: "Console") -> "list[Text]":
    from headscope.cli.head_picture import picture

    return picture(view, _canvas(screen))


def _thumbnail_lines(views: "HeadViews", screen: "Console") -> "Iterator[Text]":
    """Small maps side by side, as many in a line as fit, each with its label above."""
    from rich.text import Text

    from headscope.cli.head_picture import thumbnail

    canvas = _canvas(screen)
    size = min(_THUMBNAIL, len(views[0].tokens))
    width = max(size, max(len(view.label) for view in views))
    across = max(1, (screen.width + 2) // (width + 2))
    for start in range(0, len(views), across):
        line_views = views.views[start : start + across]
        yield Text("  ".join(f"{view.label:<{width}}" for view in line_views).rstrip(), style="bold")
        pictures = [thumbnail(view, canvas, size) for view in line_views]
        for parts in zip(*pictures, strict=True):
            yield Text("  ").join(part + Text(" " * (width - part.cell_len)) for part in parts)
        yield Text()


def _number_lines(view: "HeadView") -> "Iterator[Text]":
    """The numbers of a head with their nulls, then its largest weights."""
    from rich.text import Text

    from headscope.core.numbers import number, visible

    width = max((len(entry.label) for entry in view.numbers), default=0)
    for entry in view.numbers:
        if entry.value is not None:
            yield Text.assemble((f"{entry.label:<{width}}  ", "dim"), f"{entry.text:<12}", _null_part(entry))
    if weights := view.largest():
        yield Text()
        yield Text("largest weights, without those on the first token", style="dim")
        for weight in weights:
            tokens = " → ".join(
                f"{place} {visible(token).strip() or repr(token)}"
                for place, token in ((weight.query, weight.query_token), (weight.key, weight.key_token))
            )
            yield Text(f"{number(weight.weight):>7}  {tokens}")


def _null_part(entry: Any) -> tuple[str, str]:
    return (f"uniform {entry.null_text}", "dim") if entry.null is not None else ("", "")


def _row(view: "HeadView") -> dict[str, Any]:
    return {"head": view.label, **{name: value for name, value in view.quantities.items() if value is not None}}


HEAD_EXAMPLES = examples(
    "headscope head tiny L1.H3",
    "headscope head smollm2 L11.H1 --text notes.txt --out head.html",
    "headscope head tiny L1 --first-tokens 256 --out layer.png",
)
