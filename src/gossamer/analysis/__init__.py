"""Analysis: convergence bounds of the papers, plans for fleets based on them, and stability measurements."""
