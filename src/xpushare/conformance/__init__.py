"""The conformance suite. `xpushare conformance` runs it.

The suite tests every rule of the contract on any adapter, with several real processes. docs/conformance.md lists the
rules.

The module `rules` is the table of rules, and `suite` contains their tests. `harness` starts other processes, and
`actions` contains the functions that those processes run. `samples` provides arrays and streams of other libraries.
`plugin` is a plugin of pytest. `runner` starts pytest and reads the results. The suite needs pytest (the extra
`conformance`), and no other part of the package imports it.
"""
