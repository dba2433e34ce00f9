"""The tests of the suite, one module for each section of the contract."""
