"""The few-shot study: labels of the prompt, measures on planted maps, scores, and the whole on the embedded model."""

from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
import torch

import headscope
from headscope.cli import main
from headscope.corpora.crossword_clues import Clue, category_named
from headscope.errors import UsageError
from headscope.experiments.fewshot.experiment import EXPERIMENT
from headscope.experiments.fewshot.likelihood import Circle, clue_scores, log_probabilities, most_shots
from headscope.experiments.fewshot.measures import (
    DIVIDED,
    MASSES,
    NEAR,
    equal_distance,
    masses,
    measured,
    nearness,
    shapes,
    shares,
    uniform_pattern,
)
from headscope.experiments.fewshot.prompt import Labels, Part, built, labelled, written
from headscope.experiments.fewshot.settings import Params
from headscope.experiments.fewshot.states import captured
from headscope.experiments.fewshot.writing import judged
from headscope.model.model import Model, open_model

SHOTS = [Clue("Parrot", "It says what you said."), Clue("Owl", "Wise face.")]


def spoken(messages, tokenize, add_generation_prompt):
    text = "".join(f"<{one['role']}>{one['content']}</>" for one in messages)
    return f"<system>Ok, help.</>{text}" + ("<assistant>" if add_generation_prompt else "")


CHAT = SimpleNamespace(apply_chat_template=spoken)


@pytest.mark.parametrize("tokenizer", [None, CHAT], ids=["plain", "chat template"])
def test_the_parts_of_a_prompt_are_found(tokenizer):
    text, spans = written(tokenizer, "Animals", SHOTS, "Ant", "Small worker.")
    offsets = [(at, at + 1) for at in range(len(text))]  # a token per character
    labels = labelled(text, spans, offsets)

    def labelled_words(part, shot):
        chosen = (labels.part == part) & (labels.shot == shot)
        return "".join(text[at] for at in torch.nonzero(chosen).flatten().tolist()).split()

    for number, (word, clue) in enumerate(
        [("Parrot", SHOTS[0].clue), ("Owl", SHOTS[1].clue), ("Ant", "Small worker.")]
    ):
        assert labelled_words(Part.WORD, number) == [word]
        assert labelled_words(Part.CLUE, number) == clue.split()
    assert "".join(labelled_words(Part.CONTEXT, -1)).endswith("Ok")
    assert text[-1:] in (">", ".")
    words = labels.word[labels.content]
    assert words.unique().tolist() == list(range(1 + 5 + 1 + 2 + 1 + 2))
    assert (words.diff() >= 0).all()
    assert (labels.word[~labels.content] == -1).all()


def test_templates_that_refuse_or_forget():
    def refuse(messages, tokenize, add_generation_prompt):
        raise ValueError("no system role")

    with pytest.raises(UsageError, match="refuses a conversation of 7 turns: no system role"):
        written(SimpleNamespace(apply_chat_template=refuse), "Animals", SHOTS, "Ant")
    forgetful = SimpleNamespace(apply_chat_template=lambda messages, **_: messages[-1]["content"])
    with pytest.raises(UsageError, match="does not write the turn 'You are a crossword"):
        written(forgetful, "Animals", SHOTS, "Ant")


def test_tokens_of_the_embedded_model_are_labelled(tiny):
    prompt = built(tiny, "Animals", SHOTS, "Ant", "Small worker.")
    assert prompt.words == (
        "Parrot", "It", "says", "what", "you", "said.", "Owl", "Wise", "face.", "Ant", "Small", "worker."
    )  # fmt: skip
    assert prompt.labels.part[0] == Part.CONTEXT
    assert len(prompt.pieces) == len(prompt.tokens) == len(prompt.labels.part)
    assert prompt.text.startswith("[INST] You are a crossword clue generator")


def planted(clue=3):
    """Context, then three shots of a word (2 tokens), a separator and a clue, a separator behind each."""
    part = [Part.CONTEXT] * 3 + [Part.WORD, Part.WORD, Part.SEPARATOR, *[Part.CLUE] * clue, Part.SEPARATOR] * 3
    shot = [-1] * 3 + [number for number in range(3) for _ in range(clue + 4)]
    word = [-1] * 3
    for number in range(3):
        word += [2 * number, 2 * number, -1, *[2 * number + 1] * clue, -1]
    return Labels(torch.tensor(part), torch.tensor(shot), torch.tensor(word))


def test_the_mass_is_divided_without_rest(tiny):
    prompt = built(tiny, "Animals", SHOTS, "Ant", "Small worker.")
    for pattern in captured(tiny, prompt).values():
        total = masses(pattern, prompt.labels)[:, : len(DIVIDED)].sum(-1)
        torch.testing.assert_close(total, torch.ones_like(total), atol=1e-6, rtol=0)


def test_planted_mass_is_found():
    labels = planted()
    n = len(labels.part)
    pattern = torch.zeros(1, n, n, dtype=torch.float64)
    pattern[:, :, 0] = 0.25
    for i in torch.nonzero(labels.content & (labels.shot >= 1)).flatten().tolist():
        own = torch.nonzero((labels.shot == labels.shot[i]) & (labels.part == Part.WORD)).flatten()
        earlier = torch.nonzero((labels.shot == labels.shot[i] - 1) & (labels.part == Part.CLUE)).flatten()
        others = own[own < i] if bool((own < i).any()) else torch.tensor([i])  # causal: the first has only itself
        pattern[0, i, others] += 0.4 / len(others)
        pattern[0, i, earlier] += 0.2 / len(earlier)
        pattern[0, i, i] += 0.1
        pattern[0, i, 5] += 0.04
        pattern[0, i, 1] += 0.01
    found = dict(zip(MASSES, masses(pattern, labels)[0].tolist(), strict=True))
    # One row of five is the first token of a word.
    expected = {
        "self": 0.1 + 0.4 / 5,
        "inside": 0.4 * 4 / 5,
        "across": 0.2,
        "separators": 0.04,
        "context": 0.01,
        "first": 0.25,
    }
    assert found == pytest.approx(expected | {"target": 0.4})
    assert float(shares(masses(pattern, labels))[0]) == pytest.approx(0.32 / 0.52)
    near = measured(pattern, labels).near[0]
    assert float(near[MASSES.index("target")]) < 0.3, "at the same distance others get less"
    assert float(near[MASSES.index("first")]) == pytest.approx(0.25)


def distances(n: int) -> torch.Tensor:
    return torch.arange(n)[:, None] - torch.arange(n)[None, :]


@pytest.mark.parametrize("decay", [0.7, 0.95, 1.0])
def test_nearness_explains_a_local_map(decay):
    """A map that knows only distances is its own null: inside, across and target, and 1 at equal distance."""
    labels = planted(clue=8)  # long enough that other tokens stand at every distance of a word
    distance = distances(len(labels.part))
    local = torch.where(distance >= 0, decay ** distance.clamp_min(0), 0.0).double()[None] * 0.01
    found = masses(local, labels)[:, [MASSES.index(name) for name in NEAR]]
    torch.testing.assert_close(nearness(local, labels), found)
    assert float(equal_distance(local[0], labels)) == pytest.approx(1.0)


def test_a_border_is_found_beyond_nearness():
    """Every weight on the own shot is doubled: twice at equal distance, and more inside than nearness gives."""
    labels = planted(clue=8)
    distance = distances(len(labels.part))
    local = torch.where(distance >= 0, 0.8 ** distance.clamp_min(0), 0.0).double()[None] * 0.01
    doubled = local * (1 + (labels.shot[:, None] == labels.shot[None, :]).double())
    assert float(equal_distance(doubled[0], labels)) == pytest.approx(2.0)
    one = measured(doubled, labels)
    assert float(shares(one.masses)[0]) > float(shares(one.near)[0]) + 0.005


def test_diagonals_of_known_maps(tiny):
    labels = planted()
    n = len(labels.part)
    assert shapes(torch.eye(n), labels).tolist()[:3] == [1.0, 1.0, 1.0]
    shift = torch.diag(torch.ones(n - 1), -1) * 0.75 + torch.eye(n) * 0.25
    tokens, words, dominant = shapes(shift, labels).tolist()[:3]
    assert 0.25 < tokens < 0.6
    assert tokens < words
    assert 0 < dominant <= 1
    assert float(uniform_pattern(tiny.sites[0], n).sum()) == pytest.approx(n)


def test_one_forward_scores_every_number_of_shots(tiny):
    """Against a prompt of its own for each word and each number of shots."""
    circle = Circle.of(category_named("food"), 5, seed=1)
    found = log_probabilities(tiny, circle, 3, range(5), lambda done, total: None)
    for index, shots in ((0, 0), (2, 1), (4, 3), (1, 2)):
        one = circle.clues[index]
        prompt = built(tiny, circle.category, [*circle.shots(index, shots), one])
        assert clue_scores(tiny, prompt)[-1] == pytest.approx(float(found[index, shots]), abs=1e-5)
    assert found.shape == (5, 4)


def test_scores_are_those_of_the_tokens_of_the_clue(tiny):
    """Token by token: each one from the logits of the position before it."""
    prompt = built(tiny, "Animals", SHOTS)
    with torch.no_grad():
        logits = tiny.hf(input_ids=prompt.tokens[None]).logits[0].double()
    for shot, found in enumerate(clue_scores(tiny, prompt)):
        places = [
            at
            for at in range(len(prompt.tokens))
            if prompt.labels.part[at] == Part.CLUE and prompt.labels.shot[at] == shot
        ]
        assert "".join(prompt.pieces[at] for at in places) == SHOTS[shot].clue.replace(" ", "")
        by_hand = [float(torch.log_softmax(logits[at - 1], -1)[prompt.tokens[at]]) for at in places]
        assert found == pytest.approx(sum(by_hand) / len(by_hand), abs=1e-4)


@pytest.mark.parametrize("words", [10, 12, 17, 18, 30])
def test_exchanged_shots_do_not_hold_the_answer(words):
    clues = tuple(Clue(f"w{index}", f"c{index}") for index in range(words))
    circle = Circle("letters", clues)
    other = circle.exchanged(8)
    for index in range(words):
        target, shots = other.clues[index], other.shots(index, 8)
        true = next(clue.word for clue in clues if clue.clue == target.clue)
        assert true != target.word
        assert true not in {shot.word for shot in shots}
    with pytest.raises(UsageError, match="too few to exchange"):
        Circle("letters", clues[:9]).exchanged(8)


def test_words_are_exchanged_and_clues_stay():
    circle = Circle.of(category_named("music"), None, seed=0, first="Tuba")
    other = circle.exchanged()
    assert circle.clues[0].word == "Tuba"
    assert [one.clue for one in other.clues] == [one.clue for one in circle.clues]
    assert all(a.word != b.word for a, b in zip(circle.clues, other.clues, strict=True))
    assert circle.shots(0, 2) == [circle.clues[-2], circle.clues[-1]]
    assert circle.row(len(circle.clues) - 1, 2) == [circle.clues[-1], circle.clues[0]]


def test_what_is_counted_about_a_clue():
    found = judged("Ant", 3, " It says what an ant says.# More", [SHOTS[0].clue])
    assert (found.clue, found.ended, found.names_word, found.copied) == ("It says what an ant says.", True, True, False)
    assert judged("Bee", 3, "Well, it says what you said.\nNew", [SHOTS[0].clue]).copied
    assert not judged("Bee", 3, "Small one.\nMore#", []).ended


def test_the_study_on_the_embedded_model(tiny):
    before = {name: tensor.clone() for name, tensor in tiny.hf.named_parameters()}
    options = {"category": "animals", "word": "ant", "shots": 2, "words": 10, "clues": 1, "alphas": ("1/2",)}
    run = headscope.fewshot(tiny, **options, initialised=False)
    finding = run["fewshot"]
    assert set(finding.tables) == {"shots", "clues", "quality", "states", "layers", "heads"}
    shots = finding.tables["shots"]
    assert shots["shots"].to_list() == list(range(9))
    assert shots["gain"][0] == 0.0
    assert (shots["log_probability_low"] <= shots["log_probability"]).all()
    assert finding.tables["clues"]["word"].to_list() == ["Ant"]
    assert finding.tables["states"]["state"].to_list() == ["original", "α = 1/2"]
    layers = finding.tables["layers"]
    assert layers.height == len(tiny.sites) * (len(MASSES) + 6)
    assert finding.tables["heads"].height == sum(site.n_heads for site in tiny.sites) * len(MASSES)
    assert all("nan" not in line.split() and line.endswith(".") for line in map(str, finding.headlines)), (
        finding.headlines
    )
    assert all(len(headline.short.split()) <= 20 for headline in finding.headlines), finding.headlines
    assert all(headline.effect is None or 0 <= headline.effect <= 1 for headline in finding.headlines)
    for quantity in finding.quantities:
        rows = finding.tables[quantity.table].filter(pl.col("quantity") == quantity.where["quantity"])
        assert rows.height == sum(site.n_heads for site in tiny.sites)
        assert quantity.null in rows.columns
    assert {figure.name for figure in finding.figures} >= {"shots", "maps_all_layers", "maps_states", "map_word_L0"}
    assert all(torch.equal(before[name], tensor) for name, tensor in tiny.hf.named_parameters())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"category": "beasts"}, "no category"),
        ({"word": "Unicorn"}, "has no word"),
        ({"words": 9}, "at least 10 are needed"),
        ({"words": 900}, "has 56 words"),
        ({"shots": 0}, "between 1 and 8"),
        ({"clues": -1}, "cannot be negative"),
        ({"alphas": ("x",)}, "x"),
        ({"layers": "Q3"}, "cannot read"),
    ],
)
def test_wrong_settings_say_so_before_a_model_is_opened(wrong, message):
    with pytest.raises(UsageError, match=message):
        EXPERIMENT.check(Params(**wrong))


def test_models_that_cannot_take_part(tiny):
    mute = open_model(tiny.hf)
    with pytest.raises(UsageError, match="comes without a tokenizer"):
        headscope.fewshot(mute)
    headless = open_model(tiny.hf.model, tokenizer=tiny.tokenizer)
    with pytest.raises(UsageError, match="predicts the next token"):
        headscope.fewshot(headless)
    with pytest.raises(UsageError, match="matches no head"):
        headscope.fewshot(tiny, layers="L99")
    circle = Circle.of(category_named("animals"), 9, seed=0)
    one_shot = len(built(tiny, "Animals", list(circle.clues[:2])).tokens)
    short = Model(tiny.hf, tiny.tokenizer, replace(tiny.spec, context=one_shot + 60), tiny.sites, None)
    assert 1 <= most_shots(short, circle) < 8
    with pytest.raises(UsageError, match="one shot needs"):
        most_shots(short, circle, room=100)
    with pytest.raises(UsageError, match="too few for 8 shots"):
        most_shots(tiny, Circle("Animals", tuple(SHOTS)))


def test_the_command_says_what_is_wrong(capsys):
    for words, message in (
        (["--category", "beasts"], "there is no category 'beasts'"),
        (["--word", "Unicorn"], "has no word 'Unicorn'"),
        (["--layers", "Q3"], "cannot read 'Q3'"),
        (["--alpha", "0"], "factor above 0"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["study", "fewshot", "tiny", *words])
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
