"""The code that CUDA's and HIP's backends share: HIP has CUDA's functions under other names, and torch and CuPy use the
same objects for both.
"""
