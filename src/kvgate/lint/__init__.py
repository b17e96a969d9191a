"""Reads commands, configurations and checkpoints, and says what will not do what it looks like. Starts nothing."""
