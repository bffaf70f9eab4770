"""What is trained, and on what: tasks, networks, data and width rules."""
