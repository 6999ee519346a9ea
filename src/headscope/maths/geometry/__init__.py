"""Vectors on spheres: arcs, angles and cosines."""
