"""The compared systems. Each module is a separate process in its own environment: see ``line.py``."""
