"""Every tolerance of the tests, with its reason. Loosening one needs the float64 measurement in the commit."""

# Maps against eager `output_attentions`: both are float32 softmaxes of the same scores; what differs is the
# order of one sum and whether masked scores are −∞ or the lowest float.
MAP_AGREEMENT = 1e-6

# A model under our dense attention or an infinite window against the same model under sdpa, relative to the
# largest output: the same float32 sums in another order, through two layers.
SAME_FUNCTION = 1e-6

# Projections read off the weights against what the modules compute, relative to the largest value: one float32
# product of width 32.
WEIGHT_AGREEMENT = 1e-6

# Streaming statistics against the stored map in float64, as a share of the quantity's range (entropy: ln n,
# distance: n, masses: 1): float32 kernels with log-sum-exps of size 20 round at about 1e-6 of it.
STREAMED_STATISTICS = 1e-5

# A mechanism, its log-sum-exp and its gradients against the float64 definition, relative to the largest value.
MECHANISM_AGREEMENT = 2e-6

# The same in bfloat16, which keeps 8 bits: one rounding of inputs and output, and of the weights in between.
BFLOAT16_ROUNDING = 2e-2

# A mechanism that solves a linear system: this many roundings of its dtype times the condition number it states.
ROUNDINGS = 10

# A real model of up to 30 layers whose attention is computed another, equally exact way, relative to the largest
# hidden state: rounding at 1e-7 grows through the layers.
SAME_REAL_MODEL = 2e-5

# Scores against the logarithms of their pattern, or the product of queries and keys: float32 scores of size 10 and the
# logarithm of a float32 weight, which is at least 1e-7 of the largest.
SCORES_OF_A_MAP = 2e-5

# The logits of a float32 network of two or three layers against the float64 definition or another library's network
# of the same weights, relative to the largest logit: one rounding of 6e-8 grows through a dozen sums of width 40.
NETWORK_AGREEMENT = 5e-6
