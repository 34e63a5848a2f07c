"""TLS without I/O, on the OpenSSL that comes with `cryptography`.

`context.Context` is how new connections are made, `engine.Engine` one connection: ciphertext in and
out, plaintext out and in. docs/decisions/0011-tls-of-konnectivity.md says why not `ssl`.
"""
