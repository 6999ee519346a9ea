"""Laws of random matrices: what a matrix without structure would show."""
