"""How fast mechanisms are on this machine, as ratios to dense attention and to peers."""
