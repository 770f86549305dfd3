"""Value formats: the bytes of records to columns, one module for each format behind one Protocol.

`decoder` is the seam, `formats` opens the decoder that a topic declares.
"""
