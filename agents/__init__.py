"""Daemons of nodenet, one package each."""
