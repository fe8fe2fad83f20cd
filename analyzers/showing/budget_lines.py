"""A checked budget as lines of text, as JSON, as JUnit XML, and as annotations of GitHub Actions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from xml.etree import ElementTree

from analyzers.comparing.budget import Check, Outcome

_WORDS = {Outcome.KEPT: "ok", Outcome.BROKEN: "BROKEN", Outcome.UNKNOWN: "cannot tell"}


Paint = Callable[[str, Outcome], str]


def lines(checks: Sequence[Check], paint: Paint = lambda text, outcome: text) -> list[str]:
    """Return one line per limit, and a last one that sums up; `paint` may colour the words of an outcome."""
    width = max(len(check.name) for check in checks)
    text = [f"{check.name:<{width}}  {_sentence(check, paint)}" for check in checks]
    counts = {outcome: sum(check.outcome is outcome for check in checks) for outcome in Outcome}
    total = [paint(f"{n} {_WORDS[outcome].lower()}", outcome) for outcome, n in counts.items() if n]
    return [*text, ", ".join(total)]


def _sentence(check: Check, paint: Paint = lambda text, outcome: text) -> str:
    reason = f": {check.reason}" if check.reason else ""
    return f"{paint(_WORDS[check.outcome], check.outcome)}: measured {check.measured}, limit {check.allowed}{reason}"


def checks_json(checks: Sequence[Check]) -> str:
    """Return the JSON of `moe-prof check --json`, described in docs/json.md."""
    outcomes = {Outcome.KEPT: "ok", Outcome.BROKEN: "broken", Outcome.UNKNOWN: "cannot_tell"}
    content = {
        "schema_version": 1,
        "kind": "moe-prof check",
        "checks": [
            {
                "section": list(check.limit.section),
                "limit": check.limit.key,
                "detail": check.limit.detail or None,
                "outcome": outcomes[check.outcome],
                "value": check.value,
                "min": check.limit.minimum,
                "max": check.limit.maximum,
                "ratio_to": check.limit.ratio_to or None,
                "confident": check.limit.confident,
                "measured": check.measured,
                "reason": check.reason or None,
            }
            for check in checks
        ],
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def github_annotations(checks: Sequence[Check], file: str) -> list[str]:
    """Return GitHub's workflow commands for the limits that are not kept."""
    kinds = {Outcome.BROKEN: "error", Outcome.UNKNOWN: "warning"}
    return [
        f"::{kinds[check.outcome]} file={_property(file)},title={_property(check.name)}::{_data(_sentence(check))}"
        for check in checks
        if check.outcome is not Outcome.KEPT
    ]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def junit_xml(checks: Sequence[Check]) -> str:
    """Return a JUnit report: a test case per limit, a failure where it is broken, an error where nobody can tell."""
    suite = ElementTree.Element(
        "testsuite",
        name="moe-prof check",
        tests=str(len(checks)),
        failures=str(sum(check.outcome is Outcome.BROKEN for check in checks)),
        errors=str(sum(check.outcome is Outcome.UNKNOWN for check in checks)),
    )
    tags = {Outcome.BROKEN: "failure", Outcome.UNKNOWN: "error"}
    for check in checks:
        case = ElementTree.SubElement(suite, "testcase", classname=".".join(check.limit.section), name=check.name)
        if check.outcome in tags:
            ElementTree.SubElement(case, tags[check.outcome], message=_sentence(check))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
