"""One file for each section of the settings, named after it: `rollout.max_turns` is in `rollout.py`.

The strings under the fields are the reference; `docs/configuration.md` is made from them.
"""
