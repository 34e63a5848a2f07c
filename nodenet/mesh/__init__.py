"""The ambient mesh model: workloads, services, policies, and what is decided from them. Pure."""
