"""The konnectivity daemons: server and agent."""
