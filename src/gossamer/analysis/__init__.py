"""What the papers prove, and planning from it."""
