"""What is the same for every vendor: handles and their key, the table of exports, routes for fds, peers and the open
cache.
"""
