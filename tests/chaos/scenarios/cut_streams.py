"""Every stream is cut at random again and again, and continues where it stopped, through nginx.

A stream that is cut is asked for again at once, with the id of its last event, of whichever engine nginx chooses.
Nothing may be missing from what a client put together, and nothing may come twice.
"""

import asyncio
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.model import Order, without_stamps
from tests.chaos.readers import Reader
from tests.chaos.report import Report, Size
from tests.chaos.resource_usage import memory, processor_seconds
from tests.chaos.streaming import running_engines
from tests.chaos.trial import quantile
from tests.support.processes import Process


@dataclass(frozen=True, slots=True)
class Form:
    """How much is done in one size.

    The questions are asked over `begin_seconds`. A connection lives for `life_seconds` at most, and half of that on
    average, from its first bytes on; longer where this machine would need more than `cores` of its processors for the
    reconnections, in engine and clients, so that what is measured is not a queue (docs/adr/0029). After a cut the next
    bytes take at most `resume_seconds`, in 99 of 100 cases: in the short form that is a bound for a machine that has
    other things to do.
    """

    streams: int
    engines: int
    essay: Order
    begin_seconds: float
    life_seconds: float
    resume_seconds: float
    cores: float = math.inf


FORMS = {
    Size.SHORT: Form(
        40, 2, Order(words=50, word_ms=200, stamped=True), begin_seconds=0.5, life_seconds=0.6, resume_seconds=3
    ),
    Size.FULL: Form(
        500,
        1,
        Order(words=120, word_ms=500, stamped=True),
        begin_seconds=10,
        life_seconds=2.4,
        resume_seconds=0.3,
        cores=1.0,
    ),
}


def run(size: Size, folder: Path) -> Report:
    form = FORMS[size]
    with running_engines(folder, behind_nginx=True, engines=form.engines) as (cluster, port):
        assert cluster.engine
        life = max(form.life_seconds, 2 * form.streams * _seconds_of_a_cut(port, cluster.engine) / form.cores)
        readers = [Reader(port, str(form.essay), lambda: random.uniform(0, life)) for _ in range(form.streams)]
        began, computed = time.monotonic(), processor_seconds(cluster.engine)
        asyncio.run(_read(readers, form))
        seconds = time.monotonic() - began
        figures = {
            "load of the first engine (cores)": (processor_seconds(cluster.engine) - computed) / seconds,
            "memory of the first engine (MiB)": memory(cluster.engine) / 2**20,
        }
    return _report(form, readers, seconds, figures)


def _seconds_of_a_cut(port: int, engine: Process) -> float:
    """The processor time of engine and clients for one reconnection, measured with few streams."""
    form = FORMS[Size.SHORT]
    readers = [Reader(port, str(form.essay), lambda: random.uniform(0, form.life_seconds)) for _ in range(form.streams)]
    before = time.process_time() + processor_seconds(engine)
    asyncio.run(_read(readers, form))
    used = time.process_time() + processor_seconds(engine) - before
    return used / sum(reader.cuts for reader in readers)


async def _read(readers: Sequence[Reader], form: Form) -> None:
    longest = form.begin_seconds + form.essay.words * form.essay.word_ms / 1000 + 60
    async with asyncio.timeout(longest), asyncio.TaskGroup() as tasks:
        for reader in readers:
            tasks.create_task(reader.run())
            await asyncio.sleep(form.begin_seconds / len(readers))


def _report(form: Form, readers: Sequence[Reader], seconds: float, used: Mapping[str, float]) -> Report:
    resumes = [each for reader in readers for each in reader.resumes]
    delays = [delay for reader in readers for _, delay in reader.delays]
    figures: dict[str, float | int | str] = {
        "streams": len(readers),
        "words per second": len(readers) * form.essay.words / seconds,
        "cuts": sum(reader.cuts for reader in readers),
        "cuts per second": sum(reader.cuts for reader in readers) / seconds,
        "gaps": sum(without_stamps(reader.transcript.text) != form.essay.text for reader in readers),
        "repeats": sum(len(reader.transcript.repeats) for reader in readers),
        "resets": sum(reader.transcript.resets for reader in readers),
        "resume p50 (ms)": 1000 * quantile(resumes, 0.5),
        "resume p99 (ms)": 1000 * quantile(resumes, 0.99),
        "resume max (ms)": 1000 * max(resumes),
        "delay of a word p50 (ms)": 1000 * quantile(delays, 0.5),
        "delay of a word p99 (ms)": 1000 * quantile(delays, 0.99),
        "engines": form.engines,
        **used,
    }
    findings = [f"{reader.turn_id}: {problem}" for reader in readers for problem in _problems(reader, form.essay)]
    if quantile(resumes, 0.99) > form.resume_seconds:
        findings.append(f"resume p99 is above {1000 * form.resume_seconds:g} ms")
    return Report("cut_streams", figures, tuple(findings))


def _problems(reader: Reader, essay: Order) -> list[str]:
    transcript = reader.transcript
    problems = [f"repeated: {transcript.repeats}"] if transcript.repeats else []
    if (text := without_stamps(transcript.text)) != essay.text:
        problems.append(f"has {text[-100:]!r} at its end, not {essay.text[-100:]!r}")
    if transcript.done is None or transcript.done["reason"] != "stop":
        problems.append(f"ended with {transcript.done}")
    if transcript.resets:
        problems.append(f"{transcript.resets} resets, and nothing was restarted")
    return problems + [f"was answered {refusal}" for refusal in reader.refusals]
