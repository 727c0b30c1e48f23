"""All of infodis is type- and shape-checked while the tests run; nothing is in production."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # virtual machines announce AMX that they cannot run
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # numbers are compared to the last digit: on the CPU, as `auto` then is

import torch
import typecheck

typecheck.install("infodis")

torch.backends.mps.is_available = lambda: False
torch.set_num_threads(1)  # the tests run in as many processes as there are cores
