"""Functions that tests hand to the compile worker, which imports them from here."""

import os
import signal

import jax
import jax.numpy as jnp


def step(x):
    """Two argsorts, one of them dead weight for nobody: both results are returned."""
    with jax.named_scope("dispatch"):
        order = jnp.argsort(x)
    return order, jnp.argsort(order)


def step_and_arguments():
    return step, (jax.ShapeDtypeStruct((64,), jnp.float32),)


def placed(devices):
    sharding = jax.sharding.SingleDeviceSharding(devices[0])
    return step, (jax.ShapeDtypeStruct((128,), jnp.float32, sharding=sharding),)


def nonsense():
    return step


def raises():
    raise ValueError("no such\nmodel")


def crashes():
    os.kill(os.getpid(), signal.SIGSEGV)


def does_not_trace():
    return (lambda x: x.nothing), (jax.ShapeDtypeStruct((64,), jnp.float32),)
