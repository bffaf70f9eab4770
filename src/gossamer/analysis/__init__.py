"""Analysis: convergence bounds of the papers, plans for fleets based on them, stability, and audits of privacy."""
