import re

import jax
import jax.numpy as jnp

from profiler.fingerprint import fingerprint


def compiled(function, *arguments) -> tuple[str, bytes]:
    executable = jax.jit(function).lower(*arguments).compile()
    (module,) = executable.runtime_executable().hlo_modules()
    return executable.as_text(), module.as_serialized_hlo_module_proto()


def looping(scope: str, steps: int = 3, sign: int = 1):
    def routed(x, weights):
        def body(carry, step):
            with jax.named_scope(scope):
                return carry + jnp.argsort(x) * step, jnp.sort(sign * x * step)

        carry, rows = jax.lax.scan(body, jnp.zeros(x.shape, jnp.int32), jnp.arange(steps))
        return carry, rows @ weights

    return routed


X, WEIGHTS = jnp.arange(8.0), jnp.ones((8, 4))


def test_names_scopes_and_source_lines_do_not_count() -> None:
    def other_lines(x, weights):
        return looping('braces } and "quotes" % in a scope')(x, weights)

    one, two = compiled(looping("chunks"), X, WEIGHTS), compiled(other_lines, X, WEIGHTS)
    assert one[0] != two[0]
    assert fingerprint(*one) == fingerprint(*two)


def test_renamed_instructions_and_computations_do_not_count() -> None:
    text, module = compiled(looping("chunks"), X, WEIGHTS)
    # Another compilation numbers its instructions otherwise: add 100 to every number.
    renamed = re.sub(r"(%[\w\-]+\.)(\d+)", lambda m: f"{m[1]}{int(m[2]) + 100}", text)
    assert renamed != text
    assert fingerprint(renamed, module) == fingerprint(text, module)


def test_another_program_has_another_fingerprint() -> None:
    programs = [
        compiled(looping("chunks"), X, WEIGHTS),
        compiled(looping("chunks", steps=4), X, WEIGHTS),
        compiled(looping("chunks", sign=-1), X, WEIGHTS),
        compiled(looping("chunks"), X, jnp.ones((8, 5))),
        compiled(lambda x, weights: looping("chunks")(x, weights)[::-1], X, WEIGHTS),
    ]
    assert len({fingerprint(*program) for program in programs}) == len(programs)


def test_swapped_operands_are_another_program() -> None:
    one, two = compiled(lambda x, y: x - y, X, X), compiled(lambda x, y: y - x, X, X)
    assert fingerprint(*one) != fingerprint(*two)


def test_a_large_constant_that_the_text_leaves_out_counts() -> None:
    def adding(table):
        return lambda x: x + jnp.asarray(table)

    one, two = (compiled(adding([*range(63), last]), jnp.arange(64)) for last in (70, 71))
    assert "constant({...})" in one[0]
    assert fingerprint(*one) != fingerprint(*two)
