"""`headscope mechanisms` and `headscope bench attention`: the mechanisms, their cost and their speed."""

import dataclasses
import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from headscope.catalogue import Member, mechanism_member, mechanism_members
from headscope.cli.options import FigureFormat, Form, examples
from headscope.cli.output import Format, check_destination, show_table
from headscope.cli.screen import bars, note
from headscope.errors import HeadscopeError, UsageError

LENGTHS = (1024, 4096, 16384, 65536)
D_HEAD = 64
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
    n: Annotated[int, typer.Option("--n", help="Positions in the drawings.")] = 32,
    causal: Annotated[bool, typer.Option("--causal", help="Draw it on a causal call.")] = False,
    layers: Annotated[int, typer.Option("--layers", help="Layers of the receptive field in the drawings.")] = 3,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where drawings go.")] = Path("headscope-drawings"),
    image: Annotated[FigureFormat, typer.Option("--image", help="What drawings are saved as.")] = FigureFormat.SVG,
    form: Form = Format.TABLE,
) -> None:
    """List the attention mechanisms with their parameters and cost, tell about one, or draw one.

    A drawing is a map of who attends to whom, the same as a graph, the receptive field of several layers, and for
    mechanisms whose weights depend on the tokens those weights. The paths of the files go to standard output.
    """
    if draw is not None:
        _draw(draw, n, causal, layers, out, image)
    elif name is not None:
        _tell(name, form)
    else:
        frame = _overview()
        if form is not Format.TABLE:
            show_table(frame, form)
            return
        with_share = frame.with_columns(of_dense=frame["Mflop_16k"] / frame["Mflop_16k_dense"])
        show_table(with_share["mechanism", "what", "parameters", "of_dense", "grows"], form)
        note(
            f"of_dense: flops of one head of width {D_HEAD} at 16k positions, as a share of dense attention's; "
            "`headscope mechanisms NAME` tells more, --draw NAME shows it"
        )


def bench_attention(
    n: Annotated[list[int] | None, typer.Option("--n", min=1, help="Length; may be repeated. [1024, 4096]")] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            "--mechanism", metavar="MECHANISM", help="Only this one, e.g. 'window(left=64)'; may be repeated."
        ),
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
    from headscope import api

    check_destination(form)
    kv = heads if kv_heads is None else kv_heads
    if heads % kv:
        raise UsageError(f"--heads {heads} must be a multiple of --kv-heads {kv}")
    contenders = (
        [api.spelled(text) for text in mechanism]
        if mechanism
        else [cls.examples(api.SHOWN_AT)[0] for cls in api.mechanisms().values()]
    )
    setting = api.BenchSetting(heads, kv, d_head, causal=causal, backward=backward, rounds=rounds)
    with bars() as progress:
        if compiled:
            progress.step("building the kernel", 0, 1)
            api.use_compiled()
        frame = api.bench_attention(contenders, n or [1024, 4096], setting, progress.step)
    if form is not Format.TABLE:
        show_table(frame, form)
        return
    show_table(frame.select(BENCH_COLUMNS.keys()).rename(BENCH_COLUMNS), form)
    note(
        "ms of CPU on one thread; ×dense: faster than dense SDPA by; ours×: our mechanism is faster than this peer by;"
    )
    note("MiB: the most that torch held beyond the inputs; matmul: useful work, 1 = the speed of a plain product")


def _overview() -> Any:
    import polars as pl

    from headscope import api

    dense = api.mechanism_named("dense")().cost(LENGTHS[2], D_HEAD).flops / 1e6
    rows = [_row(name, member, dense) for name, member in mechanism_members().items()]
    return pl.DataFrame(rows, infer_schema_length=None)


def _row(name: str, member: Member, dense: float) -> dict[str, Any]:
    """What the list says of a mechanism; of a broken one of another package, the reason."""
    from headscope import api

    try:
        with member.guard():
            cls = api.mechanism_named(member.name)
            costs = [cls.examples(api.SHOWN_AT)[0].cost(n, D_HEAD).flops for n in LENGTHS]
            return {
                "mechanism": name,
                "what": _first_line(cls),
                "parameters": _parameters(cls),
                **{f"Mflop_{n // 1024}k": cost / 1e6 for n, cost in zip(LENGTHS, costs, strict=True)},
                "Mflop_16k_dense": dense,
                "grows": f"n^{api.growth(costs, LENGTHS):.1f}",
            }
    except HeadscopeError as error:
        if not member.is_foreign:
            raise
        return {"mechanism": name, "what": f"broken: {error.message}", "Mflop_16k_dense": dense}


def _tell(name: str, form: Format) -> None:
    member = mechanism_member(name)  # an unknown name is refused before torch is loaded

    import polars as pl

    from headscope import api

    with member.guard():
        cls = api.mechanism_named(name)
        rows = [
            {"parameters": repr(mechanism), "n": n, "Mflop": cost.flops / 1e6, "working_MiB": cost.bytes / 2**20}
            for mechanism in cls.examples(api.SHOWN_AT)
            for n in LENGTHS
            for cost in [mechanism.cost(n, D_HEAD)]
        ]
    if form is Format.TABLE:
        module = inspect.getmodule(cls)
        typer.echo(f"{inspect.cleandoc((module and module.__doc__) or '')}\n\nparameters: {_parameters(cls)}\n")
        typer.echo(f"What one head of width {D_HEAD} costs:")
    show_table(pl.DataFrame(rows), form)


def _draw(text: str, n: int, causal: bool, layers: int, out: Path, image: FigureFormat) -> None:
    from headscope import api

    mechanism = api.spelled(text)
    for figure in api.pictures(mechanism, n, causal=causal, layers=layers):
        path = api.save_figure(figure, out / f"{mechanism.name}.{figure.name}.{image.value}")
        typer.echo(str(path))
        note(f"  {figure.caption}")


def _first_line(cls: Any) -> str:
    return inspect.cleandoc(cls.__doc__ or "").split("\n")[0]


def _parameters(cls: Any) -> str:
    def spelled(field: Any) -> str:
        if field.default is not dataclasses.MISSING:
            return f"{field.name}={field.default!r}"
        return f"{field.name}" + ("=…" if field.default_factory is not dataclasses.MISSING else "")

    return ", ".join(spelled(field) for field in dataclasses.fields(cls) if field.init) or "none"


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
