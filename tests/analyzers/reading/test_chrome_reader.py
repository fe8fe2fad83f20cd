"""Chrome's trace format: what it still says comes back as the same columns."""

import gzip
import json
import re

import pytest

from analyzers.errors import UserError
from analyzers.reading import chrome_reader
from analyzers.reading.columns import ABSENT, LineKind, PlaneKind
from analyzers.reading.xspace import read_xspace
from analyzers.trace import load


def name(kind, value, process, thread=None):
    where = {"pid": process} if thread is None else {"pid": process, "tid": thread}
    return {"ph": "M", "name": f"{kind}_name", "args": {"name": value}, **where}


def complete(process, thread, event, start, duration, **arguments):
    return {"ph": "X", "pid": process, "tid": thread, "name": event, "ts": start, "dur": duration} | (
        {"args": arguments} if arguments else {}
    )


NAMES = [
    name("process", "/device:TPU:0", 3),
    name("thread", "XLA Ops", 3, 1),
    name("thread", "XLA Modules", 3, 2),
    name("thread", "XLA TraceMe", 3, 9),
    name("process", "/host:CPU", 7),
    name("thread", "python", 7, 1),
]
OP = {"long_name": "%sort.1 = s32[8] sort(...)", "hlo_category": "sort", "tf_op": "jit(f)/sort:"}
EVENTS = [
    complete(3, 1, "sort.1", 10.5, 2.25, device_offset_ps="77", device_duration_ps="2250001", model_flops="8", **OP),
    complete(3, 2, "jit_f(5)", 10, 5, run_id="850"),
    complete(3, 9, "scope", 10, 5),
    complete(7, 1, "$a.py:1 f", 0, 100),
    complete(7, 1, "train", 0, 50, step_num="3"),
    complete(3, 1, "sort.1", 20, 2, device_offset_ps="99", device_duration_ps="2000001", model_flops="8", **OP),
]


def write(folder, text: str | bytes, file_name="host.trace.json.gz"):
    path = folder / file_name
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content) if file_name.endswith(".gz") else content)
    return path


def document(events) -> str:
    return json.dumps({"displayTimeUnit": "ns", "metadata": {}, "traceEvents": [*events, {}]})


@pytest.mark.parametrize("order", ["names first", "names last"])
@pytest.mark.parametrize("file_name", ["host.trace.json.gz", "host.trace.json"])
def test_columns_are_those_of_the_trace(tmp_path, order, file_name):
    events = NAMES + EVENTS if order == "names first" else EVENTS + NAMES
    columns = read_xspace(write(tmp_path, document(events), file_name))
    assert columns.reader == "chrome"
    assert columns.hostname == "host"
    assert [(plane.name, plane.kind) for plane in columns.planes] == [
        ("/device:TPU:0", PlaneKind.TPU),
        ("/host:CPU", PlaneKind.HOST),
    ]
    assert [(line.name, line.kind, line.first, line.last, line.device_clock) for line in columns.lines] == [
        ("XLA Ops", LineKind.OPS, 0, 2, True),
        ("XLA Modules", LineKind.MODULES, 2, 3, False),
        ("python", LineKind.HOST, 3, 4, False),
    ]
    assert columns.events.start_ps.tolist() == [77, 99, 10_000_000, 0]
    assert columns.events.duration_ps.tolist() == [2_250_001, 2_000_001, 5_000_000, 50_000_000]
    assert columns.events.event_start_ps.tolist() == [10_500_000, 20_000_000, 10_000_000, 0]
    assert columns.events.ints["run_id"].tolist() == [ABSENT, ABSENT, 850, ABSENT]
    assert columns.events.ints["step_num"].tolist() == [ABSENT, ABSENT, ABSENT, 3]
    sort, module = columns.planes[0].metadata
    assert (sort.name, sort.display_name) == ("%sort.1 = s32[8] sort(...)", "sort.1")
    assert sort.stats == {"hlo_category": "sort", "tf_op": "jit(f)/sort:", "model_flops": 8}
    assert (module.name, module.display_name) == ("jit_f(5)", "")
    assert columns.events.metadata.tolist() == [0, 0, 1, 0]
    assert columns.hlo_protos == {}


def test_gpu_kernels_carry_their_stats_themselves(tmp_path):
    events = [
        name("process", "/device:GPU:0", 1),
        name("thread", "Stream #13(Kernel)", 1, 13),
        complete(1, 13, "fusion_kernel", 1, 1, hlo_op="fusion.1", hlo_module="jit_f", tf_op="jit(f)/add"),
    ]
    columns = read_xspace(write(tmp_path, document(events)))
    row = {key: columns.strings[rows[0]] for key, rows in columns.events.strings.items()}
    assert row == {"hlo_op": "fusion.1", "hlo_module": "jit_f", "tf_op": "jit(f)/add"}
    assert columns.planes[0].metadata[0].stats == {}


def test_stats_stay_with_their_events_where_lines_mix(tmp_path):
    events = [*NAMES[:2], name("thread", "Sparse", 3, 5), name("process", "/device:GPU:0", 1)]
    events += [name("thread", f"Stream #{number}", 1, number) for number in (1, 2)]
    for number in range(4):
        stats = {"hlo_op": f"op.{number}"} if number % 3 else {"correlation_id": str(number)}
        events.append(complete(1, 1 + number % 2, "kernel", number, 1, **stats))
    columns = read_xspace(write(tmp_path, document(events)))
    assert columns.events.event_start_ps.tolist() == [0, 2_000_000, 1_000_000, 3_000_000]
    assert columns.events.ints["correlation_id"].tolist() == [0, ABSENT, ABSENT, 3]
    ops = [None if row < 0 else columns.strings[row] for row in columns.events.strings["hlo_op"]]
    assert ops == [None, "op.2", "op.1", None]
    assert columns.strings == ("op.1", "op.2")


def test_a_file_of_many_pieces_reads_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr("analyzers.reading.sources._CHUNK_BYTES", 7)
    events = [*NAMES, *EVENTS, complete(3, 1, "naïve 名.1", 30, 1, device_offset_ps="1", device_duration_ps="1")]
    path = write(tmp_path, json.dumps({"traceEvents": [*events, {}]}, ensure_ascii=False))
    columns = read_xspace(path)
    assert len(columns.events) == 5
    assert columns.planes[0].metadata[-1].name == "naïve 名.1"


@pytest.mark.parametrize("compressed", [True, False])
def test_a_cut_file_gives_the_events_before_the_cut(tmp_path, compressed):
    text = document(NAMES + EVENTS)
    starts = [match.start() for match in re.finditer(re.escape('{"ph"'), text)]
    cut = starts[-1] + 40
    path = write(tmp_path, text[:cut], "host.trace.json.gz" if compressed else "host.trace.json")
    with pytest.raises(UserError, match=rf"event at byte {starts[-1]:,} of its text .*Before it are 5 events"):
        read_xspace(path)
    columns = read_xspace(path, partial=True)
    assert columns.cut_at_byte == starts[-1]
    assert len(columns.events) == 3


def test_what_is_no_such_trace_is_refused(tmp_path):
    for text in ("{}", '{"a": 1}', "hello", '{"traceEvents": 5}', b"\xff\xfe"):
        with pytest.raises(UserError, match="no list of traceEvents"):
            read_xspace(write(tmp_path, text), partial=True)
    with pytest.raises(UserError, match="is empty"):
        read_xspace(write(tmp_path, b"", "a.trace.json"))
    damaged = document(NAMES)[:-30] + ', {"ph": !}' + "]}"
    with pytest.raises(UserError, match="cut short or damaged"):
        read_xspace(write(tmp_path, damaged))


def test_values_that_are_no_numbers_do_not_stop_the_reader(tmp_path):
    odd = [
        complete(3, 1, "a", "soon", 1),
        complete(3, 1, "b", 1, None),
        complete(3, 1, "c", 1e300, 1),
        complete(3, 1, "d", 1, 1, flops="many", device_offset_ps="x", device_duration_ps="1"),
        {"ph": "X", "pid": 3, "tid": 1, "name": None, "ts": 2, "dur": 1, "args": []},
        complete([], {}, "e", 1, 1),
        [1, 2],
        7,
    ]
    columns = read_xspace(write(tmp_path, document(NAMES + odd)))
    assert columns.events.start_ps.tolist() == [1_000_000, 2_000_000]
    assert not columns.lines[0].device_clock


def test_a_file_at_its_writers_cap_says_so(tmp_path, monkeypatch):
    path = write(tmp_path, document(NAMES + EVENTS))
    assert read_xspace(path).capped_at is None
    assert [c.name for c in load(path).caveats] == ["chrome-format"]
    assert not load(path).at_least
    monkeypatch.setattr(chrome_reader, "EVENT_CAPS", (6,))
    assert read_xspace(path).capped_at == 6
    capped = next(c for c in load(path).caveats if c.name == "capped")
    assert "holds 6 events, the most that a writer of its format keeps" in capped.message
    assert load(path).at_least


@pytest.mark.parametrize(("side", "ops"), [("baseline", 3454), ("variant", 3914)])
def test_real_serving_traces_hold_two_cores_of_ops(real_traces, side, ops):
    columns = read_xspace(real_traces / f"tpu-serving-{side}.trace.json.gz")
    assert [
        (columns.planes[line.plane].name, line.name, line.last - line.first, line.device_clock)
        for line in columns.lines
        if line.kind is not LineKind.HOST
    ] == [
        (f"/device:TPU:{core}", name, count, True)
        for core in (0, 1)
        for name, count in (("XLA Modules", 4), ("XLA Ops", ops))
    ]
    assert columns.cut_at_byte is None
    if side == "baseline":
        modules = next(line for line in columns.lines if line.name == "XLA Modules")
        assert columns.events.duration_ps[modules.first] == 66914493397
        assert columns.events.start_ps[modules.first] == 1145388794718
        assert columns.events.event_duration_ps[modules.first] == 66914493397
        metadata = columns.planes[modules.plane].metadata[columns.events.metadata[modules.first]]
        assert metadata.name == "jit_step_fun(5120112285394406626)"
