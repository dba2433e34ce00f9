"""What CUDA's and HIP's backends share: HIP has CUDA's functions under names of its own, and torch and CuPy the same
objects for both.
"""
