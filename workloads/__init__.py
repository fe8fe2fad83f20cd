"""What moe-prof measures: MoE routing workloads, their variants, and the oracle that judges them.

Importing this package, `workloads.registry` or `workloads.presets` does not import jax, so that a command
line can list workloads, variants and presets at once; `registry.build` is where jax comes in.
"""
