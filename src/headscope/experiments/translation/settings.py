"""What can be chosen for the experiment `translation`."""

from dataclasses import dataclass, field, fields
from enum import StrEnum

from headscope.errors import UsageError
from headscope.experiments.command import Command
from headscope.experiments.training_clock import Clock

COMMAND = Command(
    path=("study", "translation"),
    help=(
        "Train a translator on a parallel text, and judge it on held-out pairs.\n\n"
        "BLEU and chrF of greedy decoding and beam search, next to the translation of the nearest training sentence, "
        "overall and by distance to the training text. With --variants also other networks with the same budget: "
        "heads, layers, initialisation, recurrent ancestors. A study that was stopped goes on when the same command "
        "runs again."
    ),
    examples=(
        "headscope study translation --pair en-it --minutes 20 --out out/en-it",
        "headscope study translation --pair pairs.tsv --network lstm --score bahdanau --vocabulary 4000",
        "headscope study translation --variants --minutes 20 --out out/variants",
    ),
    tables=("scores", "losses", "translations", "sizes", "variants", "heads", "pruning", "spared"),
    default_out="headscope-translation",
    makes_model=True,
)


VARIED_HEADS = (1, 8)


class Network(StrEnum):
    """What translates."""

    TRANSFORMER = "transformer"
    LSTM = "lstm"
    GRU = "gru"


class Score(StrEnum):
    """How the decoder of a recurrent network scores the states of its encoder."""

    NONE = "none"
    BAHDANAU = "bahdanau"
    LUONG_DOT = "luong_dot"
    LUONG_GENERAL = "luong_general"


class Initialisation(StrEnum):
    """How queries, keys and values of a transformer begin."""

    XAVIER = "xavier"
    IDENTITY = "identity"
    DIAGONAL = "diagonal"
    SPARSE = "sparse"


class Precision(StrEnum):
    """What the products of a training step are computed in; weights and validation are float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class Params:
    """Which text and network, how it is trained, and how it is judged."""

    pair: str = field(
        default="en-it",
        metadata={
            "help": "a parallel text: two languages (en-it, de-fr; `headscope data` lists them), a file with two "
            "columns (pairs.tsv), or two files (a.en,a.it)",
            "metavar": "PAIR",
        },
    )
    network: Network = field(default=Network.TRANSFORMER, metadata={"help": "what translates"})
    score: Score = field(
        default=Score.BAHDANAU, metadata={"help": "attention of a recurrent network; a transformer has its own"}
    )
    layers: int = field(default=3, metadata={"help": "layers of the encoder, and of the decoder", "min": 1})
    heads: int = field(default=4, metadata={"help": "heads of a layer of a transformer", "min": 1})
    width: int = field(
        default=256,
        metadata={"help": "numbers of a token's vector; the feed-forward part has four times as many", "min": 1},
    )
    initialisation: Initialisation = field(
        default=Initialisation.XAVIER, metadata={"help": "of queries, keys and values of a transformer"}
    )
    vocabulary: int = field(default=7000, metadata={"help": "tokens that both languages share", "min": 260})
    longest: int = field(default=256, metadata={"help": "most tokens of a sentence", "min": 8})
    dropout: float = field(default=0.1, metadata={"help": "share of channels that are dropped in training"})
    agreement: float = field(
        default=0.0,
        metadata={
            "help": "above 0, each batch is read twice under other dropout, and predictions that differ cost so much "
            "(R-Drop): better with little text and a long training"
        },
    )
    precision: Precision = field(
        default=Precision.FLOAT32,
        metadata={"help": "of the products in training; bfloat16 is faster where the processor has it"},
    )
    minutes: float = field(default=20.0, metadata={"help": "minutes of training, for each network"})
    clock: Clock = field(
        default=Clock.WALL, metadata={"help": "minutes of time, or of the processor where others use the machine too"}
    )
    steps: int | None = field(
        default=None, metadata={"help": "end after so many steps, if that comes first. Default: no limit", "min": 1}
    )
    batch: int = field(default=2000, metadata={"help": "tokens of a step, padding included", "min": 16})
    rate: float = field(default=1e-3, metadata={"help": "peak of the learning rate"})
    warmup: int = field(default=400, metadata={"help": "steps until the learning rate has its peak"})
    beam: int = field(default=4, metadata={"help": "width of the beam search", "min": 1})
    judged: int | None = field(
        default=None,
        metadata={"help": "translate so many pairs of the split test, drawn at random. Default: all", "min": 2},
    )
    maps: int = field(default=2, metadata={"help": "test sentences whose attention maps are drawn"})
    variants: bool = field(
        default=False, metadata={"help": "also train other networks, each with the same budget, and compare them"}
    )
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn at random"})

    def check(self) -> None:
        """Refuse a text that does not exist, sizes that do not fit, and numbers that train nothing."""
        from headscope.corpora.parallel.pair_argument import check_pair_spelling, parse_pair_spelling
        from headscope.networks.choices import check_choices
        from headscope.training.recipe import Budget, Rate, check_range

        check_pair_spelling(self.pair)
        name, split = parse_pair_spelling(self.pair)
        if split is not None:
            raise UsageError(
                f"the study needs all splits of a text, and {self.pair} is one split", hint=f"name the whole: {name}"
            )
        for setting in fields(self):
            least, number = setting.metadata.get("min"), getattr(self, setting.name)
            if least is not None and number is not None and number < least:
                raise UsageError(f"{setting.name} is at least {least}, got {number}")
        check_range("minutes", self.minutes, above=0.0)  # a budget alone may be infinite
        Budget(minutes=self.minutes, steps=self.steps)
        Rate(self.rate, self.warmup)
        check_range("agreement", self.agreement, least=0.0)
        sizes = {"hidden_size": self.width, "dropout": self.dropout}
        check_choices(sizes)
        for heads in self._numbers_of_heads():
            check_choices({"num_attention_heads": heads, "hidden_size": self.width})
        if self.batch < 2 * self.longest:
            raise UsageError(
                f"a step of {self.batch} tokens has no room for two sentences of {self.longest} tokens",
                hint="raise --batch, or lower --longest",
            )

    def _numbers_of_heads(self) -> set[int]:
        """The numbers of heads of all transformers of the study."""
        main = {self.heads} if self.network is Network.TRANSFORMER or self.variants else set()
        return main | (set(VARIED_HEADS) if self.variants else set())
