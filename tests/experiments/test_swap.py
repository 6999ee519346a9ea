"""Swap: the ladder's laws, predicted damage against measured divergence, the search, the judgement, bad input."""

import itertools
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
import torch
from scipy.stats import spearmanr
from scipy.stats import t as student
from torch.utils.flop_counter import FlopCounterMode

import headscope as hs
from headscope.attention.call import Call, Output
from headscope.attention.fitting import SEEDS, output_error
from headscope.attention.maps import pattern
from headscope.attention.mechanism import Cost, Mechanism, mechanisms
from headscope.attention.mechanisms.band_sparse import BandSparse
from headscope.attention.mechanisms.dense import Dense
from headscope.attention.mechanisms.linear import Linear
from headscope.attention.mechanisms.linformer import Linformer
from headscope.attention.mechanisms.longformer import Longformer
from headscope.attention.mechanisms.window import Window
from headscope.core import Site
from headscope.core.selection import Selection
from headscope.corpora import Text, text_of
from headscope.errors import UsageError
from headscope.experiments.swap import fitting, journal, leak
from headscope.experiments.swap.candidates import Candidate, candidates, computed_pairs, full_pairs
from headscope.experiments.swap.experiment import EXPERIMENT
from headscope.experiments.swap.fitting import fitted
from headscope.experiments.swap.head_damage import call_of, damage, head_damages
from headscope.experiments.swap.ladder import Ladder, LadderStep, ladder
from headscope.experiments.swap.leak import model_leak
from headscope.experiments.swap.material import Material, SearchPart, gather
from headscope.experiments.swap.plan_cost import forward_flops
from headscope.experiments.swap.proposal import propose
from headscope.experiments.swap.quality import quality, window_nats
from headscope.experiments.swap.recall import (
    CITIES,
    LOOKUP,
    NEEDLES,
    PASSKEY,
    Recall,
    RecallBudget,
    is_right,
    recall,
    recall_budget,
    trial_of,
    trials_of,
)
from headscope.experiments.swap.rules import rules_of
from headscope.experiments.swap.search import Search
from headscope.experiments.swap.sentences import headlines
from headscope.experiments.swap.settings import Params
from headscope.experiments.swap.tables import recall_table
from headscope.experiments.swap.yardstick import Embeddings, Perplexity
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.model.plans.plan import Plan
from headscope.progress import silent
from tests.networks.small_networks import SINGLE_STACKS, built

LENGTH = 192
NARROW = "band_sparse(left=32, right=0, columns=(0,))"


@pytest.fixture(scope="module")
def tiny() -> Model:
    return hs.open("tiny")


@pytest.fixture(scope="module", autouse=True)
def _own_journals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No search of a test goes on where another run of the tests stopped."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal, "cache_folder", lambda: tmp_path_factory.mktemp("cache"))
        yield


@pytest.fixture(scope="module")
def windows(tiny: Model) -> tuple[Tokens, ...]:
    return gather(tiny, [text_of(None)], (LENGTH,), tokens=LENGTH, windows=6, searches=True).search[0].windows


def site_of(layer: int, heads: int) -> Site:
    return Site("only", "self", layer, heads, heads, 8, 8, True)


@pytest.fixture
def planted() -> tuple[dict[Site, tuple[Candidate, ...]], dict[Site, torch.Tensor], dict[Site, float]]:
    """Two layers of two heads, each with three candidates of random damage."""
    generator = torch.Generator().manual_seed(3)
    options = tuple(Candidate(f"window(left={pairs})", Window(pairs), float(pairs)) for pairs in (10, 30, 60))
    sites = [site_of(0, 2), site_of(1, 2)]
    damages = {site: torch.rand(3, 2, generator=generator).sort(0, descending=True).values for site in sites}
    return dict.fromkeys(sites, options), damages, dict.fromkeys(sites, 100.0)


def test_a_ladder_goes_down(planted) -> None:
    steps = ladder(*planted).steps
    assert len(steps) >= 4
    assert all(step.saved > 0 for step in steps)
    prices = [step.price for step in steps]
    assert prices == sorted(prices)


def test_a_ladder_by_brute_force(planted) -> None:
    """Of all choices of candidates, none computes as few pairs as a plan of the ladder with less damage."""
    by_site, damages, full = planted
    planned = ladder(by_site, damages, full)
    heads = [(site, head) for site in by_site for head in range(2)]
    points = {
        (site, head): [(100.0, 0.0), *((c.spent, float(damages[site][i, head])) for i, c in enumerate(by_site[site]))]
        for site, head in heads
    }
    choices = [
        (sum(pairs for pairs, _ in choice), sum(harm for _, harm in choice))
        for choice in itertools.product(*(points[head] for head in heads))
    ]
    for count in range(1, len(planned.steps) + 1):
        pairs = 400.0 - planned.saved(count)
        harm = sum(step.damage for step in planned.steps[:count])
        best = min(other for computed, other in choices if computed <= pairs)
        assert harm == pytest.approx(best)


def test_rules_of_a_ladder_name_each_head_once(planted, tiny: Model) -> None:
    planned = ladder(*planted)
    named = [
        (site.layer, head)
        for selection in planned.rules(len(planned.steps)).values()
        for site, heads in Selection.parse(selection).resolve(planted[0]).items()
        for head in heads
    ]
    assert sorted(named) == [(layer, head) for layer in range(2) for head in range(2)]
    assert planned.rules(0) == {}


def test_candidates_save_pairs_and_can_be_seen(tiny: Model) -> None:
    site = tiny.sites[0]
    listed = candidates(site, 256, 1024)
    assert [candidate.spent for candidate in listed] == sorted(candidate.spent for candidate in listed)
    assert all(candidate.spent < full_pairs(site, 1024) for candidate in listed)
    assert [candidate.mechanism.left for candidate in listed] == [64]  # type: ignore[attr-defined]
    assert len(candidates(site, 2048, 8192)) == 3
    assert len(candidates(site, 4096, 8192)) == 4
    assert candidates(site, 32, 1024) == ()


@pytest.mark.parametrize("causal", [True, False])
def test_pairs_are_those_of_the_mask(causal: bool) -> None:
    """With equal scores a row of the map is uniform over what it sees: values that are units count the pairs."""
    n, n_checked = 96, 0
    site = Site("only", "self", 0, 1, 1, 8, 8, causal)
    positions = torch.arange(n)[None]
    call = Call(torch.zeros(1, 1, n, 8), torch.zeros(1, 1, n, 8), torch.eye(n)[None, None], 1.0, positions, positions,
                right=0 if causal else None)  # fmt: skip
    for mechanism in (example for kind in mechanisms().values() for example in kind.examples(n)):
        if mechanism.needs_all_queries or mechanism.supports(call) is not None or mechanism.seen(call) is None:
            assert computed_pairs(mechanism, site, n) <= full_pairs(site, n)
            continue
        assert computed_pairs(mechanism, site, n) == int((mechanism(call).out > 0).sum()), mechanism
        n_checked += 1
    assert n_checked >= 10
    assert computed_pairs(Window(4), site_of(0, 1), 4096) == pytest.approx(5 * 4096, rel=0.01)


def captured_call(model: Model, site: Site, tokens: Tokens) -> Call:
    with model.session() as session:
        inputs = session.capture("q", "k", "v", "scale")
        session.run(tokens[None])
        return call_of(site, inputs.take())


def test_no_damage_without_change(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    call = captured_call(tiny, tiny.sites[1], windows[0])
    gradient = torch.randn(call.q.shape, generator=torch.Generator().manual_seed(0))
    for stick in (Perplexity(), Embeddings()):
        assert float(damage(call, Dense(), [gradient], stick).abs().max()) == 0.0
        assert float(damage(call, BandSparse(4, 0, (0,)), [gradient], stick).min()) > 0.0


def test_damage_predicts_the_divergence(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    """The damage of a narrow window on each head follows the measured KL of the model with that head alone replaced."""
    by_site = {site: candidates(site, LENGTH, LENGTH)[:1] for site in tiny.sites}
    predicted = head_damages(tiny, windows[:2], by_site, Perplexity(), 0, silent)
    pairs = []
    for site in tiny.sites:
        for head in range(0, site.n_heads, 2):
            measured = quality(tiny, Plan({by_site[site][0].spelling: site.head_label(head)}), windows[:2])
            pairs.append((float(predicted[site][0, head]), float(measured.kl.sum() / measured.tokens.sum())))
    of_damage, of_divergence = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    # The order decides what the ladder proposes; the size may be off, since positions are taken as independent.
    assert spearmanr(of_damage, of_divergence).statistic > 0.8
    factors = (of_damage / of_divergence).log()
    assert abs(float(factors.median())) < math.log(3)


def test_a_wide_window_costs_nothing(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    measured = quality(tiny, Plan({f"window(left={LENGTH}, right=0)": "all"}), windows[:2])
    assert measured.ratio.mean == pytest.approx(1.0, abs=1e-5)
    assert float(measured.kl.abs().sum() / measured.tokens.sum()) < 1e-6
    assert float(measured.agreeing.sum() / measured.tokens.sum()) > 0.999


def test_quality_is_that_of_the_definition(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    """Nats, KL and agreement, from the logits of two plain runs in float64."""
    tokens = windows[0]
    plan = Plan({NARROW: "L1-2"})
    with torch.no_grad():
        original = torch.log_softmax(tiny.hf(tokens[None]).logits[0, :-1].double(), -1)
        with hs.apply(plan, tiny):
            swapped = torch.log_softmax(tiny.hf(tokens[None]).logits[0, :-1].double(), -1)
    measured = quality(tiny, plan, [tokens])
    following = tokens[1:, None]
    assert float(measured.nats) == pytest.approx(-float(swapped.gather(1, following).sum()), rel=1e-5)
    assert float(measured.original_nats) == pytest.approx(window_nats(tiny, tokens), rel=1e-5)
    assert float(measured.kl) == pytest.approx(float((original.exp() * (original - swapped)).sum()), rel=1e-3)
    assert float(measured.agreeing) == float((original.argmax(-1) == swapped.argmax(-1)).sum())


def searched(model: Model, windows: tuple[Tokens, ...], allowed: float, seconds: float = 600.0) -> tuple[Search, int]:
    by_site = {site: candidates(site, LENGTH, LENGTH) for site in model.sites}
    full = {site: full_pairs(site, LENGTH) for site in model.sites}
    damages = head_damages(model, windows[:1], by_site, Perplexity(), 0, silent)
    search = Search(
        model, ladder(by_site, damages, full), [SearchPart("text", LENGTH, windows)], allowed, Perplexity(), seconds
    )
    return search, search.run(silent)


def test_search_meets_its_budget(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    search, steps = searched(tiny, windows, 0.02)
    best = next(tried for tried in search.tried if tried.steps == steps)
    assert steps > 0
    assert best.within
    assert best.loss.high <= 0.02
    again = quality(tiny, Plan(best.rules), windows)
    assert again.ratio.high - 1.0 == pytest.approx(best.loss.high, abs=1e-5)
    assert search.is_complete
    assert any(not tried.within for tried in search.tried) or steps == len(search.ladder.steps)


def test_an_impossible_budget_replaces_nothing(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    """Where the first step of the ladder ruins the model, the plan is empty."""
    ruin = Candidate("window(left=0, right=0)", Window(0, 0), 1.0)
    steps = [LadderStep(site, (head,), ruin, 1.0, 1.0) for site in tiny.sites[:2] for head in range(site.n_heads)]
    search = Search(tiny, Ladder(tuple(steps)), [SearchPart("text", LENGTH, windows[:4])], 1e-6, Perplexity(), 600.0)
    assert search.run(silent) == 0
    assert all(not tried.within for tried in search.tried)


def test_a_search_without_time_says_so(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    search, steps = searched(tiny, windows, 0.02, seconds=-1.0)
    assert steps == 0
    assert not search.is_complete
    assert search.tried == []


@dataclass(frozen=True)
class LooksAhead(Mechanism):
    """Attention without regard to positions: every query sees every key."""

    name: ClassVar[str] = "looks_ahead"

    def attend(self, call: Call, *, lse: bool) -> Output:
        return Dense().attend(
            Call(call.q, call.k, call.v, call.scale, call.query_positions, call.key_positions), lse=lse
        )

    def definition(self, call: Call) -> Output:
        raise NotImplementedError

    def cost(self, n: int, d: int) -> Cost:
        raise NotImplementedError


def test_a_plan_that_looks_ahead_is_caught(
    tiny: Model, windows: tuple[Tokens, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model_leak(tiny, Plan({NARROW: "all"}), windows[0], 0).is_clean

    @contextmanager
    def looking_ahead(plan: Plan, model: Model) -> Iterator[None]:
        with model.session() as session:
            session.replace("L2.H3", LooksAhead())
            yield

    monkeypatch.setattr(leak, "apply", looking_ahead)
    checked = model_leak(tiny, Plan({}), windows[0], 0)
    assert not checked.is_clean
    assert checked.change > 10 * checked.allowed


@pytest.mark.parametrize("task", [PASSKEY, NEEDLES, LOOKUP])
@pytest.mark.parametrize("depth", [0.1, 0.5, 0.9])
def test_a_fact_stands_at_its_depth(tiny: Model, task: str, depth: float) -> None:
    filler = gather(tiny, [text_of(None)], (768,), tokens=64, windows=4, searches=False).test[768][0]
    trial = trial_of(tiny, task, depth, filler, 768, torch.Generator().manual_seed(1))
    assert len(trial.prompt) + len(trial.answer) == 768
    text, answer = (tiny.tokenizer.decode(tokens) for tokens in (trial.prompt, trial.answer))  # type: ignore[union-attr]
    number = answer.strip()
    assert text.count(number) == (2 if task == PASSKEY else 1)
    assert (
        all(text.count(f"number of {city} is") == 1 + text.endswith(f"{city} is") for city in CITIES) or task != NEEDLES
    )
    facts = len("".join(f"{word}: 1234\n" for word in range(20))) if task == LOOKUP else 80
    assert text.index(number) / len(text) == pytest.approx(depth, abs=0.1 + facts / len(text))


def test_a_trial_is_right_where_the_likeliest_tokens_are_the_answer(tiny: Model) -> None:
    filler = gather(tiny, [text_of(None)], (256,), tokens=64, windows=4, searches=False).test[256][0]
    trial = trial_of(tiny, PASSKEY, 0.9, filler, 256, torch.Generator().manual_seed(1))
    likeliest = tiny.run(trial.prompt[None], "logits").logits[0, -1].argmax()
    assert is_right(tiny, replace(trial, answer=likeliest[None]))
    assert not is_right(tiny, replace(trial, answer=(likeliest[None] + 1) % 1000))


def test_facts_that_do_not_fit_are_refused(tiny: Model) -> None:
    filler = gather(tiny, [text_of(None)], (64,), tokens=64, windows=4, searches=False).test[64][0]
    for n in (64, 900):
        with pytest.raises(UsageError, match=f"cannot have {n}"):
            trial_of(tiny, LOOKUP, 0.5, filler, n, torch.Generator())


def test_a_plan_that_sees_nothing_forgets(tiny: Model) -> None:
    """Counts are those of the trials; a task that the original cannot do does not count."""
    fillers = gather(tiny, [text_of(None)], (256,), tokens=64, windows=4, searches=False).test[256][:2]
    outcomes = recall(tiny, Plan({"window(left=0, right=0)": "all"}), 256, fillers, 0, silent)
    assert {(row.task, row.trials) for row in outcomes} == {(task, 2) for task in (PASSKEY, NEEDLES, LOOKUP)}
    assert all(row.plan == 0 for row in outcomes)
    able = [Recall(64, "passkey", depth, 5, 4, 1) for depth in (0.1, 0.9)]
    unable = [Recall(64, "look-up", depth, 5, rights, 5) for depth, rights in ((0.1, 5), (0.9, 2))]
    table = recall_table([*able, *unable])
    assert table["counts"].to_list() == [True, True, False, False]


def test_splits_share_no_document(tiny: Model) -> None:
    """Every document of a text is a run of its own token, so windows tell which documents they hold."""
    words = [" ".join([f"w{index}"] * 120) for index in range(60)]
    material = gather(tiny, [Text("numbered", words)], (64,), tokens=64, windows=50, searches=True)
    texts = {
        name: {word for window in part for word in tiny.tokenizer.decode(window).split()}  # type: ignore[union-attr]
        for name, part in (("fit", material.fit), ("search", material.search[0].windows), ("test", material.test[64]))
    }
    whole = {name: {word for word in held if word in {f"w{i}" for i in range(60)}} for name, held in texts.items()}
    assert all(whole.values())
    assert not whole["search"] & whole["test"]
    assert not whole["fit"] & whole["test"]
    assert not whole["fit"] & whole["search"]


@pytest.fixture(scope="module")
def finding(tiny: Model):
    params = Params(budget="3%", tokens=LENGTH, windows=6, lengths=(64, LENGTH), repeats=1, new_tokens=4)
    return EXPERIMENT.run(tiny, params, silent)[0]


def test_the_tables_of_a_search(finding, tiny: Model) -> None:
    quality_rows = finding.tables["quality"]
    assert quality_rows["tokens"].to_list() == [64, 64, LENGTH, LENGTH]
    plan = quality_rows.filter(pl.col("which") == "plan")
    assert (plan["ratio_low"] <= plan["ratio"]).all()
    assert (plan["ratio"] <= plan["ratio_high"]).all()
    assert len(finding.tables["heads"]) == sum(site.n_heads for site in tiny.sites)
    assert finding.tables["heads"]["share"].max() <= 1.0
    frontier = finding.tables["frontier"]
    assert frontier["share"].is_sorted(descending=True)
    assert (frontier.filter("within")["loss_high"] <= 0.03).all()
    assert set(frontier["tokens"]) == {LENGTH}
    assert (frontier["flops"] <= 1.0).all()
    assert (frontier["flops"] >= frontier["share"]).all()
    assert {figure.name for figure in finding.figures} == {"heads", "frontier", "speed", "decoding"}
    assert [len(str(headline.short).split()) <= 20 for headline in finding.headlines] == [True] * 6


def test_sentences_about_recall(finding) -> None:
    """What the original cannot do is named, and does not count."""
    rows = [Recall(64, "passkey", 0.1, 10, 9, 6), Recall(64, "look-up", 0.1, 10, 2, 9)]
    leak_result = leak.ModelLeak(0.0, 1e-4)
    headline = headlines({**finding.tables, "recall": recall_table(rows)}, leak_result, "text")[4]
    assert headline.full.startswith("Of 10 facts hidden in texts, the original finds 9 and the plan 6.")
    assert "less than 80 % right: look-up at 64 tokens" in headline.full
    nothing = headlines({**finding.tables, "recall": recall_table(rows[1:])}, leak_result, "text")[4]
    assert nothing.full.startswith("Recall says nothing about this plan.")


def test_the_model_is_as_it_was(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    before = window_nats(tiny, windows[0])
    params = Params(replace=(f"L1={NARROW}",), lengths=(64,), recall_lengths=(2048,), repeats=1, new_tokens=2)
    by_hand = EXPERIMENT.run(tiny, params, silent)[0]
    assert any("No recall at 2048 tokens: the context" in warning for warning in by_hand.warnings)
    assert {headline.figure for headline in by_hand.headlines} <= {"", *(figure.name for figure in by_hand.figures)}
    assert window_nats(tiny, windows[0]) == before


def test_a_length_beyond_the_context_is_left_out_with_the_reason(tiny: Model) -> None:
    material = gather(tiny, [text_of(None)], (64, 4096), tokens=64, windows=4, searches=False)
    assert set(material.test) == {64}
    assert "context" in material.omissions[0]
    assert set(gather(tiny, [text_of(None)], (), tokens=64, windows=4, searches=False).test) == {1024}
    with pytest.raises(UsageError, match="no length of"):
        gather(tiny, [text_of(None)], (4096,), tokens=64, windows=4, searches=False)


def test_a_text_that_is_too_short_says_how_much_is_needed(tiny: Model) -> None:
    text = Text("short", [f"Story {index} of the old house by the sea. " * 20 for index in range(30)])
    with pytest.raises(UsageError, match=r"needs at least 4 windows of 1024: 4096 tokens"):
        gather(tiny, [text], (64,), tokens=1024, windows=4, searches=True)


def test_rules_are_joined_by_mechanism() -> None:
    rules = rules_of(("L0=window(left=4)", "L2.H1=window(left=4)", "L1=dense"))
    assert rules == {"window(left=4)": "L0,L2.H1", "dense": "L1"}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (Params(), "none of them"),
        (Params(budget="1%", plan="plan.json"), "--plan and --budget"),
        (Params(budget="0%"), "no percentage"),
        (Params(budget="1"), "no percentage"),
        (Params(budget="-1%"), "no percentage"),
        (Params(budget="200%"), "no percentage"),
        (Params(budget="1%", text=Text("moby-dick:test", ("a b",))), "one split already"),
        (Params(replace=("L0",)), "cannot read the rule"),
        (Params(replace=("L0=",)), "cannot read the rule"),
        (Params(replace=("H0x=window(left=4)",)), "cannot read"),
        (Params(replace=("L0=widnow(left=4)",)), "widnow"),
        (Params(replace=("L0=window(lft=4)",)), "lft"),
        (Params(plan="nowhere.json"), "there is no plan"),
        (Params(budget="1%", lengths=(8,)), "at least 16"),
        (Params(budget="1%", minutes=0.0), "needs time"),
        (Params(replace=("L0=window(left=4)",), recall="5%"), "second budget of a search"),
        (Params(budget="1%", recall="5"), "budget of recall"),
    ],
)
def test_bad_settings(params: Params, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        params.check()


def test_a_layer_that_is_not_there(tiny: Model) -> None:
    with pytest.raises(UsageError, match="matches no head"):
        EXPERIMENT.run(tiny, Params(replace=("L99=window(left=4)",), lengths=(64,)), silent)


def test_the_loss_is_that_of_paired_windows() -> None:
    """Differences per token of 0, 2 and 4 % over windows of one size, whatever the windows are like."""
    windows, originals = [torch.zeros(101, dtype=torch.long)] * 3, [[300.0], [500.0], [700.0]]
    lost = Perplexity().loss([[300.0], [502.0], [704.0]], originals, windows)
    half = student.ppf(0.975, 2) * 0.02 / math.sqrt(3)
    assert lost.mean == pytest.approx(math.expm1(0.02))
    assert (lost.low, lost.high) == (pytest.approx(math.expm1(0.02 - half)), pytest.approx(math.expm1(0.02 + half)))
    assert not Perplexity().is_hopeless(lost, 0.01)
    assert Perplexity().is_hopeless(Perplexity().loss([[305.0], [505.1], [705.0]], originals, windows), 0.009)


class Interrupting(Perplexity):
    """A yardstick that is interrupted after so many readings."""

    def __init__(self, readings: int) -> None:
        self.left = readings

    def reading(self, model: Model, tokens: Tokens) -> list[float]:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().reading(model, tokens)


def test_an_interrupted_search_goes_on(tiny: Model, windows: tuple[Tokens, ...], tmp_path: Path) -> None:
    file = tmp_path / "journal.json"
    by_site = {site: candidates(site, LENGTH, LENGTH) for site in tiny.sites}
    full = {site: full_pairs(site, LENGTH) for site in tiny.sites}
    steps = ladder(by_site, head_damages(tiny, windows[:1], by_site, Perplexity(), 0, silent), full)

    def search(stick: Interrupting) -> Search:
        entries = journal.read_entries(file)
        kept = journal.Journal(file, entries, len(entries))
        return Search(tiny, steps, [SearchPart("text", LENGTH, windows[:4])], 0.02, stick, 600.0, kept)

    with pytest.raises(KeyboardInterrupt):
        search(Interrupting(9)).run(silent)
    resumed, uninterrupted = (
        search(again := Interrupting(1000)),
        Search(tiny, steps, [SearchPart("text", LENGTH, windows[:4])], 0.02, Perplexity(), 600.0),
    )
    assert resumed.journal.n_known == 9
    assert resumed.run(silent) == uninterrupted.run(silent)
    assert [tried.loss for tried in resumed.tried] == [tried.loss for tried in uninterrupted.tried]
    assert 1000 - again.left == len(uninterrupted.journal.entries) - 9
    search(nothing := Interrupting(0)).run(silent)
    assert nothing.left == 0


def test_damaged_lines_of_a_journal_count_as_none(tmp_path: Path) -> None:
    file = tmp_path / "journal.json"
    assert journal.read_entries(file) == {}
    whole = json.dumps(["key", 0.5, 1.25, 2.5])
    file.write_text(f'{whole}\n[1\n{{}}\nnull\n["x", "y"]\n\n{whole[:-7]}')
    assert journal.read_entries(file) == {"key": journal.Entry([1.25, 2.5], 0.5)}
    later = journal.Entry([3.0], 0.25)
    journal.Journal(file).entry({}, torch.zeros(2, dtype=torch.long), lambda: later)
    assert later in journal.read_entries(file).values(), "an entry after a cut line is whole"


def test_other_weights_have_another_journal(tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "cache_folder", lambda: tmp_path)
    file = journal.journal_of(tiny, "perplexity").file
    with tiny.edit() as edit:
        edit.scale_spectrum("q", 1.0 + 1e-3, at="L1.H3")
        assert journal.journal_of(tiny, "perplexity").file != file
    assert journal.journal_of(tiny, "perplexity").file == file
    assert journal.journal_of(tiny, "embeddings").file != file


def test_a_search_holds_its_budget_at_every_length(tiny: Model) -> None:
    """The plan is within the budget at both lengths, and the longer windows are measured first."""
    material = gather(tiny, [text_of(None)], (2 * LENGTH,), tokens=LENGTH, windows=6, searches=True)
    assert [part.tokens for part in material.search] == [LENGTH, 2 * LENGTH]
    assert len(material.fit[0]) == 2 * LENGTH
    by_site = {site: candidates(site, 2 * LENGTH, 2 * LENGTH) for site in tiny.sites}
    full = {site: full_pairs(site, 2 * LENGTH) for site in tiny.sites}
    steps = ladder(by_site, head_damages(tiny, material.fit[:1], by_site, Perplexity(), 0, silent), full)
    search = Search(tiny, steps, material.search, 0.02, Perplexity(), 600.0)
    best = search.run(silent)
    assert best > 0
    assert {tried.tokens: tried.within for tried in search.measured(best)} == {LENGTH: True, 2 * LENGTH: True}
    assert search.tried[0].tokens == 2 * LENGTH


def test_a_search_holds_its_budget_on_every_text(tiny: Model) -> None:
    """The second text has the words of the first one in reverse."""
    backwards = [" ".join(reversed(document.split())) for document in text_of(None).documents]
    texts = [text_of(None), Text("backwards", backwards)]
    material = gather(tiny, texts, (LENGTH,), tokens=LENGTH, windows=6, searches=True)
    names = [part.text for part in material.search]
    assert [name.rpartition(":")[2] for name in names] == ["search", "search"]
    assert names[0] != names[1]
    assert len(material.fit) == 4
    by_site = {site: candidates(site, LENGTH, LENGTH) for site in tiny.sites}
    full = {site: full_pairs(site, LENGTH) for site in tiny.sites}
    steps = ladder(by_site, head_damages(tiny, material.fit[:1], by_site, Perplexity(), 0, silent), full)
    search = Search(tiny, steps, material.search, 0.02, Perplexity(), 600.0)
    best = search.run(silent)
    assert [tried.text for tried in search.measured(best)] == names
    assert all(tried.within for tried in search.measured(best))


def test_a_search_leaves_built_in_mechanisms_alone() -> None:
    """Damages are predicted against dense attention, so a layer that was built with mechanisms stays as it is."""
    model = hs.open(built(SINGLE_STACKS["windows"]))
    read = [torch.randint(3, 50, (256,), generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    part = SearchPart("random tokens", 256, tuple(read))
    material = Material(part.windows[:1], (part,), {256: part.windows}, Text("random tokens", ["none"]))
    proposal = propose(model, Params(budget="100%", text="none"), material, None, Perplexity(), silent)
    replaced = {site.layer for sites in proposal.plan.heads(model.sites).values() for site in sites}
    assert replaced == {1}
    assert any("built with mechanisms" in warning for warning in proposal.warnings)


def test_named_mechanisms_are_candidates(tiny: Model) -> None:
    site = tiny.sites[0]
    named = candidates(site, LENGTH, LENGTH, ("top_blocks(block=8, blocks=1)",))
    assert {entry.spelling for entry in named} - {entry.spelling for entry in candidates(site, LENGTH, LENGTH)} == {
        "top_blocks(block=8, blocks=1)"
    }
    assert [entry.spent for entry in named] == sorted(entry.spent for entry in named)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"replace": ("L0=window(left=8)",), "also": ("plain",)}, "--also is for a search"),
        ({"replace": ("L0=window(left=8)",), "mechanisms": ("window(left=8)",)}, "--try is for a search"),
        ({"budget": "1%", "also": ("moby-dick:test",)}, "one split already"),
        ({"budget": "1%", "also": ("moby-dik",)}, "nor the name of a text"),
        ({"budget": "1%", "mechanisms": ("windows(left=8)",)}, "windows"),
    ],
)
def test_senseless_searches_are_refused(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Params(**params).check()


def test_a_recall_budget_refuses_a_plan_that_forgets(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    filler = gather(tiny, [text_of(None)], (256,), tokens=64, windows=4, searches=False).test[256][0]
    trials = trials_of(tiny, 256, [filler], 0)
    # What the model itself says counts as right, so that there is something to forget.
    answered = [
        replace(trial, answer=tiny.run(trial.prompt[None], "logits").logits[0, -1].argmax()[None]) for trial in trials
    ]
    budget = RecallBudget(tiny, answered, 0.1)
    assert budget.lost(Plan({}), silent) == 0.0
    assert budget.lost(Plan({"window(left=0, right=0)": "all"}), silent) > 0.5
    steps = [LadderStep(site, (head,), Candidate("window(left=0, right=0)", Window(0, 0), 1.0), 1.0, 1.0)
             for site in tiny.sites for head in range(site.n_heads)]  # fmt: skip
    search = Search(
        tiny, Ladder(tuple(steps)), [SearchPart("text", LENGTH, windows[:2])], 1e9, Perplexity(), 600.0, recall=budget
    )
    best = search.run(silent)
    assert best < len(steps)
    assert all(tried.within for tried in search.tried)
    assert search.recall_lost[len(steps)] > 0.1
    assert best == 0 or search.recall_lost[best] <= 0.1


def test_recall_is_no_budget_where_the_original_finds_nothing(tiny: Model) -> None:
    fillers = gather(tiny, [text_of(None)], (256,), tokens=64, windows=4, searches=False).test[256][:1]
    with pytest.raises(UsageError, match="itself finds less than 80"):
        recall_budget(tiny, {256: fillers}, 0.1, 0, silent)


def test_flops_are_those_that_torch_counts(tiny: Model) -> None:
    """Without the output head; torch does not count its fused attention on CPUs, whose pairs are counted here."""
    n = 256
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        tiny.hf.base_model(torch.zeros(1, n, dtype=torch.long))
    pairs = sum(full_pairs(site, n) * site.n_heads for site in tiny.sites)
    attention = 4 * tiny.sites[0].d_head * pairs
    assert forward_flops(tiny, Plan({}), n) == counter.get_total_flops() + attention
    narrow = Plan({"window(left=15, right=0)": "L1-2"})
    replaced = 2 * tiny.sites[1].n_heads
    saved = replaced * (n * (n + 1) / 2 - (16 * n - 120))
    assert forward_flops(tiny, Plan({}), n) - forward_flops(tiny, narrow, n) == 4 * tiny.sites[0].d_head * saved


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_fitted_columns_carry_the_most_mass(causal: bool, count: int) -> None:
    calls = [random_call(24, causal, seed) for seed in range(2)]
    band = BandSparse(2, 0 if causal else 2)
    fitted_band = replace(band, columns=tuple(range(count))).fit(calls)

    def mass(columns: tuple[int, ...]) -> float:
        seen = [(pattern(call), replace(band, columns=columns).seen(call).visible()) for call in calls]
        return sum(float(weights.masked_fill(~allowed, 0.0).double().sum()) for weights, allowed in seen)

    best = max(mass(columns) for columns in itertools.combinations(range(24), count))
    assert len(fitted_band.columns) == count
    assert mass(fitted_band.columns) == pytest.approx(best)
    longformer = Longformer(2, 0 if causal else 2, tuple(range(count))).fit(calls)
    assert longformer.global_positions == fitted_band.columns


def random_call(n: int, causal: bool, seed: int) -> Call:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 1, n, 8, generator=generator) for _ in range(3))
    positions = torch.arange(n)[None]
    return Call(2 * q, k, v, 1.0, positions, positions, right=0 if causal else None)


def test_a_fit_keeps_the_kind() -> None:
    """Over all mechanisms; a fitted linear attention is nearer to dense attention than any other feature map."""
    calls = [random_call(40, True, 0)]
    for kind in mechanisms().values():
        for example in kind.examples(40):
            if example.supports(calls[0]) is None:
                assert type(example.fit(calls)) is type(example)
    errors = {name: output_error(Linear(name), calls) for name in ("elu", "relu", "taylor")}
    assert errors[Linear("elu").fit(calls).feature] == min(errors.values())
    assert output_error(Dense(), calls) == 0.0


@pytest.mark.parametrize("mechanism", [Linear("random", count=16, seed=3), Linformer(rank=2, segment=5, seed=3)])
def test_a_fit_chooses_the_best_seed(mechanism: Linear | Linformer) -> None:
    calls = [random_call(40, True, seed) for seed in range(2)]
    errors = {seed: output_error(replace(mechanism, seed=seed), calls) for seed in range(3, 3 + SEEDS)}
    assert len(set(errors.values())) == SEEDS
    assert mechanism.fit(calls).seed == min(errors, key=errors.__getitem__) != 3


def test_a_fit_leaves_learnt_projections() -> None:
    learnt = Linformer(rank=2, segment=5, keys=torch.eye(2, 5))
    assert learnt.fit([random_call(40, True, 0)]) is learnt


def test_a_fit_keeps_the_heads(tiny: Model, windows: tuple[Tokens, ...]) -> None:
    plan = Plan({"band_sparse(left=4, right=0, columns=(5, 9))": "L1.H2,L2", "window(left=8)": "L3"})
    better = fitted(tiny, plan, windows[:2], silent)
    before, after = ({(s, h) for heads in p.heads(tiny.sites).values() for s, hs_ in heads.items() for h in hs_}
                     for p in (plan, better))  # fmt: skip
    assert before == after
    assert better.replace["window(left=8)"] == "L3"
    assert better.origin["fitted"]
    # Heads rest on the first token, so some of them choose it.
    assert any("columns=(0," in spelling for spelling in better.replace)


def test_a_fit_finds_a_planted_column(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head whose keys at one position outweigh all others gets this column."""
    site = tiny.sites[1]
    call = random_call(32, True, 0)
    call = replace(call, q=torch.ones_like(call.q), k=call.k * 0.1)
    call.k[0, 0, 7] = 3.0
    whole = replace(call, **{name: getattr(call, name).expand(1, site.n_heads, -1, -1) for name in ("q", "k", "v")})
    monkeypatch.setattr(fitting, "_calls", lambda *arguments: [whole])
    plan = fitted(tiny, Plan({"band_sparse(left=2, right=0, columns=(0,))": "L1.H3"}), [], silent)
    assert plan.replace == {"band_sparse(left=2, right=0, columns=(7,))": "L1.H3"}


def test_fitting_needs_the_split_fit(tiny: Model) -> None:
    text = Text("moby-dick:test", ("a b " * 400,))
    with pytest.raises(UsageError, match="fitted on the split fit"):
        gather(tiny, [text], (64,), tokens=64, windows=4, searches=False, fits=True)


@pytest.fixture(scope="module")
def encoder() -> Model:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    hf = BertModel(BertConfig(vocab_size=50, max_position_embeddings=128, initializer_range=0.3, **sizes))
    return hs.open(hf.eval())


def test_damage_predicts_the_cosine(encoder: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The damage on each head follows the measured loss of the encoder with that head alone replaced."""
    monkeypatch.setattr(Embeddings, "probes", 64)
    tokens = torch.randint(0, 50, (96,), generator=torch.Generator().manual_seed(0))
    by_site = {site: candidates(site, 96, 96)[:1] for site in encoder.sites}
    predicted = head_damages(encoder, [tokens], by_site, Embeddings(), 0, silent)
    original = Embeddings().reading(encoder, tokens)
    for site in encoder.sites:
        for head in range(site.n_heads):
            with hs.apply(Plan({by_site[site][0].spelling: site.head_label(head)}), encoder):
                measured = Embeddings().loss([Embeddings().reading(encoder, tokens)], [original], [tokens])
            assert 0.5 < float(predicted[site][0, head]) / measured.mean < 2.0


def test_an_encoder_is_judged_by_its_embeddings(encoder: Model) -> None:
    original = [[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]
    lost = Embeddings().loss([[2.0, 0.0], [0.0, 1.0], [3.0, 4.0]], original, [])
    assert (lost.low, lost.high) == (0.0, pytest.approx(0.4))
    assert lost.mean == pytest.approx(0.4 / 3)
    assert Embeddings().is_hopeless(lost, 0.1)
    assert not Embeddings().is_hopeless(lost, 0.5)


@pytest.mark.real
def test_a_search_on_an_encoder() -> None:
    minilm = hs.open("minilm")
    params = Params(budget="2%", tokens=192, windows=24, lengths=(192,), repeats=1)
    found = EXPERIMENT.run(minilm, params, silent)[0]
    row = found.tables["embeddings"].to_dicts()[0]
    assert row["windows"] > 10
    assert 0.9 < row["cosine_least"] <= row["cosine"] < 1.0
    assert found.tables["heads"]["share"].mean() < 0.9
    within = found.tables["frontier"].filter("within")
    assert (within["loss_high"] <= 0.02).all()
    assert set(found.tables) == {"embeddings", "speed", "heads", "frontier"}
    assert found.headlines[0].full.startswith("At 192 tokens, the embeddings of")


def test_a_model_that_is_neither_is_refused() -> None:
    from transformers import T5Config, T5Model

    sizes = {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_ff": 32, "d_kv": 16}
    both = hs.open(T5Model(T5Config(vocab_size=50, **sizes)).eval())
    with pytest.raises(UsageError, match="neither a model that predicts the next token nor an encoder"):
        EXPERIMENT.run(both, Params(replace=("L0=window(left=4)",), lengths=(64,)), silent)
