"""The node proxy: carries connections that the capture redirects. Plaintext passthrough so far.

Path of one connection: `listeners` accepts it, `decision` says where it goes or why not,
`connector` opens the socket that dials there, `relay` copies bytes until both sides have ended.
`worker` joins these for the pods it serves, `pods` finds the pods, `supervisor` is the process.
"""
