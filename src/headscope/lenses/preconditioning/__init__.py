"""The lens `preconditioning`."""
