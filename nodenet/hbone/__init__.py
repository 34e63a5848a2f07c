"""HBONE: HTTP/2 CONNECT tunnels over mutual TLS (RFC 9113; ztunnel: src/proxy/h2)."""
