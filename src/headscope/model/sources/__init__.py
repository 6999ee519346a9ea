"""What a user may name, and where it comes from: folders, wheels, the hub."""
