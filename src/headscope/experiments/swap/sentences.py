"""What a swap showed, in sentences made of its numbers."""

from typing import Any

import polars as pl

from headscope.core import Headline
from headscope.experiments.swap.leak import ModelLeak
from headscope.experiments.swap.repair_tables import repair_headline
from headscope.lenses.shared.effects import ratio_effect, share_effect

Row = dict[str, Any]


def headlines(tables: dict[str, pl.DataFrame], leak: ModelLeak, text_name: str) -> tuple[Headline, ...]:
    """Quality, speed, heads, and whether anything leaks."""
    quality = tables["quality"].to_dicts()[-1]  # of the repaired plan, if there is one
    recall = _recall(tables["recall"]) if "recall" in tables else ()
    repair = (repair_headline(tables["repair"], tables["repair_layers"], text_name),) if "repair" in tables else ()
    return (
        _quality(quality, text_name, "frontier" if "frontier" in tables else ""),
        _speed(tables["speed"]),
        *(_decoding(tables["decoding"]) if "decoding" in tables else ()),
        _heads(tables["heads"]),
        *repair,
        *recall,
        _leak(leak),
    )


def encoder_headlines(tables: dict[str, pl.DataFrame], text_name: str) -> tuple[Headline, ...]:
    """Embeddings, speed and heads of an encoder."""
    embeddings = tables["embeddings"].to_dicts()[-1]
    figure = "frontier" if "frontier" in tables else ""
    return (_embeddings(embeddings, text_name, figure), _speed(tables["speed"]), _heads(tables["heads"]))


def _embeddings(row: Row, text_name: str, figure: str) -> Headline:
    texts = f"{row['windows']} text{'' if row['windows'] == 1 else 's'}"
    return Headline(
        full=f"At {row['tokens']} tokens, the embeddings of {texts} of {text_name} keep a cosine of "
        f"{row['cosine']:.4f} with the original's on average, and of {row['cosine_least']:.4f} at least.",
        short=f"At {row['tokens']} tokens every embedding keeps a cosine of at least {row['cosine_least']:.4f}.",
        effect=share_effect(row["cosine_least"], 1.0),
        answer="least cosine with the original's embedding",
        value=f"{row['cosine_least']:.4f}",
        null="1",
        figure=figure,
    )


def _quality(row: Row, text_name: str, figure: str) -> Headline:
    change = 100 * (row["ratio"] - 1)
    windows = f"{row['windows']} window{'' if row['windows'] == 1 else 's'}"
    interval = (
        "one window gives no interval"
        if row["ratio_low"] is None
        else f"95 % interval {row['ratio_low']:.4f} to {row['ratio_high']:.4f}"
    )
    return Headline(
        full=f"At {row['tokens']} tokens, perplexity on {text_name} is {row['ratio']:.4f} times the original's "
        f"({interval}, over {windows}); the predictions move by {row['kl']:.4f} nats per token, and the likeliest "
        f"token is the same for {100 * row['agreement']:.1f} % of tokens.",
        short=f"At {row['tokens']} tokens the plan changes perplexity by {change:+.2f} %.",
        effect=ratio_effect(row["ratio"], 1.0),
        answer="perplexity over the original's",
        value=f"{row['ratio']:.4f}",
        null="1",
        figure=figure,
    )


def _speed(speed: pl.DataFrame) -> Headline:
    rows = speed.filter(pl.col("which") == "plan").to_dicts()
    row = rows[-1]
    return Headline(
        full=f"A prefill of {row['tokens']} tokens is {row['speedup']:.2f} times as fast as the original's (median of "
        f"{row['turns']} turns, {row['speedup_least']:.2f} to {row['speedup_most']:.2f}).",
        short=f"A prefill of {row['tokens']} tokens is {row['speedup']:.2f} times as fast.",
        effect=ratio_effect(row["speedup"], 1.0),
        answer="speed-up of the prefill",
        value=f"{row['speedup']:.2f}",
        null="1",
        figure="speed" if len(rows) > 1 else "",
    )


def _decoding(decoding: pl.DataFrame) -> tuple[Headline, ...]:
    original, row = decoding.to_dicts()[-2:]
    megabytes = [ways["cache_bytes"] / 1e6 for ways in (original, row)]
    return (
        Headline(
            full=f"After {row['tokens']} tokens the cache takes {megabytes[1]:.1f} MB, the original's "
            f"{megabytes[0]:.1f} MB, and a token comes {row['faster']:.2f} times as fast "
            f"({row['tokens_per_second']:.1f} per second; median of {row['turns']} turns, {row['faster_least']:.2f} to "
            f"{row['faster_most']:.2f}).",
            short=f"After {row['tokens']} tokens the cache takes {100 * row['cache_share']:.0f} % of the original's.",
            effect=ratio_effect(row["cache_share"], 1.0),
            answer="bytes of cache over the original's",
            value=f"{100 * row['cache_share']:.1f} %",
            null="100 %",
            figure="decoding" if len(decoding) > 2 else "",
        ),
    )


def _heads(heads: pl.DataFrame) -> Headline:
    replaced = heads.filter(pl.col("mechanism") != "original")
    share = float(heads["share"].mean() or 0.0)  # type: ignore[arg-type]  # a column of numbers
    kinds = replaced["mechanism"].n_unique()
    return Headline(
        full=f"{len(replaced)} of {len(heads)} heads attend through {kinds} cheaper "
        f"mechanism{'' if kinds == 1 else 's'}; all heads together compute {100 * share:.1f} % of the original's pairs "
        "of queries and keys.",
        short=f"{len(replaced)} of {len(heads)} heads are replaced.",
        # It says what the plan is; what the plan does is quality and speed.
        answer="pairs computed",
        value=f"{100 * share:.1f} %",
        null="100 %",
        figure="heads",
    )


def _recall(recall: pl.DataFrame) -> tuple[Headline, ...]:
    """Recall over the tasks that the original can do, and which it cannot."""
    able = recall.filter("counts")
    unable = recall.filter(~pl.col("counts")).select("task", "tokens").unique(maintain_order=True)
    names = ", ".join(f"{task} at {n} tokens" for task, n in unable.iter_rows())
    left_out = f" Left out, since the original itself gets less than 80 % right: {names}." if names else ""
    if not len(able):
        text = f"Recall says nothing about this plan.{left_out}"
        return (Headline(full=text, short="The original solves no task of recall."),)
    trials, original, plan = (int(able[name].sum()) for name in ("trials", "original", "plan"))
    return (
        Headline(
            full=f"Of {trials} facts hidden in texts, the original finds {original} and the plan {plan}.{left_out}",
            short=f"The plan finds {plan} of {trials} hidden facts, the original {original}.",
            effect=share_effect(plan / trials, original / trials),
            answer="hidden facts found",
            value=f"{plan} of {trials}",
            null=f"{original} of {trials}",
        ),
    )


def _leak(leak: ModelLeak) -> Headline:
    outcome = (
        "no prediction before them changes" if leak.is_clean else "PREDICTIONS BEFORE THEM CHANGE: the plan looks ahead"
    )
    return Headline(
        full=f"With other tokens in the last third of a window, {outcome} (largest change {leak.change:.1e} of the "
        f"largest logit; up to {leak.allowed:.1e} counts as rounding).",
        short="Nothing leaks from the future." if leak.is_clean else "The plan looks into the future.",
    )
