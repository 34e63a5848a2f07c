"""The node proxy. This version carries plaintext passthrough."""
