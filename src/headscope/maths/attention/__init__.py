"""Mathematics of attention: softmax, token collapse, positions, small circuits."""
