"""Two or more runs next to each other: heads by their differences, lenses by their answers."""
