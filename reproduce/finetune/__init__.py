"""Fine-tuning of a language model by thin clients."""
