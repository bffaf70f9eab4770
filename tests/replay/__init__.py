"""What the library computes, recorded: a rebuild replays it (``python -m replay check``)."""
