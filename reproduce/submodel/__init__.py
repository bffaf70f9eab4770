"""Sub-model training (Deng, Qiao and Mahdavi, 2025, https://arxiv.org/abs/2511.06132): clients train some channels."""
