"""Nodes and pods as network namespaces on one machine, with workloads and traffic."""
