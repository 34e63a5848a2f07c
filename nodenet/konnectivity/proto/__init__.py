"""Generated from ``packet.proto``; how to generate again stands in docs/konnectivity.md."""
