"""The vendor-neutral part of sharing: handles and their key, the table of exports, routes for file descriptors, peers,
and the cache of opened objects.
"""
