"""Random schedules of six processes that signal and wait, are stopped, killed and started again, against an oracle.

`model` has the rules, `process` what each process does, `world` plays a schedule with both, `__main__` draws schedules.
"""
