"""What the few-shot study asks, and how its numbers are to be read."""

from headscope.core import About

ABOUT = About(
    title="Attention in few-shot prompting",
    question="Where does attention go in a few-shot prompt, and what do the shots change?",
    definition=(
        "The prompt asks for a crossword clue: a context that tells the task, some shots (a word and its clue), and a "
        "target word. The turns are those of the model's chat template, or are marked by [INST] where it has none. "
        "Words and clues are the content; marks of the template, the label before a word and the # behind a clue are "
        "separators. All words of the category stand on a circle in random order, and the shots before a word are its "
        "neighbours.\n\n"
        "Log-probability: nats per token of the reference clue after k shots. Exchanged: the same clues, each behind "
        "another word, in the shots too; what k shots still gain then is form, style and topic, and the difference "
        "(word worth) is what the word tells about its clue.\n\n"
        "Mass: a row is a content token of the second shot on; its attention is divided among itself, the other "
        "content of its shot (inside), that of earlier shots (across), separators, context and the first token. "
        "Target: from a clue's tokens to its word. Means over rows, then heads, then words. The diagonal is that of "
        "the map averaged over heads, restricted to content, rows divided by their sum; at word level sub-words are "
        "summed on both sides."
    ),
    formulas=(
        r"\mathrm{gain}_k = \frac{1}{|W|} \sum_{w \in W} \frac{1}{|c_w|} \left[ \ln p(c_w \mid k\ \mathrm{shots}) - "
        r"\ln p(c_w \mid 0\ \mathrm{shots}) \right]",
        r"\mathrm{inside\ share} = \frac{\sum_{j \in S(i),\, j \neq i} p_{ij}}{\sum_{j \in S(i),\, j \neq i} p_{ij} + "
        r"\sum_{j \in \mathrm{earlier\ shots}} p_{ij}}, \qquad B_{IJ} = \sum_{i \in I} \sum_{j \in J} p_{ij}",
    ),
    reading=(
        "Uniform attention alone gives a small share to the own shot, and attention that knows nothing but nearness a "
        "large one: only what is beyond nearness speaks for shots as units. Mass says where a head reads, not what it "
        "makes of it. The log-probability says how expected the reference clue is; a model can find the right clue "
        "likelier and still write a poor one. Small models write poor clues: for them read the gain and the word "
        "worth, and take the written clues as a picture of the format that was learned."
    ),
    reference=(
        "Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of "
        "Gaussian Distributions, sections 8.1, 8.2, 8.4 and 8.5, Tables 8.1 and A.1 to A.3, Figures 8.4, 8.5, 8.7 to "
        "8.12 and A.1 to A.18. Exchanged labels: Min et al. (2022), Rethinking the role of demonstrations. Words and "
        "clues: written for headscope."
    ),
    columns={
        "shots": "examples before the target word",
        "log_probability": "of the reference clue, nats per token, mean over words; _low and _high: 95 % interval",
        "gain": "log-probability less that without shots, paired by word, with its interval",
        "exchanged": "log-probability of the same clues, each behind another word, in the shots too",
        "word_worth": "log-probability less exchanged, paired by word, with its interval",
        "uniform": "the null: every token equally likely (shots), attention uniform over the visible keys (layers, "
        "heads)",
        "words": "words in the mean",
        "stack, kind, layer, head": "where; head is empty where the row is about the whole layer",
        "quantity": (
            "self, inside, across, separators, context, first: parts of the mass of a row, which add up to 1 but for a "
            "learned sink; target: from a clue to its word; inside_share: inside over inside and across; "
            "diagonal_tokens, diagonal_words: share of a row of the drawn map on its diagonal; dominant_words: share "
            "of its rows whose diagonal is at least one half; equal_distance: weight of a token of the own shot over "
            "that of one in an earlier shot that is as far away; largest: the largest weight of the drawn map at token "
            "level"
        ),
        "value, low, high": "mean over words and heads, with the 95 % interval over words",
        "nearness": (
            "what the same maps give for nearness alone: every weight replaced by the mean of those between words and "
            "clues at the same distance (target: of those that are not between a clue and its word)"
        ),
        "beyond_low, beyond_high": "95 % interval of value less nearness, paired by word",
        "initialised": "the same in the freshly initialised model",
        "word, reference": "the target and its shipped clue; beside it what the model wrote, greedily",
        "which": "after how many shots the clues were written; reference: the shipped clues",
        "clues, ended": "how many, and the share that ends with the mark that the context asks for",
        "names_word": "share that contains the word itself, which a clue must not",
        "copied": "share with four words in a row from a clue of the shots",
        "distinct": "different clues over clues",
        "length": "words per clue",
        "state, clue": "the state of the model, and what it wrote for the chosen word",
        "after_k": "log-probability after k shots in this state, over the words of this table, with its interval",
    },
)
