"""Kernel objects: bpf(2), loader, pins, links, namespaces, cgroups, feature probes."""
