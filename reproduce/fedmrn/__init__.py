"""FedMRN (Li et al., 2024, https://arxiv.org/abs/2408.03220): masks over random noise as model updates."""
