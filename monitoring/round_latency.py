"""The dashboard *Round latency*: its first row answers five questions of the person on call."""

from monitoring.panels import (
    BLUE,
    GREEN,
    ORANGE,
    PHASES,
    RED,
    SELECTED,
    SKY,
    WINDOW,
    YELLOW,
    Json,
    Panel,
    Query,
    dashboard,
    heatmap,
    lines,
    stat,
    table,
)

TITLE = "Round latency"
# Refusals that the alert SsflRefusals ignores: they are normal after a restart or a cut, have their
# own alert, or follow from an operator's command.
ROUTINE = (
    "join_again|unknown_client|session_ended|stale_base|stale_mask|slot_yielded|run_over|no_progress|"
    "disk_full|removed|too_many_checks"
)
NO_RUN = "no coordinator found"
NO_ROUND = "no round ended in this window: choose a longer one above"


def round_latency() -> Json:
    """Return the dashboard."""
    return dashboard(
        TITLE,
        "Does the run make progress, which clients delay it, when will it finish, were calls "
        "refused, is disk or memory running out? Below: the time of each round by phase. With "
        "several coordinators, choose one above.",
        [
            ("Overview: progress, delays, time left, refusals, disk and memory", _first()),
            ("Time of a round", _phases()),
            ("Results", _results()),
            ("Disk and memory of the coordinator", _machine()),
        ],
    )


def _first() -> list[Panel]:
    return [
        stat(
            "Phase",
            "Phase of the run: gathering clients, score, train, evaluate, personalize, "
            "waiting (too few clients are present), paused, finished or stopped.",
            f"ssfl_run_phase{{{SELECTED}}} == 1",
            legend="{{phase}}",
            no_data=NO_RUN,
        ),
        stat(
            "Rounds done",
            "Share of the planned rounds that are committed.",
            f"ssfl_rounds_total{{{SELECTED}}} / ssfl_rounds_planned{{{SELECTED}}}",
            unit="percentunit",
            no_data=NO_RUN,
        ),
        stat(
            "Time left",
            "Time to the end of the run at the rate of its newest rounds.",
            f"ssfl_run_seconds_left{{{SELECTED}}}",
            unit="dtdurations",
            no_data="unknown, stalled, paused, or over",
        ),
        stat(
            "Age of the step",
            "Age of the current step as a share of its deadline; 0 without a step. Red above 1.",
            f"ssfl_step_elapsed_seconds{{{SELECTED}}} / ssfl_round_deadline_seconds{{{SELECTED}}}",
            unit="percentunit",
            bad=1.0,
            no_data="no deadline (--reproducible): see its age below",
        ),
        stat(
            "Refusals in 15 minutes",
            "Calls refused for reasons that an honest, well-configured client does not cause. All "
            "reasons: Clients and reliability.",
            "ceil(sum(instance_reason:ssfl_refusals:increase15m"
            f'{{{SELECTED}, reason!~"{ROUTINE}"}}))',
            bad=1.0,
            no_data=NO_RUN,
        ),
        stat(
            "Alerts",
            "Firing alerts of ssfl; the runbook has a section for each.",
            'count(ALERTS{alertname=~"Ssfl.+", alertstate="firing"}) or vector(0)',
            bad=1.0,
            no_data=NO_RUN,
        ),
        table(
            "Delaying clients",
            "Clients that the current step, or a stalled run, waits for, with the time since "
            "each was last seen and the times of its newest result. Empty between steps.",
            {
                "silent for": (
                    f"max by (client) (ssfl_client_last_seen_seconds{{{SELECTED}}} "
                    f"and on (job, instance, client) (ssfl_client_pending{{{SELECTED}}} == 1))",
                    "s",
                ),
                "last training": (
                    "max by (client) "
                    f'(ssfl_client_phase_seconds{{{SELECTED}, phase="training"}} '
                    f"and on (job, instance, client) (ssfl_client_pending{{{SELECTED}}} == 1))",
                    "s",
                ),
                "last upload": (
                    f'max by (client) (ssfl_client_phase_seconds{{{SELECTED}, phase="upload"}} '
                    f"and on (job, instance, client) (ssfl_client_pending{{{SELECTED}}} == 1))",
                    "s",
                ),
            },
            key="client",
            sort="silent for",
            no_data="the run waits for no client",
            width=12,
        ),
        lines(
            "Age of the step and its deadline",
            "A step closes at its deadline (dashed) with the reports it has. A line that rises "
            "without falling is a run without progress.",
            [
                Query(f"ssfl_step_elapsed_seconds{{{SELECTED}}}", "age"),
                Query(f"ssfl_round_deadline_seconds{{{SELECTED}}}", "deadline"),
                Query(f"ssfl_run_stalled_seconds{{{SELECTED}}}", "stalled for"),
            ],
            unit="s",
            colors={"age": BLUE, "deadline": ORANGE, "stalled for": RED},
            dashed=["deadline"],
            no_data=NO_RUN,
            width=6,
        ),
        lines(
            "Disk and memory in use",
            "Used share of the disk of the state directory (and of the results, if different), "
            "and of the coordinator's memory limit.",
            [
                Query(f"1 - instance_disk:ssfl_disk_free:ratio{{{SELECTED}}}", "{{disk}} disk"),
                Query(f"instance:ssfl_memory_used:ratio{{{SELECTED}}}", "memory"),
            ],
            unit="percentunit",
            maximum=1.0,
            colors={"state disk": ORANGE, "out disk": YELLOW, "memory": BLUE},
            no_data=NO_RUN,
            width=6,
        ),
    ]


def _phases() -> list[Panel]:
    step = f'ssfl_step_duration_seconds_bucket{{{SELECTED}, work="train"}}'
    phase = f"rate(ssfl_round_phase_seconds_bucket{{{SELECTED}}}[{WINDOW}])"
    spent, rounds = (
        f"sum by (phase) (rate(ssfl_round_phase_seconds_{part}{{{SELECTED}}}[{WINDOW}]))"
        for part in ("sum", "count")
    )
    return [
        lines(
            "Time of a round by phase",
            "Mean over the window, for the client that reported last: broadcast (of its "
            "task), training, collection (the rest until the round closed), aggregation (the sum), "
            "commit (the journal). Their sum is the time of the round.",
            [Query(f"{spent} / ({rounds} > 0)", "{{phase}}")],
            unit="s",
            stacked=True,
            colors=PHASES,
            no_data=NO_ROUND,
        ),
        lines(
            "Quantiles of the time of a round",
            "Quantiles of the time from the start of a round to its commit, over the window.",
            [
                Query(
                    f"histogram_quantile({share}, sum by (le) (rate({step}[{WINDOW}])))",
                    name,
                )
                for share, name in ((0.5, "median"), (0.9, "0.9"), (0.99, "0.99"))
            ],
            unit="s",
            colors={"median": GREEN, "0.9": ORANGE, "0.99": RED},
            no_data=NO_ROUND,
        ),
        heatmap(
            "Distribution of the time of a round",
            "Each column is an interval; each cell is the number of its rounds with that duration.",
            f"sum by (le) (increase({step}[$__rate_interval]))",
            no_data=NO_ROUND,
        ),
        lines(
            "Phases: 0.9 quantile",
            "0.9 quantile of each phase over the window; logarithmic, because training may take an "
            "hour and the commit milliseconds.",
            [
                Query(
                    f"histogram_quantile(0.9, sum by (phase, le) ({phase}))",
                    "{{phase}}",
                )
            ],
            unit="s",
            colors=PHASES,
            logarithmic=True,
            no_data=NO_ROUND,
        ),
        table(
            "Slowest clients",
            "Times of a client's newest result: broadcast of its task, training, upload.",
            {
                "whole": (
                    f"topk(20, sum by (client) (ssfl_client_phase_seconds{{{SELECTED}}}))",
                    "s",
                ),
                **{
                    phase: (
                        "max by (client) "
                        f'(ssfl_client_phase_seconds{{{SELECTED}, phase="{phase}"}})',
                        "s",
                    )
                    for phase in ("broadcast", "training", "upload")
                },
                "samples": (f"max by (client) (ssfl_client_samples{{{SELECTED}}})", "short"),
            },
            key="client",
            sort="whole",
            no_data="no result yet",
        ),
        lines(
            "The ten slowest clients",
            "Time of a client's newest result, all phases. A line far above the others delays "
            "every round.",
            [
                Query(
                    f"topk(10, sum by (client) (ssfl_client_phase_seconds{{{SELECTED}}}))",
                    "{{client}}",
                )
            ],
            unit="s",
            no_data="no result yet",
        ),
    ]


def _results() -> list[Panel]:
    return [
        lines(
            "Rounds per minute",
            "Committed rounds, over the window.",
            [Query(f"60 * rate(ssfl_rounds_total{{{SELECTED}}}[{WINDOW}])", "rounds per minute")],
            unit="short",
            colors={"rounds per minute": BLUE},
            no_data=NO_ROUND,
            width=8,
        ),
        lines(
            "Accuracy",
            "Newest pooled accuracy of the global model on the clients' test samples.",
            [Query(f"ssfl_model_accuracy_ratio{{{SELECTED}}}", "accuracy")],
            unit="percentunit",
            maximum=1.0,
            colors={"accuracy": GREEN},
            no_data="not tested yet",
            width=8,
        ),
        lines(
            "Loss",
            "Newest pooled loss of the global model on the clients' test samples.",
            [Query(f"ssfl_model_loss{{{SELECTED}}}", "loss")],
            unit="short",
            colors={"loss": ORANGE},
            no_data="not tested yet",
            width=8,
        ),
    ]


def _machine() -> list[Panel]:
    sync = f"ssfl_journal_sync_seconds_bucket{{{SELECTED}}}"
    return [
        lines(
            "Journal sync time",
            "Median and 0.99 quantile of journal writes, over the window. Every upload waits for "
            "one.",
            [
                Query(f"histogram_quantile(0.5, sum by (le) (rate({sync}[{WINDOW}])))", "median"),
                Query(
                    f"histogram_quantile(0.99, sum by (le) (rate({sync}[{WINDOW}])))",
                    "0.99",
                ),
            ],
            unit="s",
            colors={"median": GREEN, "0.99": RED},
            no_data=NO_RUN,
            width=8,
        ),
        lines(
            "Memory of the coordinator",
            "Resident memory and its peak, memory in use by the C library, and the limit.",
            [
                Query(f"process_resident_memory_bytes{{{SELECTED}}}", "resident"),
                Query(f"ssfl_memory_peak_bytes{{{SELECTED}}}", "peak"),
                Query(f"ssfl_heap_bytes{{{SELECTED}}}", "heap"),
                Query(f"ssfl_memory_limit_bytes{{{SELECTED}}}", "limit"),
            ],
            unit="bytes",
            colors={"resident": BLUE, "peak": SKY, "heap": GREEN, "limit": RED},
            dashed=["limit"],
            logarithmic=True,
            no_data=NO_RUN,
            width=8,
        ),
        lines(
            "Disk of the state directory",
            "Free space, uploads of the current round (spool), and the journal.",
            [
                Query(f"ssfl_disk_free_bytes{{{SELECTED}, disk='state'}}", "free"),
                Query(f"ssfl_spool_bytes{{{SELECTED}}}", "spool"),
                Query(f"ssfl_journal_bytes{{{SELECTED}}}", "journal"),
            ],
            unit="bytes",
            colors={"free": GREEN, "spool": ORANGE, "journal": BLUE},
            logarithmic=True,
            no_data=NO_RUN,
            width=8,
        ),
    ]
