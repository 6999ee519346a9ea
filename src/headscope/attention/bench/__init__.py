"""Speed of the mechanisms here, as ratios to dense attention and to peers."""
