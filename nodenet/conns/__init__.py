"""Per-connection statistics kept by the kernel: reader, events, joins."""
