"""The classes of the public interface: memory, arrays and their handles, physical memory, events and queues.
`lifecycle` contains what they have in common, such as `close`.
"""
