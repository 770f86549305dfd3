"""Spark and Arrow side: reads stream objects in place and keeps Delta tables of topics."""
