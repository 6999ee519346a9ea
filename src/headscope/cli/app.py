"""The commands. Each loads what it needs when it is called."""

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscope import __version__
from headscope.catalogue import (
    Member,
    check_model,
    check_run,
    check_text,
    described_forms,
    is_model_list,
    lens_members,
    models_in_list,
)
from headscope.catalogue import models as listed_models
from headscope.cli.argument_checks import check_drawings, check_lenses, check_request, requested_text
from headscope.cli.claims_command import CLAIMS_EXAMPLES, claims
from headscope.cli.compare_command import COMPARE_EXAMPLES, compare
from headscope.cli.data_command import DATA_EXAMPLES, data
from headscope.cli.experiment_commands import ExperimentGroup
from headscope.cli.head_command import HEAD_EXAMPLES, head
from headscope.cli.index_command import INDEX_EXAMPLES, index
from headscope.cli.lens_commands import LensGroup
from headscope.cli.list_options import SEVERAL
from headscope.cli.mechanism_commands import BENCH_EXAMPLES, MECHANISMS_EXAMPLES, bench_attention, mechanisms
from headscope.cli.options import (
    MODEL_HELP,
    AllWindows,
    Device,
    FigureFormat,
    FirstTokens,
    Form,
    Hub,
    Model,
    ModelOrTiny,
    Seed,
    TextFile,
    Window,
    examples,
    paragraphs,
)
from headscope.cli.output import Format, check_destination, show_json, show_rows
from headscope.cli.progress_display import shown_progress
from headscope.cli.screen import note, resumable
from headscope.cli.trajectory_command import TRAJECTORY_EXAMPLES, trajectory
from headscope.cli.translate_command import TRANSLATE_EXAMPLES, translate
from headscope.cli.value_errors import plain_value_errors
from headscope.errors import HeadscopeError, LensError, NumericsError, UsageError
from headscope.progress import WRITING, Stage

if TYPE_CHECKING:
    from headscope.core import Run

DEFAULT_FOLDER = Path("headscope-report")
SHOWN_FINDINGS = 5
VERIFIED_CHARACTERS = 2**16  # far more than the first tokens, on which a model is verified


class Commands(ExperimentGroup):
    """The commands in the order in which a newcomer wants to read about them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """What runs first, then what lists."""
        order = (
            "report",
            "compare",
            "trajectory",
            "look",
            "head",
            "lens",
            "verify",
            "intervene",
            "study",
            "translate",
            "claims",
            "index",
            "figures",
            "bench",
        )
        return sorted(super().list_commands(ctx), key=lambda name: order.index(name) if name in order else len(order))

    def invoke(self, ctx: Any) -> Any:
        """Run a command; values that it refuses are said in plain words."""
        with plain_value_errors():
            return super().invoke(ctx)


app = typer.Typer(
    name="headscope",
    cls=Commands,
    help="The mathematics of attention, executable on any transformer.\n\nAn option that takes several values may be "
    "repeated, or takes them separated by commas.",
    epilog=examples("headscope report", "headscope look smollm2", "headscope lens focus minilm --format csv"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(
    typer.Typer(
        cls=LensGroup,
        no_args_is_help=True,
        help="One lens on one model; its answer goes to standard output.",
        epilog=examples("headscope lens spectra tiny", "headscope lens focus smollm2 --text notes.txt"),
    ),
    name="lens",
)


app.command(epilog=CLAIMS_EXAMPLES)(claims)
app.command(epilog=COMPARE_EXAMPLES)(compare)
app.command(epilog=DATA_EXAMPLES)(data)
app.command(epilog=HEAD_EXAMPLES)(head)
app.command(epilog=INDEX_EXAMPLES)(index)
app.command(epilog=MECHANISMS_EXAMPLES)(mechanisms)
app.command(epilog=TRANSLATE_EXAMPLES)(translate)
app.command(epilog=TRAJECTORY_EXAMPLES)(trajectory)
_benches = typer.Typer(no_args_is_help=True, help="Ratios against dense attention and against peers, on this machine.")
_benches.callback()(lambda: None)  # a group even while it has one command
_benches.command(name="attention", epilog=BENCH_EXAMPLES)(bench_attention)
app.add_typer(_benches, name="bench")


def _version(is_asked: bool) -> bool:
    if is_asked:
        typer.echo(f"headscope {__version__}")
        raise typer.Exit
    return is_asked


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (also HEADSCOPE_DEBUG=1).")
    ] = False,
) -> None:
    pass


@app.command(
    epilog=examples("headscope report", "headscope report smollm2", "headscope report ./my-model --text a.txt")
)
def report(
    model: ModelOrTiny = "tiny",
    text: TextFile = None,
    lens: Annotated[
        list[str] | None,
        typer.Option("--lens", metavar="NAME", help=f"Only these lenses. {SEVERAL} Default: all."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the lenses that need a changed form of the model.")
    ] = False,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="The run folder; an interrupted run in it is resumed."),
    ] = DEFAULT_FOLDER,
    hub: Hub = False,
    device: Device = None,
    seed: Seed = 0,
    window: Window = 512,
    first_tokens: FirstTokens = None,
    all_windows: AllWindows = False,
) -> None:
    """Ask every lens about a model and write one self-contained report.html.

    The run folder also keeps every table (parquet), every array (safetensors) and a manifest.
    """
    names = check_lenses(lens)
    if quick and names is not None:
        raise UsageError("--quick chooses the lenses itself", hint="leave out either --lens or --quick")
    check_request(model, hub=hub, text=text, out=out, first_tokens=first_tokens, all_windows=all_windows)
    with resumable(out), shown_progress() as progress:
        from headscope import api

        progress.plan([Stage(WRITING, api.writing_seconds(len(names or lens_members())))])
        run = api.measure(
            model,
            text=requested_text(text, device, progress),
            lenses=names,
            quick=quick,
            seed=seed,
            window=window,
            first_tokens=first_tokens,
            all_windows=all_windows,
            hub=hub,
            device=device,
            out=out,
            progress=progress,
        )
        progress.step(WRITING, 0, 1)
        page = api.report(out)
        progress.step(WRITING, 1, 1)
    _tell(run, page, model)
    _fail_for(run)


@app.command(epilog=examples("headscope look smollm2"))
def look(model: Model, hub: Hub = False, form: Form = Format.TABLE) -> None:
    """What is inside a model, and how much memory and time it would take. Runs nothing."""
    check_destination(form)
    check_model(model, hub=hub)
    with shown_progress() as progress:
        from headscope import api

        card = api.look(model, hub=hub, progress=progress.step)
    if form is Format.TABLE:
        typer.echo(str(card))
    elif form is Format.JSON:
        show_json(dataclasses.asdict(card))
    else:
        show_rows([dataclasses.asdict(site) | {"extras": " ".join(site.extras)} for site in card.sites], form)


@app.command(epilog=examples("headscope verify minilm", "headscope verify --hub popular"))
def verify(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help=f"{MODEL_HELP} With --hub also a list: a text file with one model a line, or `popular`, a list of "
            "twenty small models that ships with headscope.",
            show_default=False,
        ),
    ],
    text: TextFile = None,
    hub: Hub = False,
    device: Device = None,
    form: Form = Format.TABLE,
) -> None:
    """Compare fast, definition and transformers on this very checkpoint; exit code 4 where they disagree.

    With --hub and a list, every model of it is fetched and compared, and the table has one row for each.
    """
    check_destination(form)
    model_names = models_in_list(model) if hub and is_model_list(model) else None
    if model_names is None:
        check_request(model, hub=hub, text=text)
    elif text is not None:
        check_text(text)
    with shown_progress() as progress:
        from headscope import api

        source_text = requested_text(text, device, progress)
        beginning = None if source_text is None else source_text.beginning(VERIFIED_CHARACTERS)
        if model_names is not None:
            outcomes = list(api.survey(model_names, beginning, progress.step))
        else:
            opened = api.open(model, hub=hub, device=device, progress=progress.step)
            progress.step("comparing", 0, 1)
            outcomes, checks = None, api.verify(opened, beginning)
    if outcomes is not None:
        show_rows([dataclasses.asdict(outcome) for outcome in outcomes], form)
        api.check_outcomes(outcomes)
        return
    show_rows([dataclasses.asdict(check) for check in checks], form)
    wrong = [check.check for check in checks if not check.ok]
    if wrong:
        raise NumericsError(f"{model}: {len(wrong)} of {len(checks)} checks fail: {'; '.join(wrong)}")


@app.command()
def lenses(form: Form = Format.TABLE) -> None:
    """List the lenses: what can be asked."""
    show_rows([{"lens": name, "question": _question(lens)} for name, lens in lens_members().items()], form)


@app.command()
def models(form: Form = Format.TABLE) -> None:
    """List the models that have a name here, and the other forms MODEL can take."""
    show_rows([_model_row(source, form) for source in listed_models()], form)
    if form is Format.TABLE:
        note(
            f"also: {', '.join(described_forms())}, random:PATH (same shape, "
            "fresh weights), BASE+ADAPTER (a model and the folder of an adapter), a hub id with --hub"
        )


@app.command(epilog=examples("headscope figures headscope-report --format pdf --out figures"))
def figures(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder that `headscope report` wrote.", show_default=False),
    ],
    form: Annotated[FigureFormat, typer.Option("--format", help="What to save them as.")] = FigureFormat.SVG,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to; default the folder `figures` in RUN."),
    ] = None,
) -> None:
    """Save every figure of a stored run, fit for a paper; their paths go to standard output."""
    check_run(run)
    target = run / "figures" if out is None else out
    check_drawings(target)
    with shown_progress() as progress:
        from headscope import api

        stored = api.load(run)
        drawings = [(finding.lens, figure) for finding in stored.findings.values() for figure in finding.figures]
        for done, (lens, figure) in enumerate(drawings):
            progress.step("drawing figure", done, len(drawings))
            typer.echo(str(_saved(figure, lens, target / f"{lens}.{figure.name}.{form.value}")))


def _saved(figure: Any, lens: str, path: Path) -> Path:
    """Save one stored figure; a folder from a stranger may hold one that nothing can draw."""
    from headscope import api

    try:
        return api.save_figure(figure, path)
    except (HeadscopeError, MemoryError):
        raise
    except Exception as error:
        raise LensError(
            f"the figure {figure.name!r} of {lens!r} cannot be drawn: {type(error).__name__}: {error}",
            hint="the run may have been changed after it was made; --debug shows the traceback",
        ) from error


def _question(lens: Member) -> str:
    """What a lens asks; of a broken one of another package, the reason."""
    try:
        return lens.about.question
    except HeadscopeError as error:
        if not lens.is_foreign:
            raise
        return f"broken: {error.message}"


def _model_row(source: Any, form: Format) -> dict[str, Any]:
    size = source.size_bytes
    size_cell = (f"{size / 1e6:.0f} MB" if size else "") if form is Format.TABLE else size
    return {
        "model": source.name,
        "what": source.what,
        "size" if form is Format.TABLE else "size_bytes": size_cell,
        "licence": source.licence,
        "is_cached": source.is_cached,
    }


def _tell(run: "Run", page: Path, model: str) -> None:
    """Show the findings with the largest effects, what gave no answer, and the path of the report."""
    for _, headline in run.largest_effects()[:SHOWN_FINDINGS]:
        typer.echo(f"• {headline.short}")
    for finding in run.findings.values():
        if finding.status != "ok":
            note(f"{finding.lens}: {finding.status}: {finding.reason}")
    typer.echo(f"\nThe report: {page.resolve()}")
    if model == "tiny":
        typer.echo(
            f"The same for a real language model (93 MB, fetched once): {_program()} report smollm2 --out out/smollm2"
        )


def _program() -> str:
    """How to call this program again: its name where the shell finds it, else the path it was called by."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{Path(sys.executable).name} -m headscope"
    on_path = shutil.which("headscope")
    is_elsewhere = called.name == "headscope" and called.exists() and not (on_path and called.samefile(on_path))
    return str(called) if is_elsewhere else "headscope"


def _fail_for(run: "Run") -> None:
    failed = [finding.lens for finding in run.findings.values() if finding.status == "failed"]
    if failed:
        raise LensError(
            f"{len(failed)} of {len(run.findings)} lenses failed: {', '.join(failed)}; the report shows why",
            hint="--debug shows the traceback",
        )


for _command in (*app.registered_commands, *_benches.registered_commands):
    _command.help = paragraphs((_command.callback and _command.callback.__doc__) or "")
