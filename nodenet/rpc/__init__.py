"""gRPC over HTTP/2 for long bidirectional streams of raw messages, with the core free of I/O."""
