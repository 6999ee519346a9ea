"""Run folders from strangers or damaged disks: read by `headscope figures`, written into by `headscope report`."""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from safetensors.numpy import save as save_arrays

from tests.hostile.row import Row, Scene
from tests.hostile.runs import ARRAYS, FINDING, LENS, TABLE, change_finding, change_journal, change_manifest, put

Break = Callable[[Path], object]


def reading(kind: str, rows: dict[str, tuple[Break, str]], code: int = 2) -> list[Row]:
    """Rows in which the figures of a damaged run are asked for."""

    def row(name: str, break_it: Break, says: str) -> Row:
        def prepare(scene: Scene) -> list[str]:
            run = scene.copy(scene.seeds.run, "run")
            break_it(run)
            return ["figures", str(run), "--out", str(scene.folder / "figures")]

        return Row(kind, f"run-{name}", prepare, code, (says,))

    return [row(name, *damage) for name, damage in rows.items()]


def writing(kind: str, rows: dict[str, tuple[Break, str]], code: int = 2) -> list[Row]:
    """Rows in which a new run is to go into a damaged folder; the finished report must survive."""

    def row(name: str, break_it: Break, says: str) -> Row:
        def prepare(scene: Scene) -> list[str]:
            run = scene.copy(scene.seeds.run, "run")
            break_it(run)
            return ["report", "tiny", "--out", str(run)]

        return Row(kind, f"out-{name}", prepare, code, (says,))

    return [row(name, *damage) for name, damage in rows.items()]


def finding(change: Callable[[dict[str, Any]], object]) -> Break:
    return lambda run: change_finding(run, change)


def figure(number: int, **changes: Any) -> Break:
    return lambda run: change_finding(run, lambda data: data["figures"][number].update(changes))


def manifest(change: Callable[[dict[str, Any]], object]) -> Break:
    return lambda run: change_manifest(run, change)


def entry(change: Callable[[dict[str, Any]], object]) -> Break:
    return lambda run: change_journal(run, lambda data: change(data["findings"][LENS]))


def journal(change: Callable[[dict[str, Any]], object]) -> Break:
    return lambda run: change_journal(run, change)


def content(name: str, data: bytes) -> Break:
    return lambda run: put(run, name, data)


def raw(name: str, data: bytes) -> Break:
    return lambda run: (run / name).write_bytes(data)


def array(name: str, values: np.ndarray) -> Break:
    """Replace one array of the figures by another."""

    def break_it(run: Path) -> None:
        from safetensors.numpy import load_file

        put(run, ARRAYS, save_arrays({**load_file(run / ARRAYS), name: values}))

    return break_it


def without_array(name: str) -> Break:
    def break_it(run: Path) -> None:
        from safetensors.numpy import load_file

        put(run, ARRAYS, save_arrays({key: value for key, value in load_file(run / ARRAYS).items() if key != name}))

    return break_it


def parquet(table: pl.DataFrame, **options: Any) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer, **options)
    return buffer.getvalue()


def many_rows(count: int) -> bytes:
    """Parquet of some kilobytes that stands for `count` equal rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    table = pa.table({"value": pa.array(np.zeros(count, dtype=np.int8))})
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def long_texts(count: int, length: int) -> bytes:
    """Parquet of some kilobytes whose one text, repeated, takes `count` · `length` bytes."""
    return parquet(pl.DataFrame({"text": ["x" * length]}).select(pl.col("text").repeat_by(count).explode()))


def pipe(name: str) -> Break:
    return lambda run: ((run / name).unlink(missing_ok=True), os.mkfifo(run / name))


def link(name: str, target: str) -> Break:
    return lambda run: ((run / name).unlink(), (run / name).symlink_to(target))


def link_to_itself(name: str) -> Break:
    return lambda run: ((run / name).unlink(), (run / name).symlink_to(run / name))


def moved(part: str) -> Break:
    """A folder of the run, elsewhere, with a link in its place."""

    def break_it(run: Path) -> None:
        shutil.move(run / part, run.parent / part)
        (run / part).symlink_to(run.parent / part)

    return break_it


def nested(depth: int) -> bytes:
    return b'{"schema": "headscope-run/1", "run": ' + b"[" * depth + b"]" * depth + b"}"


def swapped(run: Path) -> None:
    """The finding of another lens under this name."""
    change_finding(run, lambda data: data.update(lens="spectra"))


CURVES, MAP, HISTOGRAM, MOSAIC, NETWORK = range(5)
VALUES = f"finding.figures.{MAP}.values"

ROWS = [
    *reading(
        "manifest is not one",
        {
            "empty": (lambda run: [path.unlink() for path in (run / "manifest.json", run / "run.json")], "no manifest"),
            "manifest-not-json": (raw("manifest.json", b"{"), "its manifest.json is not one of a headscope run"),
            "manifest-binary": (raw("manifest.json", b"\xff\xfe\0\1"), "its manifest.json is not one"),
            "manifest-nested-deep": (raw("manifest.json", nested(100_000)), "its manifest.json is not one"),
            "manifest-nested": (raw("manifest.json", nested(500)), "run is a list of 1, expected an object"),
            "manifest-huge-number": (raw("manifest.json", b"1" * 9999), "its manifest.json is not one"),
            "manifest-a-list": (raw("manifest.json", b"[]"), "its manifest.json is not one"),
            "manifest-of-another-schema": (manifest(lambda m: m.update(schema="x/9")), "its manifest.json is not one"),
            "manifest-a-pipe": (pipe("manifest.json"), "its manifest.json is not one"),
            "manifest-a-device": (link("manifest.json", "/dev/zero"), "its manifest.json is not one"),
            "manifest-links-to-itself": (link_to_itself("manifest.json"), "a run was started there and not finished"),
            "manifest-nan": (raw("manifest.json", b'{"schema": NaN}'), "its manifest.json is not one"),
            "not-finished": (lambda run: (run / "manifest.json").unlink(), "a run was started there and not finished"),
        },
    ),
    *reading(
        "manifest with wrong types",
        {
            "no-run": (manifest(lambda m: m.pop("run")), "run is None, expected an object of the type Run"),
            "run-a-number": (manifest(lambda m: m.update(run=3)), "run is 3, expected an object of the type Run"),
            "no-files": (manifest(lambda m: m.pop("files")), "expected an object with the field 'files'"),
            "files-a-list": (manifest(lambda m: m.update(files=[1])), "files is a list of 1, expected an object"),
            "lenses-a-text": (manifest(lambda m: m.update(lenses="focus")), "lenses is 'focus', expected a list"),
            "lens-a-number": (manifest(lambda m: m.update(lenses=[3])), "lenses[0] is 3, expected a text"),
            "model-missing": (manifest(lambda m: m["run"].pop("model")), "the field 'model'"),
            "model-a-list": (manifest(lambda m: m["run"].update(model=[])), "run.model is a list of 0"),
            "layers-a-text": (manifest(lambda m: m["run"]["model"].update(n_layers="2")), "expected a whole number"),
            "layers-a-float": (manifest(lambda m: m["run"]["model"].update(n_layers=2.5)), "expected a whole number"),
            "layers-true": (manifest(lambda m: m["run"]["model"].update(n_layers=True)), "expected a whole number"),
            "name-of-another-type": (manifest(lambda m: m["run"]["model"].update(type="Site")), "type ModelSpec"),
            "stack-unknown": (manifest(lambda m: m["run"]["sites"][0].update(stack="x")), "expected 'enc' or 'dec'"),
            "sites-an-object": (manifest(lambda m: m["run"].update(sites={})), "run.sites is an object of 0"),
            "seed-a-text": (manifest(lambda m: m["run"].update(seed="3")), "run.seed is '3', expected a whole number"),
            "versions-nested": (manifest(lambda m: m["run"].update(versions={"a": {}})), "run.versions.a is an object"),
        },
    ),
    *reading(
        "manifest with absurd values",
        {
            "number-beyond-counting": (
                manifest(lambda m: m["run"]["model"].update(n_parameters=10**400)),
                "is a whole number of 1329 bits",
            ),
            "lone-surrogate": (manifest(lambda m: m["run"]["model"].update(name="\ud800")), "expected a text"),
            "infinite": (
                lambda run: raw(
                    "manifest.json",
                    (run / "manifest.json").read_bytes().replace(b'"initial_sd": null', b'"initial_sd": 1e999'),
                )(run),
                "run.model.initial_sd is inf, expected a number",
            ),
            "lens-twice": (manifest(lambda m: m.update(lenses=[LENS, LENS])), "names a lens twice"),
            "hash-short": (manifest(lambda m: m["files"].update({FINDING: "00"})), "expected 64 digits"),
            "hash-wrong": (manifest(lambda m: m["files"].update({FINDING: "0" * 64})), "missing or was changed"),
        },
    ),
    *reading(
        "manifest leads out of the folder",
        {
            "lens-climbs": (manifest(lambda m: m.update(lenses=["../x"])), "'../x' is not the name of a lens"),
            "lens-absolute": (manifest(lambda m: m.update(lenses=["/etc/passwd"])), "not the name of a lens"),
            "lens-empty": (manifest(lambda m: m.update(lenses=[""])), "'' is not the name of a lens"),
            "lens-long": (manifest(lambda m: m.update(lenses=["x" * 5000])), "is not the name of a lens"),
            "file-climbs": (manifest(lambda m: m["files"].update({"../x": "0" * 64})), "is a file of no finding"),
            "file-absolute": (manifest(lambda m: m["files"].update({"/etc/passwd": "0" * 64})), "of no finding"),
            "table-climbs": (
                manifest(lambda m: m["files"].update({f"tables/{LENS}.../../x.parquet": "0" * 64})),
                "is not a file of the finding",
            ),
            "finding-names-a-table-outside": (
                finding(lambda data: data["tables"].update(heads="../../x.parquet")),
                "names no stored file for the table 'heads'",
            ),
            "figure-climbs": (figure(CURVES, name="../../x"), "the figure name '../../x' is not a file name"),
            "figure-absolute": (figure(CURVES, name="/etc/x"), "is not a file name"),
            "figure-backslash": (figure(CURVES, name="..\\x"), "is not a file name"),
            "figure-zero-byte": (figure(CURVES, name="a\0b"), "is not a file name"),
            "figure-long": (figure(CURVES, name="x" * 1000), "is not a file name"),
        },
    ),
    *reading(
        "files of a run missing or exchanged",
        {
            "finding-missing": (lambda run: (run / FINDING).unlink(), "missing or was changed"),
            "table-missing": (lambda run: (run / TABLE).unlink(), "missing or was changed"),
            "table-a-folder": (lambda run: ((run / TABLE).unlink(), (run / TABLE).mkdir()), "missing or was changed"),
            "table-a-pipe": (pipe(TABLE), "missing or was changed"),
            "table-a-device": (link(TABLE, "/dev/zero"), "missing or was changed"),
            "arrays-not-listed": (manifest(lambda m: m["files"].pop(ARRAYS)), "expected the name of a stored array"),
            "table-not-listed": (manifest(lambda m: m["files"].pop(TABLE)), "names no stored file for the table"),
            "finding-not-listed": (manifest(lambda m: m["files"].pop(FINDING)), "lists no file of the finding"),
            "finding-of-another-lens": (swapped, "it is the finding of 'spectra'"),
        },
    ),
    *reading(
        "findings with wrong types",
        {
            "finding-not-json": (content(FINDING, b"{"), "it is not a finding"),
            "finding-a-list": (content(FINDING, b"[1]"), "it is not a finding"),
            "finding-nested-deep": (content(FINDING, b"[" * 100_000), "it is not a finding"),
            "tables-a-list": (finding(lambda data: data.update(tables=[])), "it is not a finding"),
            "table-name-odd": (finding(lambda data: data["tables"].update({"a/b": TABLE})), "no stored file for"),
            "no-about": (finding(lambda data: data.pop("about")), "the field 'about'"),
            "about-a-text": (finding(lambda data: data.update(about="x")), "about is 'x', expected an object"),
            "status-unknown": (finding(lambda data: data.update(status="fine")), "expected 'ok' or 'not applicable'"),
            "headlines-a-text": (finding(lambda data: data.update(headlines="x")), "headlines is 'x', expected a list"),
            "headline-a-number": (
                finding(lambda data: data.update(headlines=[3])),
                "headlines[0] is 3, expected an object of the type Headline",
            ),
            "headline-without-short": (
                finding(lambda data: data.update(headlines=[{"full": "x"}])),
                "headlines[0] is an object of 1, expected an object with the field 'short'",
            ),
            "params-nested": (finding(lambda data: data["params"].update(x=[1])), "params.x is a list of 1"),
            "figures-an-object": (finding(lambda data: data.update(figures={})), "figures is an object of 0"),
            "array-a-number": (finding(lambda data: data["arrays"].update(s=3)), "arrays.s is 3, expected the name"),
        },
    ),
    *reading(
        "figures of unknown kinds or with wrong parts",
        {
            "figure-of-unknown-kind": (
                figure(CURVES, type="PieChart"),
                "expected an object of the type HeatMap, Curves",
            ),
            "figure-without-kind": (
                finding(lambda data: data["figures"][0].pop("type")),
                "expected an object of the type",
            ),
            "figure-a-number": (finding(lambda data: data["figures"].append(3)), "figures[6] is 3"),
            "figure-kind-a-list": (figure(CURVES, type=["Curves"]), "expected an object of the type"),
            "values-a-list": (figure(MAP, values=[[1]]), "values is a list of 1, expected the name of a stored array"),
            "values-elsewhere": (figure(MAP, values={"array": "nope"}), "expected the name of a stored array"),
            "array-name-a-list": (figure(MAP, values={"array": []}), "expected the name of a stored array"),
            "limits-of-three": (figure(MAP, limits=[0, 1, 2]), "limits is a list of 3, expected a list of 2"),
            "reference-a-text": (figure(MAP, reference="x"), "reference is 'x', expected a number"),
            "reference-no-number": (figure(MAP, reference={"number": "x"}), "reference is an object of 1"),
            "role-unknown": (
                finding(lambda data: data["figures"][CURVES]["series"][0].update(role="x")),
                "role is 'x', expected 'measured' or 'theory' or 'null'",
            ),
            "log-a-number": (figure(CURVES, log_x=1), "log_x is 1, expected true or false"),
            "marks-flat": (figure(HISTOGRAM, marks=["edge", 2.5]), "marks[0] is 'edge', expected a list of 2"),
        },
    ),
    *reading(
        "arrays that contradict their figures",
        {
            "map-of-other-shape": (array(VALUES, np.ones((3, 2))), "the heat map 'map' has (3, 2) values"),
            "map-flat": (array(VALUES, np.ones(4)), "the heat map 'map' has (4,) values"),
            "map-empty": (array(VALUES, np.ones((0, 2))), "the heat map 'map' has (0, 2) values"),
            "map-of-three-axes": (array(VALUES, np.ones((2, 2, 2))), "the heat map 'map' has (2, 2, 2) values"),
            "curve-x-and-y-differ": (
                array("finding.figures.0.series.0.y", np.ones(7)),
                "a curve of 'curves' has 3 places but 7 values",
            ),
            "curve-of-two-axes": (array("finding.figures.0.series.0.y", np.ones((3, 3))), "a curve of 'curves' has"),
            "curve-interval-short": (array("finding.figures.0.series.0.low", np.ones(2)), "a curve of 'curves' has"),
            "curve-all-nan": (array("finding.figures.0.series.0.y", np.full(3, np.nan)), "none of the 1 curves"),
            "histogram-edges": (array(f"finding.figures.{HISTOGRAM}.edges", np.arange(9.0)), "has 9 edges, expected 4"),
            "histogram-flat": (array(f"finding.figures.{HISTOGRAM}.density", np.ones((3, 1))), "the histogram 'law'"),
            "histogram-backwards": (
                array(f"finding.figures.{HISTOGRAM}.edges", np.arange(4.0)[::-1].copy()),
                "the edges of the histogram 'law' do not rise",
            ),
            "mosaic-flat": (array(f"finding.figures.{MOSAIC}.values", np.ones(9)), "the mosaic 'parts' has (9,) cells"),
            "mosaic-empty": (array(f"finding.figures.{MOSAIC}.values", np.ones((0, 9))), "the mosaic 'parts' has"),
            "network-edges-flat": (array(f"finding.figures.{NETWORK}.edges", np.ones(3)), "the network 'graph' has"),
            "network-beyond-nodes": (
                array(f"finding.figures.{NETWORK}.edges", np.array([[0.0, 9.0, 1.0]])),
                "an edge of the network 'graph' leads to a node",
            ),
            "network-nan": (
                array(f"finding.figures.{NETWORK}.edges", np.array([[0.0, np.nan, 1.0]])),
                "an edge of the network 'graph' leads to a node",
            ),
            "network-without-nodes": (figure(NETWORK, nodes=[]), "the network 'graph' has"),
            "panels-without-names": (figure(MAP, panels=[[], []]), "the heat map 'map' names no panels"),
            "map-absurdly-large": (
                lambda run: (
                    array(VALUES, np.zeros((1100, 1000)))(run),
                    figure(MAP, row_labels=["a"] * 1100, column_labels=["b"] * 1000)(run),
                ),
                "the heat map 'map' has 1100000 cells, expected at most 1000000",
            ),
        },
    ),
    *reading(
        "arrays that are damaged",
        {
            "arrays-empty": (content(ARRAYS, b""), "arrays/focus.safetensors is damaged"),
            "arrays-cut": (lambda run: put(run, ARRAYS, (run / ARRAYS).read_bytes()[:-1]), "is damaged"),
            "arrays-header-absurd": (content(ARRAYS, b"\xff" * 64), "is damaged"),
            "arrays-header-not-json": (content(ARRAYS, b"\4\0\0\0\0\0\0\0abcd"), "is damaged"),
            "arrays-one-missing": (without_array(VALUES), "expected the name of a stored array"),
            "arrays-complex": (array(VALUES, np.ones((2, 2), dtype=np.complex64)), "is damaged"),
        },
    ),
    *reading(
        "tables that are damaged",
        {
            "table-empty-file": (content(TABLE, b""), "it cannot be read"),
            "table-not-parquet": (content(TABLE, b"layer,head\n0,1\n"), "it cannot be read"),
            "table-cut": (lambda run: put(run, TABLE, (run / TABLE).read_bytes()[:-9]), "it cannot be read"),
            "table-magic-only": (content(TABLE, b"PAR1" + b"\0" * 8 + b"PAR1"), "it cannot be read"),
            "table-footer-absurd": (content(TABLE, b"PAR1" + b"\xff" * 4 + b"PAR1"), "it cannot be read"),
            "table-of-lists": (content(TABLE, parquet(pl.DataFrame({"a": [[1, 2]]}))), "column 'a' holds List"),
            "table-of-structs": (content(TABLE, parquet(pl.DataFrame({"a": [{"b": 1}]}))), "column 'a' holds Struct"),
            "table-of-bytes": (content(TABLE, parquet(pl.DataFrame({"a": [b"x"]}))), "column 'a' holds Binary"),
        },
    ),
    *reading(
        "tables that unpack to absurd sizes",
        {
            "table-of-many-rows": (content(TABLE, many_rows(20_000_001)), "claims 20000001 cells, expected at most"),
            "table-of-long-texts": (content(TABLE, long_texts(1000, 70_000)), "its texts have 70000000 bytes"),
        },
    ),
    *reading(
        "tables with other columns are drawn without them",
        {
            "table-of-other-columns": (content(TABLE, parquet(pl.DataFrame({"x": [1]}))), ""),
            "table-without-rows": (content(TABLE, parquet(pl.DataFrame({"layer": pl.Series([], dtype=pl.Int64)}))), ""),
        },
        code=0,
    ),
    *writing(
        "journal with a damaged entry",
        {
            "entry-a-number": (journal(lambda j: j["findings"].update({LENS: 7})), "findings.focus is 7, expected"),
            "entry-without-key": (entry(lambda e: e.pop("key")), "the field 'key'"),
            "entry-without-files": (entry(lambda e: e.pop("files")), "the field 'files'"),
            "entry-files-a-list": (entry(lambda e: e.update(files=[])), "files is a list of 0, expected an object"),
            "entry-hash-a-number": (entry(lambda e: e["files"].update({FINDING: 3})), "is 3, expected a text"),
            "entry-hash-short": (entry(lambda e: e["files"].update({FINDING: "0"})), "expected 64 digits"),
            "entry-key-a-list": (entry(lambda e: e.update(key=[])), "key is a list of 0, expected a text"),
            "entry-file-climbs": (entry(lambda e: e["files"].update({"../x": "0" * 64})), "not a file of the finding"),
            "entry-file-of-another": (
                entry(lambda e: e["files"].update({"findings/maps.json": "0" * 64})),
                "is not a file of the finding 'focus'",
            ),
            "lens-climbs": (journal(lambda j: j["findings"].update({"../x": {}})), "expected an object with"),
            "findings-a-list": (journal(lambda j: j.update(findings=[])), "findings is a list of 0"),
        },
    ),
    *writing(
        "journal that is none",
        {
            "journal-not-json": (raw("run.json", b"{"), "run.json is damaged: it is None, expected an object"),
            "journal-nested-deep": (raw("run.json", b"[" * 100_000), "run.json is damaged"),
            "journal-a-list": (raw("run.json", json.dumps([1]).encode()), "run.json is damaged: it is a list of 1"),
            "journal-of-another-schema": (journal(lambda j: j.update(schema="x/9")), "its schema is 'x/9'"),
            "journal-a-pipe": (pipe("run.json"), "run.json is damaged"),
            "journal-a-device": (link("run.json", "/dev/zero"), "run.json is damaged"),
        },
    ),
    *writing(
        "run folder that leads elsewhere",
        {
            "tables-a-link": (moved("tables"), "is not a folder of its own; nothing was written"),
            "findings-a-link": (moved("findings"), "is not a folder of its own; nothing was written"),
            "arrays-a-file": (
                lambda run: (shutil.rmtree(run / "arrays"), (run / "arrays").write_text("x")),
                "is not a folder of its own",
            ),
            "lock-a-link": (
                lambda run: (
                    (run.parent / "precious").write_text("x"),
                    (run / ".headscope-lock").symlink_to(run.parent / "precious"),
                ),
                "cannot be written",
            ),
        },
    ),
]
