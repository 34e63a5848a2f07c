"""A small HTTP/1.1 server and client for admin surfaces: sockets, routes, limits, graceful end."""
