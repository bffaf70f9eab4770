"""Property tests draw the same examples every time, and no test watches the clock."""

import torch
from hypothesis import settings

settings.register_profile("gossamer", deadline=None, derandomize=True)
settings.load_profile("gossamer")
torch.set_num_threads(1)  # tests run side by side, one core each
