"""What a run will take: memory from the shapes of its models, time from the pace of a probe."""

from __future__ import annotations

from turnwise.app.doctor.findings import Finding, fine, problem, warning
from turnwise.app.doctor.installation import free_bytes
from turnwise.app.doctor.probe import Probe
from turnwise.app.plan import Plan
from turnwise.models.memory import PROCESS_BYTES, MemoryReport, Peak, size_words
from turnwise.report.console import format_duration


def examine_memory(memory: MemoryReport, peak: Peak | None) -> list[Finding]:
    """Compare the peak of the plan with what is free now; weights alone where the peak is not known."""
    words = ", ".join(f"{row.name} {size_words(row.total_bytes)}" for row in memory.models if row.is_loaded)
    needed, free = memory.loaded_bytes, free_bytes()
    if peak is None:
        words += f"; {size_words(needed)} in all, activations come on top"
    else:
        # Python and its packages are in memory already, those of this process.
        needed = peak.num_bytes - PROCESS_BYTES
        words += f"; about {size_words(peak.num_bytes)} at one time, while {peak.moment}"
    if needed is not None and free is not None and needed > free:
        return [
            problem(
                "memory",
                f"{words}; {size_words(free)} are free. Use a smaller model, model.lora.type=lora, or "
                "model.dtype=bfloat16.",
            )
        ]
    return [fine("memory", words)]


def fits(memory: MemoryReport) -> bool:
    """Whether a model of this shape can be loaded here to be tried."""
    engine, free = next(row for row in memory.models if row.name == "engine"), free_bytes()
    return engine.total_bytes is None or free is None or engine.total_bytes < free


def examine_time(plan: Plan, probe: Probe) -> list[Finding]:
    """At the pace of the probe; more episodes at once are faster, and learning comes on top."""
    if not probe.sampled_tokens or probe.seconds <= 0:
        return [warning("time", "not known: no token was sampled in the probe.")]
    pace = probe.sampled_tokens / probe.seconds
    step_s = plan.episodes_per_step * probe.sampled_tokens / probe.episodes / pace
    return [
        fine(
            "time",
            f"the rollouts of a step take about {format_duration(step_s)} at {pace:,.0f} tokens a second, those of all "
            f"{plan.steps} steps about {format_duration(step_s * plan.steps)}; learning comes on top",
        )
    ]
