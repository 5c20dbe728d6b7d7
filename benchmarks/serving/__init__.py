"""The local SQS over HTTP beside other local servers: the same requests, one after another and many at once.

`lean` and `boto` are clients that print figures, `servers` starts what they ask, `rows` says what is compared.
Never here: onefold's own code. Invariant: a server under test listens on loopback and ends with its measurement.
"""
