"""The conformance suite, which `xpushare conformance` runs: tests of every rule of the contract, on any adapter, across
real processes.

`rules` is the table of rules, and `suite` contains their tests. `harness` starts other processes, and `actions`
contains the functions that those processes run. `samples` provides arrays and streams of other libraries. pytest loads
`plugin`. `runner` starts pytest and reads the results. The suite needs pytest (the extra `conformance`), and no other
part of the package imports it.
"""
