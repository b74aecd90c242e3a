"""Matching over interval timestamps: joins by valid bounds, exact confidences, signed deltas."""
