"""What is kept of a run and shown: its folder, its summary, its report."""
