"""FedSpa (Huang et al., 2022, https://arxiv.org/abs/2201.11380): personalized federated learning with sparse models."""
