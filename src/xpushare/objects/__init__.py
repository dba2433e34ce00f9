"""The object face: memory, arrays and their handles, physical memory, events and queues, and how they end."""
