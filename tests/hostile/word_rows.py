"""Command lines: selections, changes, mechanisms, numbers and names that make no sense."""

from tests.hostile.row import Row, words

INTERVENE = ("intervene", "tiny")
DRAW = ("mechanisms", "--draw")
FEWSHOT = ("study", "fewshot", "tiny")
LENS = ("lens", "focus", "tiny")
REPORT = ("report", "tiny")


def selections(**rows: tuple[str, str]) -> list[Row]:
    spelled = {f"selection-{name.replace('_', '-')}": (*INTERVENE, "--at", *row) for name, row in rows.items()}
    return words("selection that cannot be read", 2, spelled)


def mechanisms(kind: str, **rows: tuple[str, str]) -> list[Row]:
    return words(kind, 2, {f"mechanism-{name.replace('_', '-')}": (*DRAW, *row) for name, row in rows.items()})


def numbers(prefix: tuple[str, ...], option: str, **rows: tuple[str, str]) -> list[Row]:
    named = {f"{option.strip('-')}-{name.replace('_', '-')}": (*prefix, option, *row) for name, row in rows.items()}
    return words(f"number for {option}", 2, named)


ROWS: list[Row] = [
    *selections(
        empty=("", "cannot read ''"),
        blank=("  ", "cannot read ''"),
        comma=(",", "cannot read ''"),
        hole=("L1,,L2", "cannot read ''"),
        letters_only=("L", "cannot read 'L'"),
        negative=("L-1", "cannot read 'L-1'"),
        backwards=("L5-2", "the range 5-2 runs backwards"),
        open_range=("L1-", "cannot read 'L1-'"),
        float_layer=("L1.5", "cannot read 'L1.5'"),
        small_letter=("l1", "cannot read 'l1'"),
        head_first=("H1.L0", "cannot read 'H1.L0'"),
        code=("__import__('os')", "cannot read"),
        huge_number=("L99999999999999999999", "more than 4 digits"),
        huge_range=("L0-99999999999", "more than 4 digits"),
        digits_beyond_python=("L" + "9" * 5000, "more than 4 digits"),
        many_parts=("L0," * 2000, "a selection of 2001 parts"),
        long=("x" * 100_000, "cannot read"),
        zero_byte=("L\0", "cannot read"),
        escape=("\x1b[2JL0", "cannot read"),
        beyond_the_model=("L99", "matches no head of this model"),
        cross_in_a_decoder=("dec.cross", "matches no head of this model"),
        beyond_the_heads=("L0.H99", "matches no head of this model"),
    ),
    *mechanisms(
        "mechanism that cannot be read",
        empty=("", "cannot read the mechanism ''"),
        open_bracket=("window(", "cannot read the mechanism"),
        twice_called=("dense()()", "cannot read the mechanism"),
        code=("__import__('os').system('touch pickle_was_run')", "cannot read the mechanism"),
        attribute=("dense.name", "cannot read the mechanism"),
        a_number=("7", "cannot read the mechanism"),
        nested=("(" * 5000 + ")" * 5000, "cannot read the mechanism"),
        long=("window(left=" + "1" * 20_000 + ")", "cannot read the mechanism"),
        zero_byte=("win\0dow", "cannot read the mechanism"),
        unknown=("nope", "there is no mechanism 'nope'"),
    ),
    *mechanisms(
        "parameters that a mechanism does not take",
        unknown_parameter=("window(x=1)", "window has no parameter 'x'"),
        by_place=("window(256)", "parameters are given by name"),
        unpacked=("window(**{'left': 1})", "parameters are given by name"),
        twice=("window(left=1, left=2)", "left is given twice"),
        computed=("window(left=10**9)", "left must be a number"),
        called=("window(left=open('x'))", "left must be a number"),
        a_text=("window(left='a')", "window(left='a')"),
        negative=("window(left=-5)", "at least 0, got -5"),
        block_zero=("bigbird(block=0)", "block must be at least 1, got 0"),
        rank_zero=("linformer(rank=0)", "rank must be at least 1, got 0"),
        rank_negative=("low_rank(rank=-3)", "rank must be at least 1, got -3"),
        hidden_zero=("pooling(hidden=0)", "hidden must be at least 1, got 0"),
        digits_beyond_python=("window(left=" + "9" * 5000 + ")", "mechanism"),
    ),
    *words(
        "pictures of absurd size",
        2,
        {
            "picture-of-nothing": (*DRAW, "dense", "--n", "0", "expected at least 1, got"),
            "picture-negative": (*DRAW, "dense", "--n", "-1", "expected at least 1, got"),
            "picture-huge": (*DRAW, "dense", "--n", "100000000", "1 to 512 positions, got 100000000"),
            "picture-without-layers": (*DRAW, "dense", "--layers", "0", "expected at least 1, got"),
            "picture-of-a-billion-layers": (*DRAW, "dense", "--layers", "1000000000", "1 to 512 layers"),
        },
    ),
    *numbers(
        REPORT,
        "--seed",
        huge=(str(10**30), "Invalid value for"),
        negative=("-1", "Invalid value for"),
        a_word=("x", "Invalid value for"),
        a_float=("1.5", "Invalid value for"),
        hexadecimal=("0x10", "Invalid value for"),
        digits_beyond_python=("9" * 5000, "Invalid value for"),
    ),
    *numbers(
        LENS,
        "--window",
        zero=("0", "Invalid value for"),
        negative=("-3", "Invalid value for"),
        nan=("nan", "Invalid value for"),
    ),
    *numbers(LENS, "--first-tokens", zero=("0", "Invalid value for"), a_word=("many", "Invalid value for")),
    *numbers(
        ("lens", "spectra", "tiny"),
        "--bins",
        negative=("-5", "Invalid value for"),
        a_float=("2.5", "Invalid value for"),
    ),
    *numbers(
        INTERVENE,
        "--scale",
        nan=("nan", "a finite factor above 0, got nan"),
        infinite=("inf", "a finite factor above 0, got inf"),
        beyond_floats=("1e999", "a finite factor above 0"),
        zero=("0", "a finite factor above 0, got 0"),
        negative=("-2", "a finite factor above 0, got -2"),
        by_zero=("1/0", "cannot read the factor '1/0'"),
        two_slashes=("1/2/3", "cannot read the factor '1/2/3'"),
        a_word=("abc", "cannot read the factor 'abc'"),
        nothing=("", "cannot read the change 'scale '"),
    ),
    *numbers(
        INTERVENE,
        "--rank",
        zero=("0", "a rank is at least 1, got 0"),
        negative=("-1", "a rank is at least 1, got -1"),
        a_float=("1.5", "cannot read the rank '1.5'"),
        digits_beyond_python=("9" * 5000, "rank"),
    ),
    *words(
        "settings of an experiment",
        2,
        {
            "matrices-unknown": (*INTERVENE, "--matrices", "x", "cannot change the matrices 'x'"),
            "matrices-none": (*INTERVENE, "--matrices", "", "cannot change the matrices ''"),
            "randomise-unknown": (*INTERVENE, "--randomise", "x", "--randomise: cannot read 'x'"),
            "remove-unknown": (*INTERVENE, "--remove", "x", "--remove: cannot read 'x'"),
            "windows-none": (*INTERVENE, "--windows", "0", "Invalid value for"),
            "prompt-of-bytes": (*INTERVENE, "--prompt", "a \udcff b", "is not text"),
            "shots-too-many": (*FEWSHOT, "--shots", "9", "Invalid value for"),
            "category-unknown": (*FEWSHOT, "--category", "nope", "there is no category 'nope'"),
            "word-unknown": (*FEWSHOT, "--word", "nope", "has no word 'nope'"),
            "words-too-few": (*FEWSHOT, "--words", "3", "Invalid value for"),
            "alpha-a-word": (*FEWSHOT, "--alpha", "x", "cannot read the factor 'x'"),
            "layers-unreadable": (*FEWSHOT, "--layers", "L", "cannot read 'L'"),
            "heads-not-a-multiple": ("bench", "attention", "--heads", "8", "--kv-heads", "3", "must be a multiple"),
            "length-zero": ("bench", "attention", "--n", "0", "--n: '0' is no length"),
        },
    ),
    *words(
        "names that nothing has",
        2,
        {
            "command-unknown": ("reprot", "No such command 'reprot'"),
            "command-empty": ("", "No such command ''"),
            "lens-unknown": ("lens", "spectre", "tiny", "spectra"),
            "lens-of-report-unknown": ("report", "--lens", "spectre", "spectra"),
            "option-unknown": ("look", "tiny", "--nope", "No such option"),
            "option-without-value": ("report", "--seed", "requires an argument"),
            "argument-missing": ("look", "Missing argument"),
            "argument-too-many": ("look", "tiny", "tiny", "unexpected extra argument"),
            "format-unknown": ("models", "--format", "xml", "Invalid value for"),
            "claim-unknown": ("claims", "NOPE", "there is no claim 'NOPE'"),
            "claim-near": ("claims", "W-999", "there is no claim 'W-999'"),
            "index-unknown": ("index", "NOPE", "NOPE"),
            "data-unknown": ("data", "nope", "nor the name of a text"),
            "data-out-without-name": ("data", "--out", "x", "need the name of a text"),
            "figure-format-unknown": ("figures", "x", "--format", "gif", "Invalid value for"),
            "figures-of-nothing": ("figures", "nowhere", "it does not exist"),
            "figures-of-a-file": ("figures", "/etc/passwd", "it is a file"),
            "figures-of-a-long-name": ("figures", "x" * 300, "cannot be read"),
        },
    ),
]
