"""The mathematics of attention itself: softmax, collapse of tokens, positions, circuits by hand."""
