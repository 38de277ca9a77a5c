"""The learning record of a run: every update with its tokens, in one file that only grows.

`file.py` knows the file, `block.py` one update in it, `columns.py` its arrays; `learnt.py` is what comes in and
`tokens.py` what goes out.
"""
