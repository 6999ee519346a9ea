"""The parts of the lens `preconditioning`: what follows a token in the text, and the Gaussian of its vector."""
