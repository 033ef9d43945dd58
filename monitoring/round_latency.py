"""The dashboard *Round latency*: its first row answers the five questions of the one on call."""

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
# Refusals that the alert SsflRefusals leaves out: they are part of going on after a restart or a
# cut, have an alert of their own, or follow from an operator's command.
ROUTINE = (
    "join_again|unknown_client|session_ended|stale_base|stale_mask|slot_yielded|run_over|no_progress|"
    "disk_full|removed|too_many_checks"
)
NO_RUN = "no coordinator seen"
NO_ROUND = "no round ended in this window: choose a longer one above"


def round_latency() -> Json:
    """Return the dashboard."""
    return dashboard(
        TITLE,
        "Is the run moving, who holds it up, when will it finish, was anything refused, is disk or "
        "memory running out? Below: where each round's time goes. Where there are several "
        "coordinators, choose one above.",
        [
            ("In a minute: moving, held up, finished when, refused, running out?", _first()),
            ("Where a round's time goes", _phases()),
            ("What comes of it", _results()),
            ("Disk and memory of the coordinator", _machine()),
        ],
    )


def _first() -> list[Panel]:
    return [
        stat(
            "The run is",
            "What the run does now: gathering clients, score, train, evaluate, personalize, "
            "waiting (too few clients are here), paused, finished or stopped.",
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
            "To the end",
            "Time to the end of the run at the pace of its newest rounds.",
            f"ssfl_run_seconds_left{{{SELECTED}}}",
            unit="dtdurations",
            no_data="not known yet, stalled, paused, or over",
        ),
        stat(
            "Age of the step",
            "Age of the step under way as a share of its deadline; 0 if none is. Red beyond it.",
            f"ssfl_step_elapsed_seconds{{{SELECTED}}} / ssfl_round_deadline_seconds{{{SELECTED}}}",
            unit="percentunit",
            bad=1.0,
            no_data="no deadline (--reproducible): its age is below",
        ),
        stat(
            "Refused in 15 minutes",
            "Calls refused for a reason that an honest, well-configured client does not meet. All "
            "reasons: Clients and reliability.",
            "ceil(sum(instance_reason:ssfl_refusals:increase15m"
            f'{{{SELECTED}, reason!~"{ROUTINE}"}}))',
            bad=1.0,
            no_data=NO_RUN,
        ),
        stat(
            "Alerts",
            "Alerts of ours that fire now; the runbook has a section for each.",
            'count(ALERTS{alertname=~"Ssfl.+", alertstate="firing"}) or vector(0)',
            bad=1.0,
            no_data=NO_RUN,
        ),
        table(
            "Who holds it up",
            "Clients that the step under way, or a stalled run, waits for, with the time since "
            "each was last heard of and what its newest result took. Empty between steps.",
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
            no_data="nobody: nothing waits for a client",
            width=12,
        ),
        lines(
            "Age of the step against its deadline",
            "A step closes at its deadline (dashed) with those who reported. A line that climbs "
            "without falling back is a run that does not move.",
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
            "Share of the disk of the state directory (and of the results, if that is another), "
            "and of the memory the coordinator may have.",
            [
                Query(f"1 - instance_disk:ssfl_disk_free:ratio{{{SELECTED}}}", "{{disk}} disk"),
                Query(f"instance:ssfl_memory_used:ratio{{{SELECTED}}}", "memory"),
            ],
            unit="percentunit",
            most=1.0,
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
            "A round's time by phase",
            "Mean over the window, along the client that reported last: broadcast (it was sent its "
            "task), training, collection (the rest until the round closed), aggregation (the sum), "
            "commit (the journal). Stacked, they are the round.",
            [Query(f"{spent} / ({rounds} > 0)", "{{phase}}")],
            unit="s",
            stacked=True,
            colors=PHASES,
            no_data=NO_ROUND,
        ),
        lines(
            "Rounds: half, nine in ten, all but one in a hundred",
            "Quantiles of the time from the start of a round to its commit, over the window.",
            [
                Query(
                    f"histogram_quantile({share}, sum by (le) (rate({step}[{WINDOW}])))",
                    name,
                )
                for share, name in ((0.5, "half"), (0.9, "9 in 10"), (0.99, "99 in 100"))
            ],
            unit="s",
            colors={"half": GREEN, "9 in 10": ORANGE, "99 in 100": RED},
            no_data=NO_ROUND,
        ),
        heatmap(
            "How long rounds took",
            "Each column is a span of time, each cell how many rounds of it took so long.",
            f"sum by (le) (increase({step}[$__rate_interval]))",
            no_data=NO_ROUND,
        ),
        lines(
            "Phases: nine rounds in ten",
            "0.9 quantile of each phase over the window; logarithmic, since training may take an "
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
            "What the newest result of a client took: to send it its task, training, upload.",
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
            "Clients: the newest result of the ten slowest",
            "Time of a client's newest result, all phases. One line far above the rest holds up "
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
            most=1.0,
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
            "Journal: time to the disk",
            "Half and 99 of 100 writes of the journal, over the window. Every upload waits for "
            "one.",
            [
                Query(f"histogram_quantile(0.5, sum by (le) (rate({sync}[{WINDOW}])))", "half"),
                Query(
                    f"histogram_quantile(0.99, sum by (le) (rate({sync}[{WINDOW}])))", "99 in 100"
                ),
            ],
            unit="s",
            colors={"half": GREEN, "99 in 100": RED},
            no_data=NO_RUN,
            width=8,
        ),
        lines(
            "Memory of the coordinator",
            "Resident now and at its peak, what the C library has in use, and the most it may "
            "have.",
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
            "Free room, uploads that wait for their round's commit (spool), and the journal.",
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
