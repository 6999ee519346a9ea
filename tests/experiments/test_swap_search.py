"""Swap: what a search asks for, what candidates and yardsticks are by definition, what is timed in which order."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch

import headscope as hs
from headscope.attention.mechanisms.band_sparse import BandSparse
from headscope.attention.mechanisms.top_blocks import TopBlocks
from headscope.attention.mechanisms.window import Window
from headscope.core import Site
from headscope.corpora import text_of
from headscope.experiments.swap import decoding, head_damage, quality, repair, speed, yardstick
from headscope.experiments.swap.candidates import Candidate, candidates, computed_pairs, full_pairs
from headscope.experiments.swap.journal import Entry
from headscope.experiments.swap.ladder import Ladder, ladder
from headscope.experiments.swap.layer_inputs import LayerInput, SwappedSite
from headscope.experiments.swap.leak import ModelLeak
from headscope.experiments.swap.material import SearchPart
from headscope.experiments.swap.plan_cost import cached_share, kept_keys
from headscope.experiments.swap.recall import RecallBudget, Trial
from headscope.experiments.swap.search import Search
from headscope.experiments.swap.settings import Params
from headscope.experiments.swap.yardstick import Embeddings, Loss, Perplexity
from headscope.experiments.text_sample import Tokens
from headscope.model.model import Model
from headscope.model.plans.plan import Plan
from headscope.progress import silent
from tests.experiments.stand_in import stand_in

NARROW = "band_sparse(left=32, right=0, columns=(0,))"


@pytest.fixture(scope="module")
def tiny() -> Model:
    return hs.open("tiny")


def site_of(layer: int, heads: int, *, causal: bool = True, **changes: object) -> Site:
    return replace(Site("only", "self", layer, heads, heads, 8, 8, causal), **changes)


def steps_of(count: int) -> Ladder:
    """A ladder of many heads, each with one candidate that saves the same."""
    site, option = site_of(0, count), Candidate("window(left=1)", Window(1), 1.0)
    damages = torch.arange(1.0, count + 1.0)[None]
    return ladder({site: (option,)}, {site: damages}, {site: 2.0})


@dataclass
class Planted(Search):
    """A search in which plans up to a number of steps are within the budget."""

    limit: int = 0
    asked: list[int] = field(default_factory=list)

    def _fits(self, steps: int, step: Callable[..., None]) -> bool:
        self.asked.append(steps)
        return steps <= self.limit


def planted(count: int, limit: int, clock: Iterator[float] | None = None, seconds: float = 1e9) -> Planted:
    options = {} if clock is None else {"clock": lambda: next(clock)}
    return Planted(stand_in(), steps_of(count), {}, 0.1, Perplexity(), seconds, limit=limit, **options)


@pytest.mark.parametrize("count", [0, 1, 2, 9, 100, 150])
def test_a_search_finds_the_last_plan_within_the_budget(count: int) -> None:
    """It asks for everything first, then halves: no plan twice, and few."""
    for limit in sorted({0, 1, 2, count // 2, count - 1, count} & set(range(count + 1))):
        search = planted(count, limit)
        assert search.run(silent) == limit
        assert search.is_complete
        assert search.asked[:1] == [count][: len(search.asked)]
        assert len(search.asked) == len(set(search.asked)) <= count.bit_length() + 1
        assert 0 not in search.asked or count == 0


@pytest.mark.parametrize("limit", [0, 1, 499, 500, 993, 999])
def test_a_search_of_a_long_ladder_ends_within_a_hundredth(limit: int) -> None:
    search = planted(1000, limit)
    assert limit - 10 < search.run(silent) <= limit
    assert len(search.asked) < 9  # to the last step it would be ten


def test_a_search_ends_when_its_time_is_over_and_not_before() -> None:
    for last, asked in ((5.0, 2), (5.5, 1)):
        search = planted(100, 0, iter([0.0, 0.0, last, 9.0]), seconds=5.0)
        assert search.run(silent) == 0
        assert len(search.asked) == asked
        assert not search.is_complete


def test_candidates_on_a_line_are_steps_one_by_one() -> None:
    """Damage in proportion to what is saved: every candidate lies on the hull, and the search may stop at each."""
    site = site_of(0, 1)
    options = tuple(Candidate(f"window(left={spent})", Window(spent), float(spent)) for spent in (25, 50, 75))
    steps = ladder({site: options}, {site: torch.tensor([[0.75], [0.5], [0.25]])}, {site: 100.0}).steps
    assert [(step.candidate.spent, step.damage, step.saved) for step in steps] == [
        (75, 0.25, 25), (50, 0.25, 25), (25, 0.25, 25)
    ]  # fmt: skip
    assert [step.price for step in steps] == [0.01] * 3
    assert ladder({site: options[1:]}, {site: torch.ones(2, 1)}, {site: 75.0}).steps[0].saved == 25.0


def measured_search(monkeypatch: pytest.MonkeyPatch, windows: int, loss: Loss, hopeless: bool) -> tuple[Search, list]:
    """A search over windows of 64 tokens, in which every loss is the same and plans take twice as long."""
    named: list[tuple[str, int, int]] = []
    part = SearchPart("a text", 64, tuple(torch.full((64,), i) for i in range(windows)))
    search = Search(stand_in(), steps_of(4), [part], 0.1, Perplexity(), 1e9)
    is_swapped = []

    @contextmanager
    def noted(plan: Plan, model: object) -> Iterator[None]:
        is_swapped.append(bool(plan.replace))
        yield

    monkeypatch.setattr("headscope.experiments.swap.search.apply", noted)
    monkeypatch.setattr(Search, "_entry", lambda self, tokens: Entry([1.0], 2.0 if is_swapped[-1] else 3.0))
    monkeypatch.setattr(Perplexity, "loss", lambda *arguments: loss)
    monkeypatch.setattr(Perplexity, "is_hopeless", lambda *arguments: hopeless)
    best = search.run(lambda task, index, count: named.append((task, index, count)))
    return search, [best, named]


@pytest.mark.parametrize(("high", "within"), [(0.1, True), (0.11, False)])
def test_a_plan_at_its_budget_is_within_it(monkeypatch: pytest.MonkeyPatch, high: float, within: bool) -> None:
    search, (best, _) = measured_search(monkeypatch, 5, Loss(0.05, 0.0, high), False)
    assert best == (4 if within else 0)
    assert {tried.within for tried in search.tried} == {within}
    assert {tried.windows for tried in search.tried} == {5}
    assert {tried.speedup for tried in search.tried} == {1.5}


def test_a_hopeless_plan_is_left_after_two_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    search, (best, named) = measured_search(monkeypatch, 5, Loss(0.05, 0.0, 0.05), True)
    assert best == 0
    assert {(tried.windows, tried.within, tried.speedup) for tried in search.tried} == {(2, False, 1.5)}
    plans = {task for task, _, _ in named if "plan" in task}
    assert plans == {f"measuring plan {i + 1} of the search at 64 tokens, window" for i in range(len(search.tried))}


def test_a_plan_that_forgets_as_much_as_it_may_is_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headscope.experiments.swap.recall.apply", lambda plan, model: nullcontext())
    monkeypatch.setattr("headscope.experiments.swap.recall.rights", lambda *arguments: [True, True, True, False])
    asked = [Trial("passkey", 0.5, torch.tensor([1]), torch.tensor([2]))] * 4
    for allowed, best in ((0.25, 4), (0.2, 0)):
        search = Search(
            stand_in(), steps_of(4), (), 0.1, Perplexity(), 1e9, recall=RecallBudget(stand_in(), asked, allowed)
        )
        assert search.run(silent) == best
        assert set(search.recall_lost.values()) == {0.25}


@pytest.mark.parametrize(("searched", "widths"), [(127, []), (128, [64]), (511, [64]), (512, [64, 256])])
def test_a_causal_band_hides_half_of_what_is_searched(searched: int, widths: list[int]) -> None:
    assert [candidate.mechanism for candidate in candidates(site_of(0, 2), searched, 10**4)] == [
        BandSparse(width, 0, (0,)) for width in widths
    ]


@pytest.mark.parametrize(("searched", "widths"), [(31, []), (32, [8]), (127, [8, 16]), (128, [8, 16, 32])])
def test_a_band_of_two_sides_hides_half_of_what_is_searched(searched: int, widths: list[int]) -> None:
    site = site_of(0, 2, causal=False)
    assert [c.mechanism for c in candidates(site, searched, 10**4)] == [BandSparse(w, w, (0,)) for w in widths]


def test_a_named_mechanism_that_computes_every_pair_is_no_candidate() -> None:
    blocks = "top_blocks"
    assert blocks in [c.spelling for c in candidates(site_of(0, 2), 2048, 10**4, (blocks,))]
    assert blocks not in [c.spelling for c in candidates(site_of(0, 2), 2048, 64, (blocks,))]


@pytest.mark.parametrize("changes", [{"kind": "cross"}, {"extras": ("bias",)}, {"window": 64}])
def test_sites_with_more_in_their_scores_are_not_searched(changes: dict[str, object]) -> None:
    assert candidates(site_of(0, 2, **changes), 512, 10**4) == ()


@pytest.mark.parametrize(("n", "tolerance"), [(256, 0.0), (300, 5e-3), (4096, 5e-4), (5000, 5e-4)])
def test_sampled_queries_lie_evenly(n: int, tolerance: float) -> None:
    """A causal head that sees everything computes n (n + 1) / 2 pairs, whatever queries are counted."""
    site = site_of(0, 1)
    assert computed_pairs(Window(n), site, n) == pytest.approx(full_pairs(site, n), rel=tolerance)
    with_ends = Window(3, 3), site_of(0, 1, causal=False)
    assert computed_pairs(*with_ends, n) == pytest.approx(7 * n - 12, rel=2e-3)


def test_chosen_pairs_are_the_stated_work() -> None:
    """As pairs of 4 d operations; never more than all pairs."""
    site, blocks = site_of(0, 1), TopBlocks(block=16, blocks=1)
    assert computed_pairs(blocks, site, 512) == min(blocks.cost(512, 8).flops / 32, 512 * 513 / 2)
    assert computed_pairs(TopBlocks(block=16, blocks=99), site, 512) == 512 * 513 / 2


def test_only_caches_of_causal_self_attention_are_counted() -> None:
    sites = [
        site_of(0, 2), site_of(1, 2, causal=False), replace(site_of(2, 2), kind="cross"), site_of(3, 2, window=16)
    ]  # fmt: skip
    assert kept_keys(Plan({}), sites, 40) == {sites[0]: (40, 40)}
    assert cached_share(Plan({}), sites[1:], 40) == 1.0
    assert cached_share(Plan({"window(left=10, right=0)": "L0"}), sites, 40) == 0.25


def test_the_damage_of_perplexity_is_that_of_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    for n in (8, 11):
        change, gradient = torch.randn(2, 1, 3, n, 5, generator=generator)
        late = range(n - n // 4, n)
        for head in range(3):
            squares = [float((change[0, head, i].double() * gradient[0, head, i].double()).sum()) ** 2 for i in late]
            wanted = sum(squares) / len(late) / 2
            assert float(Perplexity().damage(change, gradient)[head]) == pytest.approx(wanted)
            whole = float((change[0, head].double() * gradient[0, head].double()).sum()) ** 2 / 2
            assert float(Embeddings().damage(change, gradient)[head]) == pytest.approx(whole)


def test_the_last_quarter_of_the_positions_is_differentiated() -> None:
    logits = torch.randn(1, 10, 7, generator=torch.Generator().manual_seed(1)).requires_grad_()
    scalar = Perplexity().scalar(SimpleNamespace(logits=logits), torch.Generator().manual_seed(2))
    (gradient,) = torch.autograd.grad(scalar, logits)
    assert [bool(row.any()) for row in gradient[0]] == [False] * 8 + [True] * 2
    # Of ln p(y): the drawn token less the prediction.
    drawn = gradient[0, 8:] + logits[0, 8:].softmax(-1)
    assert torch.allclose(drawn.sort(-1).values, torch.eye(7)[6].expand(2, -1), atol=1e-6)


def test_the_direction_of_an_embedding_is_differentiated() -> None:
    """A longer embedding of the same direction has the same scalar."""
    states = torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(3))
    short, long = (
        Embeddings().scalar(SimpleNamespace(last_hidden_state=size * states), torch.Generator().manual_seed(4))
        for size in (1.0, 3.0)
    )
    assert float(long) == pytest.approx(float(short))
    direction = torch.randn(5, generator=torch.Generator().manual_seed(4))
    assert float(short) == pytest.approx(
        float(torch.cosine_similarity(direction, states[0].mean(0), dim=0) * direction.norm())
    )


@pytest.mark.parametrize(
    ("loss", "hopeless"),
    [
        (Loss(1.0, 0.5, 2.0), True),
        (Loss(0.75, 0.5, 2.0), False),  # three budgets, and no more
        (Loss(1.0, 0.25, 2.0), False),  # its interval touches the budget
        (Loss(1.0, 0.0, 2.0), False),
        (Loss(0.5, 0.4, 2.0), False),
    ],
)
def test_a_loss_is_hopeless_beyond_doubt(loss: Loss, hopeless: bool) -> None:
    assert Perplexity().is_hopeless(loss, 0.25) == hopeless
    assert not Embeddings().is_hopeless(loss, loss.high)
    assert Embeddings().is_hopeless(loss, loss.high - 0.01)


def test_a_leak_at_the_limit_is_rounding() -> None:
    assert ModelLeak(1e-4, 1e-4).is_clean
    assert not ModelLeak(1.1e-4, 1e-4).is_clean


def test_damages_are_means_over_windows(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([1.0, 2.0, 6.0])
    monkeypatch.setattr(head_damage, "damage", lambda call, *rest: torch.full((call.q.shape[1],), next(sizes)))
    site = tiny.sites[0]
    windows = [torch.arange(24) + start for start in (5, 50, 99)]
    sums = head_damages_of(tiny, windows, site)
    assert sums[site].tolist() == [[3.0] * site.n_heads]


def head_damages_of(model: Model, windows: list[Tokens], site: Site) -> dict[Site, torch.Tensor]:
    option = Candidate("window(left=4)", Window(4), 1.0)
    return head_damage.head_damages(model, windows, {site: (option,)}, Perplexity(), 0, silent)


def test_logits_are_normalised_some_rows_at_a_time(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = text_tokens(tiny, 100)
    plan = Plan({"window(left=8, right=0)": "all"})
    whole, reading = quality.quality(tiny, plan, [tokens]), Perplexity().reading(tiny, tokens)
    assert whole.tokens.tolist() == [99]
    monkeypatch.setattr(quality, "_ROWS", 33)
    monkeypatch.setattr(yardstick, "_ROWS", 33)
    parts = quality.quality(tiny, plan, [tokens])
    for name in ("nats", "original_nats", "kl", "agreeing"):
        assert float(getattr(parts, name)) == pytest.approx(float(getattr(whole, name)), rel=1e-6)
    assert Perplexity().reading(tiny, tokens) == pytest.approx(reading, rel=1e-6)
    assert reading == pytest.approx(whole.original_nats.tolist(), rel=1e-5)
    nats = quality.PairedNats(torch.tensor([50.0]), torch.tensor([40.0]), quality.scored_tokens([tokens]))
    assert nats.ratio.mean == pytest.approx(torch.e ** (10 / 99))


def text_tokens(model: Model, n: int) -> Tokens:
    assert model.tokenizer is not None
    ids = model.tokenizer(text_of(None).documents[0], add_special_tokens=False)["input_ids"][:n]
    return torch.tensor(ids)


def ways_in_order(module: object, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Notes whether the plan was in place whenever something was timed."""
    in_place, order = [False], []

    @contextmanager
    def noted(plan: Plan, model: Model) -> Iterator[SimpleNamespace]:
        in_place.append(True)
        yield SimpleNamespace(undropped={})
        in_place.pop()

    def seconds(*arguments: object) -> float:
        order.append(in_place[-1])
        return 2.0 if in_place[-1] else 3.0

    monkeypatch.setattr(module, "apply", noted)
    monkeypatch.setattr(module, "_seconds", seconds)
    return order


def test_neither_way_always_goes_first(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns begin with the original and with the plan by turns: what a machine warms up is shared."""
    tokens, plan = text_tokens(tiny, 60), Plan({NARROW: "L1"})
    order = ways_in_order(speed, monkeypatch)
    timed = speed.prefill_speed(tiny, plan, tokens, 3, silent)
    assert order == [False, True, True, False, False, True]
    assert (timed.original_seconds, timed.seconds, timed.ratio) == ((3.0,) * 3, (2.0,) * 3, 1.5)
    order = ways_in_order(decoding, monkeypatch)
    decoded = decoding.decoding_speed(tiny, plan, tokens, 2, silent)
    assert order == [False, True, True, False, False, True]
    assert decoded is not None
    # The first turn warms up; 60 tokens leave ten steps for each of three turns, and twenty are more than enough.
    assert (decoded.steps, decoded.original_speeds, decoded.speeds) == (10, (10 / 3,) * 2, (5.0,) * 2)
    assert decoding.decoding_speed(tiny, plan, text_tokens(tiny, 200), 1, silent).steps == decoding.STEPS  # type: ignore[union-attr]


@pytest.mark.parametrize("module", [speed, decoding])
def test_seconds_are_the_difference_of_the_clock(module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(100.0, 2.5)
    monkeypatch.setattr(f"{module.__name__}.time", SimpleNamespace(perf_counter=lambda: next(ticks)))  # type: ignore[attr-defined]
    nothing = torch.zeros(0, dtype=torch.long)
    assert (speed._seconds(lambda: None) if module is speed else decoding._seconds(stand_in(), nothing, None)) == 2.5


@pytest.mark.parametrize(
    ("count", "held_out"), [(2, [1]), (3, [2]), (4, [3]), (5, [3]), (7, [3]), (8, [3, 7]), (9, [3, 7])]
)
def test_every_fourth_window_is_held_out(count: int, held_out: list[int]) -> None:
    """Of fewer than four the last; never all, never none."""
    assert [index for index in range(count) if repair._is_held_out(index, count)] == held_out


def test_the_steps_of_a_repair_fall_to_zero(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of eight windows, two of them held out, moves weights by a hundredth of their size."""
    rates: list[float] = []
    moved: list[tuple[float, float]] = []
    train = repair.Attempt.train

    def noted(self: repair.Attempt, inputs: LayerInput, rate: float) -> None:
        before = [part.values.detach().clone() for part in self._parts.values()]
        train(self, inputs, rate)
        if not rates:
            moved.extend(
                (float((part.values.detach() - old).abs().median()), rate * float(old.square().mean().sqrt()))
                for part, old in zip(self._parts.values(), before, strict=True)
            )
        rates.append(rate)

    monkeypatch.setattr(repair.Attempt, "train", noted)
    windows = [text_tokens(tiny, 400)[start : start + 48] for start in range(0, 384, 48)]
    repaired = repair.repair_plan(tiny, Plan.for_model(tiny, {"window(left=4, right=0)": "L1"}), windows, silent)
    assert rates == pytest.approx([0.01 * (6 - index) / 6 for index in range(6)])
    assert repaired.tokens == 8 * 48
    for step, wanted in moved:  # Adam's first step has the same size everywhere
        assert step == pytest.approx(wanted, rel=1e-2)
    assert len(moved) == 3


def test_the_rows_of_a_shared_cache_are_trained_where_all_its_heads_are_swapped(tiny: Model) -> None:
    site = tiny.sites[1]
    size = site.n_heads // site.n_kv_heads
    whole = SwappedSite(site, dict.fromkeys(range(size), Window(4)))
    partly = SwappedSite(site, dict.fromkeys(range(1, size), Window(4)))
    assert [letter for letter in repair._input_rows(tiny, whole)] == ["q", "k", "v"]
    assert [letter for letter in repair._input_rows(tiny, partly)] == ["q"]
    assert repair._input_rows(tiny, whole)["k"][1] == (0,)


@pytest.mark.parametrize(
    "accepted",
    [
        Params(budget="100%"),
        Params(budget="1%", recall="99%"),
        Params(replace=("L0=dense",), lengths=(16,)),
        Params(replace=("L0=dense",), repair=256),
        Params(replace=("L0=dense",), export="flex"),
        Params(replace=("L0=dense",), export="masks.py"),
        Params(budget="1%", minutes=0.01),
        Params(budget=" 1.5 % "),
    ],
)
def test_settings_at_their_ends_are_accepted(accepted: Params) -> None:
    accepted.check()
    assert accepted.allowed == pytest.approx({"100%": 1.0, "1%": 0.01, " 1.5 % ": 0.015, "": 0.0}[accepted.budget])


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (Params(budget="1%", recall="100%"), "no percentage above 0 % and below 100 %"),
        (Params(budget="1%", recall="0%"), "no percentage"),
        (Params(replace=("L0=dense",), lengths=(64, 15)), "at least 16"),
        (Params(replace=("L0=dense",), repair=255), "at least 256"),
        (Params(replace=("L0=dense",), export="masks"), "cannot export"),
        (Params(budget="1% or so"), "no percentage"),
    ],
)
def test_settings_beyond_their_ends_are_refused(refused: Params, message: str) -> None:
    with pytest.raises(hs.errors.UsageError, match=message):
        refused.check()
