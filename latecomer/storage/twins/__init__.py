"""Twins: in NumPy what each compiled kernel of ``native/`` means, file by file.

:mod:`latecomer.storage.kernels` chooses between the two. Arrays are one-dimensional, contiguous, and of 64-bit values
unless said otherwise; no function writes to an argument, except ``put``, ``take_out`` and ``carry`` to tables, and
``sow`` to the sieve.
"""
