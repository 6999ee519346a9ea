"""Trajectories: numbers of heads over the saved steps of a training, and the step where they change most."""
