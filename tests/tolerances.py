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
