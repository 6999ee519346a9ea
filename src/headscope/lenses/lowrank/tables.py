"""The tables of the lens `lowrank`, and names that its files share."""

FITS = 0.1  # the misfit up to which a law is said to hold
