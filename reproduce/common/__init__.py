"""What all reproductions share: cells and their storage, values over seeds, tables, plots, the command line."""
