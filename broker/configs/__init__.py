"""Configs of topics, brokers and groups as Kafka knows them: which there are, what values they may
have, where a value comes from, and what each does here.
"""
