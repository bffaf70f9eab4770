"""The systems of the board. Each module is a process of its own: see ``line.py``."""
