"""SPIFFE identities, keys and certificates, and the TLS settings made from them."""
