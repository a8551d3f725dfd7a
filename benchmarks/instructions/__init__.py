"""How many instructions the broker needs for a request: the same number on a busy machine as on an idle one."""
