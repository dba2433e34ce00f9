"""The CUDA adapter on this machine's GPUs: python -m benchmarks.gpu."""
