"""A small client of the Kubernetes API: where it is, who asks, one JSON request at a time."""
