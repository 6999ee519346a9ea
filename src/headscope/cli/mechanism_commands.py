"""`headscope mechanisms` and `headscope bench attention`: the mechanisms, their cost and their speed."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.catalogue import (
    D_HEAD,
    LENGTHS,
    Member,
    check_mechanism,
    mechanism_member,
    mechanism_members,
    stored_summaries,
)
from headscope.cli.argument_checks import check_drawings
from headscope.cli.list_options import SEVERAL, listed
from headscope.cli.options import FigureFormat, Form, examples
from headscope.cli.output import Format, check_destination, show_rows, show_table
from headscope.cli.progress_display import shown_progress
from headscope.cli.screen import note
from headscope.errors import HeadscopeError, UsageError

DEFAULT_LENGTHS = (1024, 4096)
# What fits a terminal, under short names; --format csv has the rest.
BENCH_COLUMNS = {
    "contender": "contender",
    "n": "n",
    "milliseconds": "ms",
    "faster_than_dense": "×dense",
    "ours_is_faster_by": "ours×",
    "extra_mib": "MiB",
    "matmul_share": "matmul",
}


def mechanisms(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[MECHANISM]", help="Tell all about this one, e.g. bigbird.", show_default=False),
    ] = None,
    draw: Annotated[
        str | None,
        typer.Option("--draw", metavar="MECHANISM", help="Draw one with its parameters, e.g. 'window(left=4)'."),
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Positions in the drawings.")] = 32,
    causal: Annotated[bool, typer.Option("--causal", help="Draw it on a causal call.")] = False,
    layers: Annotated[int, typer.Option("--layers", min=1, help="Layers of the receptive field in the drawings.")] = 3,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where drawings go.")] = Path("headscope-drawings"),
    image: Annotated[FigureFormat, typer.Option("--image", help="What drawings are saved as.")] = FigureFormat.SVG,
    form: Form = Format.TABLE,
) -> None:
    """List the attention mechanisms with their parameters and cost, tell about one, or draw one.

    A drawing is a map of who attends to whom, the same as a graph, the receptive field of several layers, and for
    mechanisms whose weights depend on the tokens those weights. The paths of the files go to standard output.
    """
    check_destination(form)
    if draw is not None and name is not None:
        raise UsageError(
            f"{name} and --draw {draw} were both given", hint=f"`headscope mechanisms --draw {draw}` draws it"
        )
    if draw is not None:
        _draw(draw, n, causal, layers, out, image)
    elif name is not None:
        _tell(name, form)
    else:
        _list(form)


def bench_attention(
    n: Annotated[
        list[str] | None, typer.Option("--n", metavar="N", help=f"Lengths. {SEVERAL} Default: 1024,4096.")
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option("--mechanism", metavar="MECHANISM", help=f"Only these, e.g. 'window(left=64)'. {SEVERAL}"),
    ] = None,
    causal: Annotated[bool, typer.Option("--causal", help="On a causal call.")] = False,
    backward: Annotated[bool, typer.Option("--backward", help="Forward and backward.")] = False,
    heads: Annotated[int, typer.Option("--heads", min=1, help="Query heads.")] = 8,
    kv_heads: Annotated[
        int | None, typer.Option("--kv-heads", min=1, help="Key/value heads; default as many as query heads.")
    ] = None,
    d_head: Annotated[int, typer.Option("--d-head", min=1, help="Width of a head.")] = D_HEAD,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each is timed.")] = 5,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="With the optional kernel in C++, built once (needs a compiler).")
    ] = False,
    form: Form = Format.TABLE,
) -> None:
    """Time the mechanisms on this machine beside dense SDPA and beside every peer that is installed.

    One thread, float32, CPU seconds; medians over rounds in which all run one after the other. Peers beyond
    transformers: pip install local-attention linear-attention-transformer.
    """
    check_destination(form)
    kv = heads if kv_heads is None else kv_heads
    if heads % kv:
        raise UsageError(f"--heads {heads} must be a multiple of --kv-heads {kv}")
    lengths = _lengths(n)
    spellings = listed(mechanism or ())
    for spelling in spellings:
        check_mechanism(spelling)
    with shown_progress() as progress:
        from headscope import api

        contenders = (
            [api.spelled(spelling) for spelling in spellings]
            if spellings
            else [cls.examples(api.SHOWN_AT)[0] for cls in api.mechanisms().values()]
        )
        setting = api.BenchSetting(heads, kv, d_head, causal=causal, backward=backward, rounds=rounds)
        if compiled:
            progress.step("building the kernel", 0, 1)
            api.use_compiled()
        frame = api.bench_attention(contenders, lengths, setting, progress.step)
    if form is not Format.TABLE:
        show_table(frame, form)
        return
    show_table(frame.select(BENCH_COLUMNS.keys()).rename(BENCH_COLUMNS), form)
    note(
        "ms of CPU on one thread; ×dense: faster than dense SDPA by; ours×: our mechanism is faster than this peer by;"
    )
    note("MiB: the most that torch held beyond the inputs; matmul: useful work, 1 = the speed of a plain product")


def _lengths(values: list[str] | None) -> list[int]:
    """The lengths that were asked for."""
    words = listed(values or ())
    if wrong := [word for word in words if not word.isdecimal() or int(word) < 1]:
        raise UsageError(f"--n: {wrong[0]!r} is no length", hint="write whole numbers from 1 on: --n 1024,4096")
    return [int(word) for word in words] or list(DEFAULT_LENGTHS)


def _list(form: Format) -> None:
    rows = _rows()
    if form is not Format.TABLE:
        show_rows(rows, form)
        return
    shares = [{**row, "of_dense": _share(row)} for row in rows]
    names = ("mechanism", "what", "parameters", "of_dense", "grows")
    show_rows([{name: row.get(name) for name in names} for row in shares], form)
    note(
        f"of_dense: flops of one head of width {D_HEAD} at 16k positions, as a share of dense attention's; "
        "`headscope mechanisms NAME` tells more, --draw NAME shows it"
    )


def _share(row: dict[str, Any]) -> float | None:
    return row["Mflop_16k"] / row["Mflop_16k_dense"] if "Mflop_16k" in row else None


def _rows() -> list[dict[str, Any]]:
    """A row for each mechanism; those of headscope are listed without loading torch."""
    summaries = stored_summaries()
    dense = summaries["dense"].flops[LENGTHS.index(16384)] / 1e6
    rows = []
    for name, member in mechanism_members().items():
        try:
            summary = summaries[name] if name in summaries and not member.is_foreign else _loaded_summary(member)
        except HeadscopeError as error:
            if not member.is_foreign:
                raise
            rows.append({"mechanism": name, "what": f"broken: {error.message}", "Mflop_16k_dense": dense})
            continue
        rows.append(
            {
                "mechanism": name,
                "what": summary.description,
                "parameters": summary.spelled_parameters(),
                **{f"Mflop_{n // 1024}k": flops / 1e6 for n, flops in zip(LENGTHS, summary.flops, strict=True)},
                "Mflop_16k_dense": dense,
                "grows": f"n^{summary.growth:.1f}",
            }
        )
    return rows


def _loaded_summary(member: Member) -> Any:
    """The summary of a mechanism that is not among the stored ones."""
    with shown_progress(), member.guard():
        from headscope import api

        return api.summary_of(api.mechanism_named(member.name))


def _tell(name: str, form: Format) -> None:
    member = mechanism_member(name)  # an unknown name is refused before torch is loaded
    with shown_progress(), member.guard():
        from headscope import api

        cls = api.mechanism_named(name)
        summary = api.summary_of(cls)
        rows = [
            {"parameters": repr(mechanism), "n": n, "Mflop": cost.flops / 1e6, "working_MiB": cost.bytes / 2**20}
            for mechanism in cls.examples(api.SHOWN_AT)
            for n in LENGTHS
            for cost in [mechanism.cost(n, D_HEAD)]
        ]
    if form is Format.TABLE:
        module = inspect.getmodule(cls)
        description = inspect.cleandoc((module and module.__doc__) or "")
        typer.echo(f"{description}\n\nparameters: {summary.spelled_parameters()}\n")
        typer.echo(f"What one head of width {D_HEAD} costs:")
    show_rows(rows, form)


def _draw(text: str, n: int, causal: bool, layers: int, out: Path, image: FigureFormat) -> None:
    check_mechanism(text)
    check_drawings(out)
    with shown_progress():
        from headscope import api

        mechanism = api.spelled(text)
        figures = api.pictures(mechanism, n, causal=causal, layers=layers)
        paths = [api.save_figure(figure, out / f"{mechanism.name}.{figure.name}.{image.value}") for figure in figures]
    for figure, path in zip(figures, paths, strict=True):
        typer.echo(str(path))
        note(f"  {figure.caption}")


MECHANISMS_EXAMPLES = examples(
    "headscope mechanisms",
    "headscope mechanisms window",
    "headscope mechanisms --draw 'window(left=3, right=3, dilation=2)' --n 24 --layers 4",
)
BENCH_EXAMPLES = examples(
    "headscope bench attention",
    "headscope bench attention --n 4096 --n 16384 --mechanism 'window(left=128, right=128)'",
    "headscope bench attention --causal --backward --n 2048",
)
