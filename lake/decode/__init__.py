"""Record batches to Arrow: one compiled call for a whole fetched range, no Python per record."""
