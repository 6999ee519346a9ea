"""What a network is trained to predict."""
