"""Reverse tunnels, wire-compatible with the Kubernetes apiserver-network-proxy."""
