"""The node agent: keeps the capture loaded and removes what namespaces that are gone left.

Enrolment from Kubernetes is not part of it yet; pods are enrolled by ``nodenet capture enroll``,
by ``--enroll`` or by the lab.
"""
