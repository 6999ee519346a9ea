"""Conti, sections 1 and 1.1: word vectors, sequences, attention between RNNs."""

import itertools
import math

import torch

from headscope.core.verdict import Evidence
from headscope.theory.checks import Lab, exact, fact
from headscope.theory.works import conti

CHAPTER = conti()


@CHAPTER.claim(
    "C-1a",
    section="1",
    statement="For a vocabulary of m words the embedding is a function from the vocabulary to the real m × n matrices.",
    formula=r"E: V \to \mathcal{M}_{\mathbb{R}}(m, n)",
    correction="One word goes to one row vector of n numbers. The m × n matrix is the table of all words together: the "
    "embedding is a function into n-dimensional space, given by a matrix.",
    corrected=r"E: V \to \mathbb{R}^n, \quad E(v_i) = e_i^{\top} W, \quad W \in \mathcal{M}_{\mathbb{R}}(m, n)",
    lesson="A function and the table that stores it are two things. Looking a word up selects one row of the table, so "
    "its value has n entries; the next sentence of the text says so itself.",
    slip=True,
)
def embedding_codomain(lab: Lab) -> Evidence:
    m, n = 7, 3
    table = lab.normal(m, n)
    words = [torch.nn.functional.embedding(torch.tensor(i), table) for i in range(m)]
    by_product = torch.eye(m, dtype=torch.float64) @ table
    return Evidence(
        stated=(exact("numbers in E(word), m = 7, n = 3", float(m * n), float(words[0].numel())),),
        corrected=(
            exact("numbers in E(word), m = 7, n = 3", float(n), float(words[0].numel())),
            exact("E(word i) is row i of the table", by_product, torch.stack(words)),
        ),
    )


@CHAPTER.claim(
    "C-1b",
    section="1",
    statement="Words represented by unit vectors are orthogonal to each other, and so linearly independent.",
    formula=r"e_i \cdot e_j = 0 \quad (i \neq j)",
    lesson="Two one-hot vectors never have their 1 in the same place, so every product of entries is 0. Independence "
    "follows, since orthogonal vectors that are not 0 are independent. The price: all words are equally unlike.",
)
def one_hot_words(lab: Lab) -> Evidence:
    m = 12
    order = torch.randperm(m, generator=lab.generator())
    words = torch.nn.functional.one_hot(order, m).to(torch.float64)
    gram = words @ words.mT
    off_diagonal = gram[~torch.eye(m, dtype=torch.bool)]
    return Evidence(
        (
            exact("largest inner product of two different words", 0.0, float(off_diagonal.abs().max())),
            exact("rank of 12 one-hot words", float(m), float(torch.linalg.matrix_rank(words))),
        )
    )


@CHAPTER.claim(
    "C-1c",
    section="1.1",
    statement="The probability of a sequence is the product of the probabilities of each token given those before it.",
    formula=r"p(y_1, \ldots, y_m) = \prod_{t=1}^{m} p(y_t \mid y_{<t})",
    lesson="This is the definition of conditional probability, applied once per token: nothing is assumed and nothing "
    "is lost. A language model may therefore learn next-token probabilities only, and still describe whole texts.",
)
def chain_rule(lab: Lab) -> Evidence:
    joint = lab.uniform(4, 4, 4)
    joint = joint / joint.sum()
    first = joint.sum((1, 2))
    second = joint.sum(2) / first[:, None]
    third = joint / joint.sum(2, keepdim=True)
    product = first[:, None, None] * second[:, :, None] * third
    return Evidence(
        (
            exact("product of conditionals over all 64 sequences", joint, product),
            exact("their sum", 1.0, float(product.sum())),
        )
    )


@CHAPTER.claim(
    "C-1d",
    section="1.1",
    statement="With a one-hot target the cross-entropy reduces to the logarithm of the probability of the correct "
    "token, which is minus the logarithm of that same probability.",
    formula=r"\mathrm{Loss}(p^*, p) = \log(p_{y_t}) = -\log(p(y_t \mid y_{<t}, x))",
    correction="The minus sign is missing in the middle: a loss of log p would be negative and would be lowered by "
    "making the correct token less likely.",
    corrected=r"\mathrm{Loss}(p^*, p) = -\log(p_{y_t}) = -\log(p(y_t \mid y_{<t}, x))",
    lesson="A loss must fall when the model gets better. The logarithm of a probability rises towards 0 as the "
    "probability rises to 1, so its negative is the loss. Both ends of the stated chain can agree only where p = 1.",
    slip=True,
)
def loss_of_a_token(lab: Lab) -> Evidence:
    logits, target = lab.normal(1, 9), torch.tensor([4])
    log_p = float(torch.log_softmax(logits, -1)[0, 4])
    loss = float(torch.nn.functional.cross_entropy(logits, target))
    name = "cross-entropy of one token among nine"
    return Evidence(stated=(exact(name, log_p, loss),), corrected=(exact(name, -log_p, loss),))


@CHAPTER.claim(
    "C-1e",
    section="1.1",
    statement="For a source of n and a target of m tokens the number of candidate outputs is the n-th power of the "
    "size of the vocabulary.",
    formula=r"|V|^{n}",
    correction="The exponent is the length m of the output, not the length n of the input.",
    corrected=r"|V|^{m}",
    lesson="Each of the m places of the output is filled independently from the vocabulary, so the count multiplies m "
    "times. The input is given: its length n does not enter. Where an end token may stop earlier, one counts all "
    "lengths up to m.",
    slip=True,
)
def candidate_outputs(lab: Lab) -> Evidence:
    del lab
    words, n, m = 3, 2, 5
    counted = sum(1 for _ in itertools.product(range(words), repeat=m))
    name = "outputs of 5 tokens from 3 words, for an input of 2"
    return Evidence(
        stated=(exact(name, float(words**n), float(counted)),),
        corrected=(exact(name, float(words**m), float(counted)),),
    )


@CHAPTER.claim(
    "C-1f",
    section="1.1",
    statement="Taking the most probable token at each step does not in general give the most probable sequence; beam "
    "search keeps several hypotheses for that reason.",
    formula=r"\mathrm{argmax}_y \prod_t p(y_t \mid y_{<t}, x) \neq (\mathrm{argmax}_{y_t}\, p(y_t \mid y_{<t}, x))_t",
    lesson="A token that looks best now may lead to a continuation where nothing is likely. In the example the first "
    "word has 0.6 against 0.4, but the best sequence starts with the other one. The text writes a product of argmaxes, "
    "which are tokens; what is meant is the sequence of them.",
)
def greedy_is_not_best(lab: Lab) -> Evidence:
    first = torch.tensor([0.6, 0.4], dtype=torch.float64)
    then = torch.tensor([[0.55, 0.45], [0.9, 0.1]], dtype=torch.float64)
    joint = first[:, None] * then
    start = int(first.argmax())
    greedy = float(first[start] * then[start].max())
    # In random models of three tokens it happens too; counted over 400 of them.
    p1 = lab.normal(400, 4, purpose="first").softmax(-1)
    p2 = lab.normal(400, 4, 4, purpose="second").softmax(-1)
    joint_probabilities = p1[:, :, None] * p2
    lucky = p1.max(-1).values * p2[torch.arange(400), p1.argmax(-1)].max(-1).values
    missed = int((lucky < joint_probabilities.flatten(1).max(-1).values - 1e-12).sum())
    return Evidence(
        (
            exact("probability of the greedy sequence", 0.33, greedy),
            exact("probability of the best sequence", 0.36, float(joint.max())),
            exact("a beam of two finds it", 0.36, max(float(first[i] * then[i].max()) for i in range(2))),
            fact("greedy misses the best in some of 400 random models", missed > 0),
            fact("and finds it in others", missed < 400),
        )
    )


@CHAPTER.claim(
    "C-1g",
    section="1.1.1",
    statement="The softmax of the scores gives weights that sum to 1 for each decoder state, and the context vector is "
    "the encoder states averaged with these weights, for each of the three usual scores.",
    formula=r"a_{t,k} = \frac{\exp(\mathrm{score}(h_t, s_k))}{\sum_i \exp(\mathrm{score}(h_t, s_i))}, "
    r"\quad c_t = \sum_i a_{t,i}\, s_i",
    lesson="Positive weights with sum 1 make the context a weighted mean: it stays inside the cloud of encoder states, "
    "and where all states agree it is that state. The sum runs over the n encoder states, as in the denominator of the "
    "weights; the text writes m as its last index, which is the length of the target.",
)
def context_vector(lab: Lab) -> Evidence:
    d, n, hidden = 5, 7, 6
    h, states = lab.normal(d, purpose="h"), lab.normal(n, d, purpose="states")
    w, v = lab.normal(d, d, purpose="w"), lab.normal(hidden, purpose="v")
    w_both = lab.normal(hidden, 2 * d, purpose="both")
    concatenated = torch.cat([h.expand(n, d), states], -1)
    scores = {
        "dot": states @ h,
        "multiplicative": states @ (h @ w),
        "additive": torch.tanh(concatenated @ w_both.mT) @ v,
    }
    comparisons = []
    for name, score in scores.items():
        a = score.exp() / score.exp().sum()
        context = sum(float(a[i]) * states[i] for i in range(n))
        comparisons.append(exact(f"sum of the weights, {name} score", 1.0, float(a.sum())))
        comparisons.append(
            exact(f"context as product with the softmax, {name}", torch.softmax(score, 0) @ states, context)
        )
    same = states[:1].expand(n, d)
    comparisons.append(exact("context of equal states", states[0], torch.softmax(scores["dot"], 0) @ same))
    comparisons.append(fact("all weights positive", math.isfinite(float(torch.softmax(scores["dot"], 0).log().min()))))
    return Evidence(tuple(comparisons))
