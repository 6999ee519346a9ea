"""The pipeline on a small fake model: its requests, its forwards, its failures."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import polars as pl
import pytest
import torch

from headscope.attention.statistics import Request, RowStatistics
from headscope.core import About, Headline, ModelSpec, Site
from headscope.corpora import Text
from headscope.errors import (
    CaptureError,
    CheckpointError,
    LensError,
    ResourceError,
    UsageError,
    VariantRefused,
    WeightsRefused,
)
from headscope.lenses.lens import AS_IS, Measurement, Needs, NotApplicable, TextLens, WeightLens
from headscope.model import model as models
from headscope.model.formats.safetensors_format import SafetensorsFolder
from headscope.model.sources.names import Source
from headscope.pipeline import measure
from headscope.pipeline.questions import questions
from headscope.pipeline.text_pass import BATCH_BYTES, BATCH_TOKENS, batch_size, union

SITE = Site("only", "self", 0, 4, 4, 8, 8, True)
SPEC = ModelSpec("fake", "test", "fake", "Fake", "decoder-only", 1, 4, 4, 32, 8, 300, 100, 1, "float32", sha256="f00d")
TEXT = Text("letters", ("a" * 250, "b" * 140))


def letters(text):
    """A tokenizer: a first token, then a token per letter."""
    return {"input_ids": [1, *map(ord, text)]}


def statistics(batch, queries, request):
    zeros = torch.zeros(batch, SITE.n_heads, queries)
    bands = dict.fromkeys(request.bands, zeros)
    return RowStatistics(zeros, zeros, zeros, zeros, zeros, zeros, bands, zeros.long())


@dataclass
class Taken:
    """A stream or a capture of the fake: says what was run since the last take."""

    model: "FakeModel"
    what: object
    captured: bool = False
    sites_by_quantity = MappingProxyType({})  # every site shows everything

    def take(self):
        if self.captured:
            return {name: {SITE: torch.zeros(1)} for name in self.what}
        return {SITE: statistics(*self.model.seen[-1].shape, self.what)}, {}


class FakeSession:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.model.sessions += 1
        return self

    def __exit__(self, *_):
        self.model.sessions -= 1

    @property
    def shown(self):
        return {"pattern"} if self.model.shows == "all" else set(self.model.shows)

    def stream(self, request, at=None):
        if self.model.shows != "all" and "statistics" not in self.model.shows:
            raise CaptureError("this family shows no statistics")
        return Taken(self.model, request)

    def capture(self, *what, at=None):
        hidden = [name for name in what if self.model.shows != "all" and name not in self.model.shows]
        if hidden:
            raise CaptureError(f"this family does not show {hidden[0]}")
        return Taken(self.model, what, captured=True)

    def run(self, tokens, real=None, *, head=True, each=None):
        self.model.forwards.append((self.model.variant, tuple(tokens.shape)))
        self.model.seen.append(tokens)


class FakeEdit:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.model.variant = AS_IS

    def initialise(self, seed):
        self.model.variant = "initialised"

    def skip(self, strength):
        if self.model.additive is not None:
            raise VariantRefused(self.model.additive)
        self.model.variant = f"skip {strength:g}"

    def without(self, *parts):
        self.model.variant = " ".join(("" if self.model.variant == AS_IS else self.model.variant, "no", *parts)).strip()


@dataclass
class FakeWeights:
    spec: ModelSpec
    sites: tuple[Site, ...] = (SITE,)
    method: str = "made up"
    feed_forward: tuple = ()
    feed_forward_notes: tuple = ()
    embeddings: tuple = ()
    embedding_notes: tuple = ()
    vocabulary: None = None

    def feed_forward_matrix(self, one):
        raise WeightsRefused("made up")

    def embedding_table(self, one):
        raise WeightsRefused("made up")

    def after_heads(self, site, stream, z):
        raise WeightsRefused("made up")

    def stream_reading(self):
        raise WeightsRefused("made up")

    def rotary(self, site):
        raise WeightsRefused("made up")

    def status(self, site):
        return None

    def weights(self, site):
        raise WeightsRefused("made up")


@dataclass
class FakeModel:
    spec: ModelSpec = SPEC
    sites: tuple[Site, ...] = (SITE,)
    tokenizer: object | None = staticmethod(letters)
    reads_text: bool = True
    reads_tokens: bool = True
    shows: object = "all"
    variant: str = AS_IS
    additive: str | None = None  # why its skip connections are not understood
    sessions: int = 0
    forwards: list = field(default_factory=list)
    seen: list = field(default_factory=list)
    hf: object = field(default_factory=lambda: SimpleNamespace(base_model=torch.nn.Identity()))
    origin: Source = field(default_factory=lambda: Source("fake", "folder", SafetensorsFolder(Path())))

    def encode(self, text):
        return torch.tensor(letters(text)["input_ids"])

    def session(self):
        return FakeSession(self)

    def edit(self):
        return FakeEdit(self)

    def weight_source(self, method=""):
        return FakeWeights(self.spec)


@dataclass(frozen=True)
class Params:
    width: int = field(default=3, metadata={"help": "a width"})


ABOUT = About("T", "Q?", "D", (), "R", "nobody")


def count(state, batch):
    return [*state, batch]


def batch_table(state, weights):
    frame = pl.DataFrame({"variant": [batch.variant for batch in state], "rows": [len(b.tokens) for b in state]})
    return Measurement({"batches": frame}, method=getattr(weights, "method", ""))


def batch_sentences(tables):
    sentence = f"{tables['batches'].height} batches"
    return (Headline(sentence, sentence),)


class FakeText(TextLens):
    """A lens that counts batches; the test may replace a stage by a function."""

    params, about = Params, ABOUT

    def __init__(self, name, needs, update, finish, sentences, start):
        self.name = name
        self.stages = {"needs": needs, "update": update, "finish": finish, "sentences": sentences, "start": start}

    def needs(self, params):
        return self.stages["needs"](params)

    def start(self, params, model, sites, text):
        return self.stages["start"](params, model, sites)

    def update(self, state, batch):
        return self.stages["update"](state, batch)

    def merge(self, a, b):
        return a + b

    def finish(self, state, weights):
        return self.stages["finish"](state, weights)

    def definition(self, params, weights, batches):
        return {}

    def sentences(self, tables):
        return self.stages["sentences"](tables)


class FakeWeight(WeightLens):
    """The same for a lens that reads weights alone; it has seen no batch."""

    params, about = Params, ABOUT

    def __init__(self, name, needs, finish, sentences):
        self.name = name
        self.stages = {"needs": needs, "finish": finish, "sentences": sentences}

    def needs(self, params):
        return self.stages["needs"](params)

    def measure(self, params, weights):
        return self.stages["finish"]([], weights)

    def definition(self, params, weights):
        return {}

    def sentences(self, tables):
        return self.stages["sentences"](tables)


def make_lens(name, needs, *, update=count, finish=batch_table, sentences=batch_sentences, start=lambda *_: []):
    """A lens that counts batches, or reads weights alone; pass a function to break a stage."""
    asked = needs if callable(needs) else lambda params: needs
    if isinstance(needs, Needs) and not needs.text:
        return FakeWeight(name, asked, finish, sentences)
    return FakeText(name, asked, update, finish, sentences, start)


def raises(error):
    def function(*_, **__):
        raise error

    return function


STATISTICS = Needs(statistics=Request(bands=(1, 8)))
STREAMING = make_lens("streaming", STATISTICS)
BOTH = make_lens("both", Needs(statistics=Request(bands=(4,)), variants=(AS_IS, "initialised")))
CAPTURING = make_lens("capturing", Needs(captures=frozenset({"pattern"}), weights=True))
WEIGHING = make_lens("weighing", Needs(weights=True))


def test_one_forward_per_batch_and_variant_for_all_lenses():
    model = FakeModel()
    run = measure(model, text=TEXT, lenses=[STREAMING, BOTH, CAPTURING, WEIGHING])
    # 390 letters and a first token each: 4 windows of 99 + 1 (the context of 100), 390 = 3 · 99 + 93.
    once = [(3, 100), (1, 94)]
    assert model.forwards == [(AS_IS, shape) for shape in once] + [("initialised", shape) for shape in once]
    assert model.variant == AS_IS
    assert model.sessions == 0
    assert run["streaming"].table["variant"].to_list() == [AS_IS] * 2
    assert run["both"].table["variant"].to_list() == [AS_IS] * 2 + ["initialised"] * 2
    assert list(run.findings) == ["streaming", "both", "capturing", "weighing"]
    assert all(finding.status == "ok" for finding in run.findings.values())
    assert all(bool((tokens[:, 0] == 1).all()) for tokens in model.seen)


FORMS = (AS_IS, "without skips", "without mlp", "without attention", "attention alone")
CHANGED = make_lens("changed", Needs(statistics=Request(), variants=FORMS, tokens=150))


def test_changed_forms_of_the_model_see_the_beginning_of_the_text_once_each():
    """A second lens wants the whole text initialised: one forward serves both."""
    model = FakeModel()
    run = measure(model, text=TEXT, lenses=[BOTH, CHANGED, STREAMING])
    # 150 tokens lie in the first batch, whose shape does not depend on how many are needed.
    some, whole = [(3, 100)], [(3, 100), (1, 94)]
    expected = {
        AS_IS: whole, "initialised": whole, "skip 0": some, "no mlp": some, "no attention": some, "skip 0 no mlp": some
    }  # fmt: skip
    assert model.forwards == [(variant, shape) for variant, shapes in expected.items() for shape in shapes]
    assert run["changed"].table["variant"].to_list() == [AS_IS, *FORMS]
    assert run["both"].table["rows"].to_list() == [3, 1, 3, 1]


def test_a_form_that_the_family_does_not_allow_is_told_and_the_rest_goes_on():
    told = {}

    def update(state, batch):
        told.setdefault(batch.variant, []).append((len(batch.tokens), batch.refused))
        return state

    finish = make_lens("x", STATISTICS).finish
    lens = make_lens("changed", CHANGED.needs(Params()), update=update, finish=lambda state, weights: finish([], None))
    run = measure(FakeModel(additive="it scales what it carries"), text=TEXT, lenses=[lens, STREAMING])
    assert run["changed"].status == run["streaming"].status == "ok"
    refused = [(0, "it scales what it carries")]
    assert told["without skips"] == told["attention alone"] == refused
    assert told["without mlp"] == told["without attention"] == [(3, "")]


def test_the_run_states_text_headlines_parameters_and_versions():
    run = measure(FakeModel(), text=TEXT, lenses=[STREAMING], params={"streaming": {"width": 7}}, seed=5)
    assert run["streaming"].headlines == (Headline("2 batches", "2 batches"),)
    assert run["streaming"].params == {"width": 7}
    assert (run.text.n_tokens, run.text.n_windows, run.text.window) == (394, 4, 100)
    assert run.text.name == "letters"
    assert run.seed == 5
    assert {"headscope", "torch", "transformers", "python"} <= run.versions.keys()


@pytest.mark.parametrize(("first", "tokens"), [(60, 61), (249, 2 * 100 + 52), (390, 394), (4000, 394)])
def test_only_the_first_tokens_of_a_text_are_read(first, tokens):
    model = FakeModel()
    run = measure(model, text=TEXT, lenses=[STREAMING], first_tokens=first)
    assert run.text.n_tokens == tokens == sum(batch.numel() for batch in model.seen)
    assert ("first" in run.text.name) == (first < 390)
    if first <= 250:
        assert not any(bool((batch == ord("b")).any()) for batch in model.seen)


def test_a_long_text_is_read_in_32_windows_by_default():
    places = [chr(0x3000 + place) for place in range(50)]
    text = Text("places", ("".join(place * 99 for place in places), "the end"))
    model = FakeModel(spec=replace(SPEC, vocabulary=2**16))
    run = measure(model, text=text, lenses=[STREAMING])
    assert (run.text.n_windows, run.text.n_windows_in_text, run.text.n_documents) == (32, 50, 2)
    shown = [int(window[-1]) - 0x3000 for batch in model.seen for window in batch]
    assert sorted(shown) == [i * 50 // 32 for i in range(32)]
    assert shown[:4] == [0, 25, 12, 37]
    again = FakeModel(spec=replace(SPEC, vocabulary=2**16))
    measure(again, text=text, lenses=[STREAMING])
    assert all(torch.equal(a, b) for a, b in zip(model.seen, again.seen, strict=True))


def test_all_windows_are_read_when_asked_for():
    model = FakeModel()
    run = measure(model, text="x" * (99 * 40), lenses=[STREAMING], all_windows=True)
    assert (run.text.n_windows, run.text.n_windows_in_text) == (40, 40)
    with pytest.raises(UsageError, match="first 5 tokens and all windows"):
        measure(FakeModel(), text=TEXT, lenses=[STREAMING], first_tokens=5, all_windows=True)


def test_no_tokens_are_no_text():
    with pytest.raises(UsageError, match="first 0 tokens"):
        measure(FakeModel(), text=TEXT, lenses=[STREAMING], first_tokens=0)


def test_the_dropped_tail_is_stated():
    run = measure(FakeModel(), text="x" * 110, lenses=[STREAMING])
    assert (run.text.n_windows, run.text.n_dropped) == (1, 11)


def test_windows_can_be_shorter_than_the_context():
    model = FakeModel()
    measure(model, text=TEXT, lenses=[STREAMING], window=40)
    assert {shape[1] for _, shape in model.forwards} == {40}
    with pytest.raises(UsageError, match="window of 0"):
        measure(model, text=TEXT, lenses=[STREAMING], window=0)


def test_the_union_of_needs():
    needs = union([BOTH.needs(Params()), STATISTICS, CAPTURING.needs(Params())])
    assert needs.statistics == Request(bands=(1, 4, 8))
    assert needs.captures == {"pattern"}
    assert needs.variants == (AS_IS, "initialised")
    assert needs.weights


@pytest.mark.parametrize("stage", ["start", "update", "finish", "sentences"])
@pytest.mark.parametrize("error", [ZeroDivisionError("no rows"), LensError("cannot")])
def test_a_lens_that_raises_is_a_failed_finding_and_the_others_go_on(stage, error):
    broken = make_lens("broken", STATISTICS, **{stage: raises(error)})
    run = measure(FakeModel(), text=TEXT, lenses=[broken, STREAMING, WEIGHING])
    assert run["broken"].status == "failed"
    assert str(error) in run["broken"].reason
    assert run["streaming"].status == run["weighing"].status == "ok"


def test_a_lens_whose_needs_raise_fails_alone():
    broken = make_lens("broken", raises(KeyError("x")))
    run = measure(FakeModel(), text=TEXT, lenses=[broken, STREAMING])
    assert run["broken"].status == "failed"
    assert run["streaming"].status == "ok"


def test_parameters_that_make_no_sense_are_a_usage_error():
    picky = make_lens("picky", raises(UsageError("bands='x': expected numbers")))
    with pytest.raises(UsageError, match="expected numbers"):
        measure(FakeModel(), text=TEXT, lenses=[picky])
    with pytest.raises(UsageError, match="cannot take") as caught:
        measure(FakeModel(), text=TEXT, lenses=[STREAMING], params={"streaming": {"widht": 2}})
    assert "width" in caught.value.hint
    with pytest.raises(UsageError, match="chosen lenses are streaming"):
        measure(FakeModel(), text=TEXT, lenses=[STREAMING], params={"focus": {}})


def test_what_a_model_does_not_have_is_a_usage_error_before_any_work():
    def start(params, spec, sites):
        raise UsageError("there is no layer 99")

    model, weighed = FakeModel(), []
    weighing = make_lens("weighing", Needs(weights=True), finish=lambda *_: weighed.append(1))
    with pytest.raises(UsageError, match="no layer 99"):
        measure(model, text=TEXT, lenses=[weighing, make_lens("strict", STATISTICS, start=start)])
    assert (model.forwards, weighed) == ([], [])


@pytest.mark.parametrize("name", ["circuits", "composition"])
def test_a_head_that_a_model_does_not_have_is_a_usage_error_of_lenses_of_weights_too(name):
    with pytest.raises(UsageError, match="'L99' matches no head of this model"):
        measure("tiny", lenses=[name], params={name: {"at": "L99"}})


def test_an_unknown_variant_fails_the_lens_that_asks_for_it():
    strange = make_lens("strange", Needs(statistics=Request(), variants=("upside down",)))
    run = measure(FakeModel(), text=TEXT, lenses=[strange, STREAMING])
    assert run["strange"].status == "failed"
    assert "upside down" in run["strange"].reason
    assert run["streaming"].status == "ok"


def test_a_model_that_breaks_on_the_text_leaves_the_answers_about_its_weights(monkeypatch):
    monkeypatch.setattr(FakeSession, "run", raises(IndexError("index out of range in self")))
    run = measure(FakeModel(), text=TEXT, lenses=[STREAMING, WEIGHING])
    assert run["streaming"].status == "failed"
    assert "index out of range" in run["streaming"].reason
    assert run["weighing"].status == "ok"


def test_a_machine_without_memory_is_not_a_failed_lens(monkeypatch):
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    monkeypatch.setattr(FakeSession, "run", raises(error))
    with pytest.raises(RuntimeError, match="allocate"):
        measure(FakeModel(), text=TEXT, lenses=[STREAMING, WEIGHING])


def test_when_every_lens_failed_the_text_is_not_run_further():
    model = FakeModel()
    measure(
        model,
        text="x" * 5000,
        lenses=[make_lens("broken", STATISTICS, update=raises(ValueError("x")))],
        window=20,
    )
    assert len(model.forwards) == 1


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (FakeModel(reads_text=False), "does not read text"),
        (FakeModel(reads_text=False, tokenizer=None), "without a tokenizer"),
    ],
)
def test_text_lenses_do_not_apply_to_models_without_text(model, why):
    run = measure(model, lenses=[STREAMING, WEIGHING], text=TEXT)
    assert run["streaming"].status == "not applicable"
    assert why in run["streaming"].reason
    assert run["weighing"].status == "ok"
    assert run.text is None
    assert model.forwards == []


def test_what_a_family_does_not_show_does_not_apply_and_the_rest_is_measured():
    model = FakeModel(shows={"pattern"})
    run = measure(model, text=TEXT, lenses=[STREAMING, CAPTURING, WEIGHING])
    assert run["streaming"].status == "not applicable"
    assert "no statistics" in run["streaming"].reason
    assert run["capturing"].status == "ok"
    assert run["capturing"].table.height == 2  # nothing of the glimpse is left in the fold
    assert run["weighing"].status == "ok"


@pytest.mark.parametrize(("shows", "seen"), [("all", {"scores", "pattern"}), ({"scores"}, {"scores"})])
def test_what_is_welcome_may_be_missing(shows, seen):
    handed = []
    lens = make_lens(
        "guest",
        Needs(captures=frozenset({"scores"}), welcome=frozenset({"pattern"})),
        update=lambda state, batch: handed.append(set(batch.captures)) or state,
    )
    assert measure(FakeModel(shows=shows), text=TEXT, lenses=[lens])["guest"].status == "ok"
    assert all(names == seen for names in handed)
    assert handed


def test_a_family_that_shows_nothing():
    run = measure(FakeModel(shows=()), text=TEXT, lenses=[STREAMING, CAPTURING])
    assert {finding.status for finding in run.findings.values()} == {"not applicable"}
    assert "pattern" in run["capturing"].reason
    run = measure(FakeModel(shows=()), text=TEXT, lenses=[STREAMING])
    assert run["streaming"].status == "not applicable"


def test_refused_weights_do_not_apply():
    refused = make_lens("refused", Needs(weights=True), finish=raises(WeightsRefused("latent attention")))
    run = measure(FakeModel(), lenses=[refused, WEIGHING], text=TEXT)
    assert (run["refused"].status, run["refused"].reason) == ("not applicable", "latent attention")


@pytest.mark.parametrize(
    "error", [CheckpointError("NaN in w_q"), ResourceError("disk"), MemoryError(), KeyboardInterrupt()]
)
def test_what_is_not_the_fault_of_a_lens_passes_through(error):
    lens = make_lens("lens", Needs(weights=True), finish=raises(error))
    with pytest.raises(type(error)):
        measure(FakeModel(), text=TEXT, lenses=[lens])


def test_dequantised_weights_carry_their_warning():
    model = FakeModel(spec=replace(SPEC, dequantised="Q4_1"))
    run = measure(model, text=TEXT, lenses=[WEIGHING, STREAMING])
    assert any("Q4_1" in warning for warning in run["weighing"].warnings)


def test_global_random_state_is_left_alone_and_lenses_draw_the_same_alone_or_together():
    def draw(state, weights):
        return Measurement({"t": pl.DataFrame({"x": [float(torch.rand(()))]})})

    drawing = make_lens("drawing", Needs(weights=True), finish=draw, sentences=lambda tables: ())
    other = make_lens("other", Needs(weights=True), finish=draw, sentences=lambda tables: ())
    before = torch.random.get_rng_state()
    alone = measure(FakeModel(), text=TEXT, lenses=[drawing], seed=7)["drawing"].table
    together = measure(FakeModel(), text=TEXT, lenses=[other, STREAMING, drawing], seed=7)["drawing"].table
    assert torch.equal(before, torch.random.get_rng_state())
    assert alone.equals(together)


@pytest.mark.parametrize(("d_model", "threads"), [(1023, 1), (1024, 3)], ids=["narrow", "wide"])
def test_a_narrow_model_is_measured_on_one_thread_and_the_user_has_all_of_them_back(d_model, threads):
    counted = []

    def start(*_):
        counted.append(torch.get_num_threads())
        return []

    def update(state, batch):
        counted.append(torch.get_num_threads())
        return [*state, batch]

    def finish(state, weights):
        counted.append(torch.get_num_threads())
        return batch_table(state, weights)

    lens = make_lens("counting", STATISTICS, start=start, update=update, finish=finish)
    stopped = make_lens("stopped", Needs(weights=True), finish=raises(KeyboardInterrupt()))
    model, before = FakeModel(spec=replace(SPEC, d_model=d_model)), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        measure(model, text=TEXT, lenses=[lens])
        assert torch.get_num_threads() == 3
        with pytest.raises(KeyboardInterrupt):
            measure(model, text=TEXT, lenses=[stopped])
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert counted == [threads] * len(counted)
    assert len(counted) >= 4


def test_unknown_lens_names_the_nearest():
    with pytest.raises(UsageError, match="no lens 'spectre'") as caught:
        measure(FakeModel(), text=TEXT, lenses=["spectre"])
    assert "spectra" in caught.value.hint
    with pytest.raises(UsageError, match="no lens was chosen"):
        measure(FakeModel(), text=TEXT, lenses=[])


def test_quick_leaves_out_lenses_that_need_a_changed_form(monkeypatch):
    lenses_by_name = {lens.name: lens for lens in (STREAMING, BOTH, WEIGHING)}
    monkeypatch.setattr("headscope.pipeline.questions.every_lens", lambda: lenses_by_name)
    assert [question.name for question in questions(None, None, quick=True)] == ["streaming", "weighing"]
    assert {question.name for question in questions(None, None)} == set(lenses_by_name)
    with pytest.raises(UsageError, match="chooses its lenses itself"):
        questions(["streaming"], None, quick=True)


def test_batches_stay_within_their_memory():
    many = tuple(replace(SITE, layer=layer, n_heads=32) for layer in range(32))
    assert batch_size((SITE,), 512) * 512 == BATCH_TOKENS
    assert batch_size(many, 4096) == 1
    for length in (64, 128, 200):  # every map of a batch fits, however many lenses ask for it
        assert batch_size(many, length) * 32 * 32 * length**2 * 4 <= BATCH_BYTES


@pytest.fixture
def named(monkeypatch):
    """Let `measure("fake")` open the model that the test put there."""
    shelf = {}
    monkeypatch.setattr(sys.modules["headscope.pipeline.measure"], "check_name", lambda what, **_: shelf[what])
    monkeypatch.setattr(models, "open_model", lambda what, **_: shelf[what])
    monkeypatch.setattr(models, "open_weights", lambda what, **_: shelf[what].weight_source())

    def put(model=None):
        shelf["fake"] = model or FakeModel()
        return shelf["fake"]

    return put


def test_an_interrupted_run_is_resumed(tmp_path, named):
    finished = []

    def finish(state, weights):
        finished.append("weighing")
        return Measurement({"t": pl.DataFrame({"x": [1.0]})})

    weighing = make_lens(
        "weighing", Needs(weights=True), finish=finish, sentences=lambda tables: (Headline("one", "one"),)
    )
    stopped = make_lens("streaming", STATISTICS, update=raises(KeyboardInterrupt()))
    named()
    with pytest.raises(KeyboardInterrupt):
        measure("fake", text=TEXT, lenses=[stopped, weighing], out=tmp_path)
    assert not (tmp_path / "manifest.json").exists()
    assert finished == ["weighing"]
    model = named()
    run = measure("fake", text=TEXT, lenses=[STREAMING, weighing], out=tmp_path)
    assert finished == ["weighing"]  # kept, not computed again
    assert run["weighing"].headlines == (Headline("one", "one"),)
    assert len(model.forwards) == 2
    again = named()
    same = measure("fake", text=TEXT, lenses=[STREAMING, weighing], out=tmp_path)
    assert again.forwards == []
    assert same["streaming"].table.equals(run["streaming"].table)


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"window": 50},
        {"text": "another text, " * 30},
        {"params": {"streaming": {"width": 4}}},
        {"model": FakeModel(spec=replace(SPEC, sha256="beef"))},
    ],
)
def test_other_circumstances_are_measured_afresh(tmp_path, named, change):
    named()
    measure("fake", text=TEXT, lenses=[STREAMING], out=tmp_path)
    options = {"text": TEXT, **change}
    model = named(options.pop("model", None))
    measure("fake", **options, lenses=[STREAMING], out=tmp_path)
    assert model.forwards


def test_a_model_handed_over_in_python_is_measured_again(tmp_path, named):
    """It may have been edited since: its checkpoint's hash says nothing about what it is now."""
    named()
    measure("fake", text=TEXT, lenses=[STREAMING], out=tmp_path)
    model = FakeModel()
    measure(model, text=TEXT, lenses=[STREAMING], out=tmp_path)
    assert model.forwards


def test_failures_and_unidentified_weights_are_measured_again(tmp_path, named):
    anonymous = replace(SPEC, sha256="")
    for _ in range(2):
        model = named(FakeModel(spec=anonymous))
        measure("fake", text=TEXT, lenses=[STREAMING], out=tmp_path / "anonymous")
        assert model.forwards
    broken = make_lens("streaming", STATISTICS, finish=raises(ValueError("x")))
    named()
    measure("fake", text=TEXT, lenses=[broken], out=tmp_path / "broken")
    assert measure("fake", text=TEXT, lenses=[STREAMING], out=tmp_path / "broken")["streaming"].status == "ok"


def test_pieces_and_wholes_are_the_same_text():
    """A lens that takes pieces sees each site once it is complete, its neighbour the whole batch; one forward each."""
    model = models.open_model("tiny")
    resid = frozenset({"resid", "final"})

    def listing(state, batch):
        return [
            *state,
            [(name, site.layer, len(batch.tokens)) for name in resid for site in batch.captures.get(name, ())],
        ]

    seen = {}

    def kept(name):
        def finish(state, weights):
            seen[name] = state
            raise NotApplicable("made up")

        return finish

    parts = make_lens("parts", lambda params: Needs(captures=resid, pieces=True), update=listing, finish=kept("parts"))
    whole = make_lens("whole", lambda params: Needs(captures=resid), update=listing, finish=kept("whole"))
    measure(model, text="The quick brown fox jumps over the lazy dog again and again.", lenses=[parts, whole])
    layers = len(model.sites)
    assert len(seen["whole"]) == 1
    assert len(seen["whole"][0]) == layers + 1
    # What leaves the last layer belongs to the last site, which waits for it; the others do not.
    assert [len(piece) for piece in seen["parts"]] == [1] * (layers - 1) + [2]
    assert sorted(one for piece in seen["parts"] for one in piece) == sorted(seen["whole"][0])
