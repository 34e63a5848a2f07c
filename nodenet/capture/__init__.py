"""Enrolling pods so that their sockets are redirected to the local proxy."""
