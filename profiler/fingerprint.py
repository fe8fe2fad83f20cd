"""A hash of a compiled program that ignores names: equal in two variants that compile to one program.

Two variants can differ in source and be the same after the compiler; their timings then
differ by noise alone. Names, metadata and the numbering of instructions change with every compilation, so a
hash of the text as it is would never say so.
"""

import hashlib
import re

from analyzers.reading.protos import hlo_pb2

_NAME = re.compile(r"%[\w.\-]+")
# `metadata={op_name="…" …}`: strings may hold braces, and one level of braces may nest.
_METADATA = re.compile(r',? ?metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*"|\{[^{}]*\})*\}')
_COMMENT = re.compile(r"/\*.*?\*/")
# An attribute that names computations, such as `body=%b` or `branch_computations={%a, %b}`.
_CALLS = re.compile(r"\b(?!control-predecessors)[\w\-]+=\{?%[\w.\-]+(?:, ?%[\w.\-]+)*\}?")


def fingerprint(text: str, module_proto: bytes) -> str:
    """SHA-256 over the optimised HLO text of a module, names and metadata removed, and over its constants.

    Every computation is hashed with its instructions numbered in order and the computations it calls replaced
    by their hashes (a module's text lists callees first); the entry's hash is the program's. The text leaves
    large constants out, so these are taken from `module_proto`, the serialized xla.HloModuleProto.
    """
    header, _, rest = text.partition("\n")
    digest = hashlib.sha256(header.partition(",")[2].encode())
    digest.update(_hash_entry(rest).encode())
    for literal in sorted(_constants(module_proto)):
        digest.update(literal)
    return digest.hexdigest()


def _hash_entry(text: str) -> str:
    hashes: dict[str, str] = {}
    entry = ""
    name, lines = "", [""]
    for line in text.splitlines():
        if line.endswith("{") and line.startswith(("%", "ENTRY ")):
            name, lines = line.removeprefix("ENTRY ").split(" ", 1)[0], []
            if line.startswith("ENTRY "):
                entry = name
        elif line.startswith("}"):
            hashes[name] = _hash_computation(lines, hashes)
        else:
            lines.append(line)
    return hashes.get(entry, "")


def _hash_computation(lines: list[str], hashes: dict[str, str]) -> str:
    numbers: dict[str, int] = {}

    def called(match: re.Match[str]) -> str:
        return _NAME.sub(lambda name: "@" + hashes.get(name.group(), "unknown"), match.group())

    def numbered(match: re.Match[str]) -> str:
        return f"%{numbers.setdefault(match.group(), len(numbers))}"

    digest = hashlib.sha256()
    for line in lines:
        bare = _COMMENT.sub("", _METADATA.sub("", line))
        digest.update(_NAME.sub(numbered, _CALLS.sub(called, bare)).encode() + b"\n")
    return digest.hexdigest()


def _constants(module_proto: bytes) -> list[bytes]:
    module = hlo_pb2.Module.FromString(module_proto)
    return [
        hashlib.sha256(instruction.literal.SerializeToString(deterministic=True)).digest()
        for computation in module.computations
        for instruction in computation.instructions
        if instruction.HasField("literal")
    ]
