"""What devices and links can do: speed, memory, radio, capacities."""
