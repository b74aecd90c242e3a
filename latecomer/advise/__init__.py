"""Advice from a recorded sample: how late events are, which promises would have held, and what each level would cost."""
