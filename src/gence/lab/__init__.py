"""The lab: runs that compare losses. Data flows one way through its rooms.

`data` and `models` -> `spec` -> `store` -> `train` -> `sweep` -> `report` -> `compare`; `bench` measures speed.
"""
