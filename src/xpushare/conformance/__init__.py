"""The conformance suite: every rule of the contract, on any adapter, across real processes; `xpushare conformance`.

`rules` is the table of rules, `suite` their tests, `harness` the other processes, `actions` what those do, `samples`
the arrays and streams of other libraries, `plugin` the part that pytest loads, `runner` what starts it and reads the
results. Needs pytest (the extra `conformance`); nothing else of the package imports it.
"""
