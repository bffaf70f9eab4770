"""The systems that are compared. Each module is a process of its own, in its own environment: see ``line.py``."""
