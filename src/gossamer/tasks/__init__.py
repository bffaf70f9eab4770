"""Tasks: data sets and their partition over clients, networks, objectives and width rules."""
