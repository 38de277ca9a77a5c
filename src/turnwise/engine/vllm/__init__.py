"""Tokens from vLLM: one or many servers in processes of their own, with vLLM's own environment.

`client.py` speaks to one server, `process.py` starts and stops one, `pool.py` knows which are up and who goes where,
`transfer.py` brings weights to them, `engine.py` is the Engine, and `plug_in/` is what vLLM itself imports.
"""
