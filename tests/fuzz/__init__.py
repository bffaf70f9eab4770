"""Campaigns of random damage (``make fuzz``): a sample of a minute each, or all with a flag. Seeds are printed."""
