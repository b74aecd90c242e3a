"""Load tests: virtual sources that delay and disorder their events for real, and a verdict on what is detected.

    fleet.py     which events there are, when each is sent, from which source; the knobs that change it while it runs
    outbox.py    what the sources hold back, and what of it is due
    truth.py     what is true, what was detected, and when: latency, corrections, the verdict
    shapes.py    how many sources, and which are cut off, over time
    wire.py, http.py    the fleet's messages to Kafka or a service, and the pipeline's answers from there
    locustfile.py, panel.py    Locust's users, statistics and page
    __main__.py  all of it on this machine, from the broker to the verdict: ``python -m loadtest``

Rule: the first four are pure: they read no clock and do no I/O, and all chance comes from one seed. Every event has an
*intended* time of sending; latency counts from that, so a sender that falls behind cannot hide it.
"""
