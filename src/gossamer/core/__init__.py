"""The vocabulary: what all other packages speak. It needs torch, NumPy and safetensors alone."""
