"""Attention mechanisms on one contract: `Call → Mechanism → Output`, and statistics without the map."""
