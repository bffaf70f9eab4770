"""Types, part interfaces and message formats that all other packages use. Needs only torch, NumPy and safetensors."""
