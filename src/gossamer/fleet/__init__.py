"""Devices and links: computing speed, memory, radio, and the capacities that follow."""
