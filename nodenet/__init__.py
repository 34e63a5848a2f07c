"""nodenet: eBPF-assisted node networking (capture, statistics, proxies) in Python."""

__version__ = "0.1.0"
