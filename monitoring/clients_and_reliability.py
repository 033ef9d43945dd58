"""The dashboard *Clients and reliability*: present, lost and late clients, refusals, retries."""

from monitoring.panels import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SELECTED,
    SKY,
    WINDOW,
    YELLOW,
    Json,
    Panel,
    Query,
    dashboard,
    lines,
    stat,
    table,
)

TITLE = "Clients and reliability"
NO_RUN = "no coordinator found"
STATES = {
    "waiting": SKY,
    "working": GREEN,
    "reported": BLUE,
    "lost": RED,
    "left": GREY,
    "removed": YELLOW,
}


def clients_and_reliability() -> Json:
    """Return the dashboard."""
    return dashboard(
        TITLE,
        "Clients that are present, lost or late; refusals, retries and resumed transfers; metrics "
        "of the sites.",
        [
            ("Now", _first()),
            ("Clients", _clients()),
            ("Refused, retried, resumed", _trouble()),
            ("As reported by the sites", _sites()),
        ],
    )


def _first() -> list[Panel]:
    return [
        stat(
            "Here",
            "Clients that have joined and have neither left nor been lost.",
            f'sum(ssfl_clients{{{SELECTED}, state=~"waiting|working|reported"}})',
            no_data=NO_RUN,
        ),
        stat(
            "Lost",
            "Expected clients that have been silent for 30 seconds.",
            f'sum(ssfl_clients{{{SELECTED}, state="lost"}})',
            bad=1.0,
            no_data=NO_RUN,
        ),
        stat(
            "Missing clients",
            "Clients that a stalled run waits for; 0 if it is not stalled.",
            f"sum(ssfl_run_missing_clients{{{SELECTED}}})",
            bad=1.0,
            no_data=NO_RUN,
        ),
        stat(
            "Share that counted",
            "Share of the requested results in the window that counted. The current step "
            "has none yet: choose a window of several rounds.",
            f"sum(increase(ssfl_clients_reported_total{{{SELECTED}}}[{WINDOW}])) / "
            f"(sum(increase(ssfl_clients_selected_total{{{SELECTED}}}[{WINDOW}])) > 0)",
            unit="percentunit",
            no_data="no client was asked in this window",
        ),
        stat(
            "Void steps",
            "Steps of the last hour that had too few reports and were repeated.",
            f"sum(increase(ssfl_steps_void_total{{{SELECTED}}}[1h]))",
            bad=0.5,
            no_data=NO_RUN,
        ),
        stat(
            "Coordinator",
            "Whether it resumed the run of an earlier process (after a crash or an upgrade).",
            f"max(ssfl_run_recovered{{{SELECTED}}})",
            words={"0": "new run", "1": "resumed"},
            no_data=NO_RUN,
        ),
    ]


def _clients() -> list[Panel]:
    def rate(name: str) -> str:
        return f"sum(increase({name}{{{SELECTED}}}[{WINDOW}]))"

    return [
        lines(
            "Clients by state",
            "All clients that have joined: waiting, working, reported, lost (silent for 30 s), "
            "left, removed.",
            [Query(f"sum by (state) (ssfl_clients{{{SELECTED}}})", "{{state}}")],
            unit="short",
            stacked=True,
            colors=STATES,
            no_data=NO_RUN,
        ),
        lines(
            "Asked, counted, late, lost",
            "In the window: clients asked to work, results that counted, results that came after "
            "their step had closed, clients lost.",
            [
                Query(rate("ssfl_clients_selected_total"), "asked"),
                Query(rate("ssfl_clients_reported_total"), "counted"),
                Query(rate("ssfl_clients_late_total"), "late"),
                Query(rate("ssfl_clients_lost_total"), "lost"),
            ],
            unit="short",
            colors={"asked": SKY, "counted": GREEN, "late": ORANGE, "lost": RED},
            no_data=NO_RUN,
        ),
        table(
            "Every client",
            "Up to 200 clients; with more, the slowest and those silent for longest.",
            {
                "present": (f"max by (client) (ssfl_client_up{{{SELECTED}}})", "bool_yes_no"),
                "last seen": (
                    f"max by (client) (ssfl_client_last_seen_seconds{{{SELECTED}}})",
                    "s",
                ),
                "samples": (f"max by (client) (ssfl_client_samples{{{SELECTED}}})", "short"),
                "training": (
                    f'max by (client) (ssfl_client_phase_seconds{{{SELECTED}, phase="training"}})',
                    "s",
                ),
                "upload": (
                    f'max by (client) (ssfl_client_phase_seconds{{{SELECTED}, phase="upload"}})',
                    "s",
                ),
                "link": (
                    f"max by (client) (ssfl_client_upload_bytes_per_second{{{SELECTED}}})",
                    "Bps",
                ),
            },
            key="client",
            sort="last seen",
            no_data="no client has joined yet",
        ),
        lines(
            "Longest silences",
            "Time since a client was last seen: the ten longest.",
            [
                Query(
                    f"topk(10, max by (client) (ssfl_client_last_seen_seconds{{{SELECTED}}}))",
                    "{{client}}",
                )
            ],
            unit="s",
            no_data="no client has joined yet",
        ),
        lines(
            "Joined",
            "Joins in the window, for the first time or again (after a restart or a cut).",
            [
                Query(
                    f"sum by (again) (increase(ssfl_clients_joined_total{{{SELECTED}}}[{WINDOW}]))",
                    "again: {{again}}",
                )
            ],
            unit="short",
            bars=True,
            no_data="no client has joined yet",
        ),
        lines(
            "Concurrent uploads",
            "Uploads in progress, and the limit (dashed). At the limit, clients wait for "
            "each other.",
            [
                Query(f"ssfl_uploads_in_flight{{{SELECTED}}}", "now"),
                Query(f"ssfl_upload_slots{{{SELECTED}}}", "limit"),
            ],
            unit="short",
            colors={"now": BLUE, "limit": ORANGE},
            dashed=["limit"],
            no_data=NO_RUN,
        ),
    ]


def _trouble() -> list[Panel]:
    return [
        lines(
            "Refusals by reason",
            "Calls refused in 15 minutes; docs/wire-format.md explains the reasons.",
            [
                Query(
                    "sum by (reason) "
                    f"(instance_reason:ssfl_refusals:increase15m{{{SELECTED}}}) > 0",
                    "{{reason}}",
                )
            ],
            unit="short",
            bars=True,
            no_data="nothing was refused",
        ),
        lines(
            "Retries, resumes, void steps",
            "In the window: tasks sent again, resumed transfers, void steps, and starts "
            "of the coordinator.",
            [
                Query(f"sum(increase(ssfl_retries_total{{{SELECTED}}}[{WINDOW}]))", "tasks again"),
                Query(f"sum(increase(ssfl_resumes_total{{{SELECTED}}}[{WINDOW}]))", "transfers"),
                Query(
                    f"sum(increase(ssfl_steps_void_total{{{SELECTED}}}[{WINDOW}]))", "void steps"
                ),
                Query(
                    f"sum(changes(process_start_time_seconds{{{SELECTED}}}[{WINDOW}]))",
                    "coordinator started",
                ),
            ],
            unit="short",
            colors={
                "tasks again": ORANGE,
                "transfers": BLUE,
                "void steps": RED,
                "coordinator started": PURPLE,
            },
            no_data=NO_RUN,
        ),
        lines(
            "Stalled",
            "Time that the run has waited because too few clients are present.",
            [
                Query(f"ssfl_run_stalled_seconds{{{SELECTED}}}", "stalled for"),
            ],
            unit="s",
            colors={"stalled for": RED},
            no_data=NO_RUN,
        ),
        lines(
            "Reachable programs",
            "1 if Prometheus gets an answer, 0 if not.",
            [Query('up{job=~"ssfl-.+"}', "{{job}} {{instance}}")],
            unit="short",
            maximum=1.0,
            no_data="no target",
        ),
    ]


def _sites() -> list[Panel]:
    return [
        lines(
            "Connected",
            "1 if the coordinator answered the newest call of a client.",
            [Query("ssfl_site_connected", "{{instance}}")],
            unit="short",
            maximum=1.0,
            no_data="no client is scraped",
            width=8,
        ),
        lines(
            "State",
            "Clients by state, as they report it.",
            [Query("sum by (state) (ssfl_site_state)", "{{state}}")],
            unit="short",
            stacked=True,
            no_data="no client is scraped",
            width=8,
        ),
        lines(
            "Current work",
            "Share of minibatches done.",
            [Query("ssfl_site_steps_done / ssfl_site_steps_planned", "{{instance}}")],
            unit="percentunit",
            maximum=1.0,
            no_data="no client is working",
            width=8,
        ),
        lines(
            "Time to compute a result",
            "0.9 quantile over the window, by kind of work.",
            [
                Query(
                    "histogram_quantile(0.9, sum by (instance, work, le) "
                    "(rate(ssfl_site_work_seconds_bucket[$window])))",
                    "{{instance}} {{work}}",
                )
            ],
            unit="s",
            no_data="no client is scraped",
            width=8,
        ),
        lines(
            "Training loss",
            "Mean loss of the newest training. If the loss of one site rises while others fall, "
            "check its data.",
            [Query("ssfl_site_training_loss", "{{instance}}")],
            unit="short",
            no_data="no client has trained yet",
            width=8,
        ),
        lines(
            "Results, joins, retries",
            "In the window: results by outcome, joins, calls that failed, resumed transfers.",
            [
                Query(
                    "sum by (outcome) (increase(ssfl_site_results_total[$window]))",
                    "result {{outcome}}",
                ),
                Query("sum(increase(ssfl_site_joins_total[$window]))", "joins"),
                Query("sum(increase(ssfl_site_retries_total[$window]))", "failed calls"),
                Query("sum(increase(ssfl_site_resumes_total[$window]))", "resumed"),
            ],
            unit="short",
            colors={"joins": SKY, "failed calls": RED, "resumed": PURPLE},
            no_data="no client is scraped",
            width=8,
        ),
        table(
            "Programs",
            "Every program that Prometheus scrapes, with the samples of a client's shard.",
            {
                "up": (
                    'max by (instance) (up{job=~"ssfl-.+"})',
                    "bool_yes_no",
                ),
                "samples": ("max by (instance) (ssfl_site_samples)", "short"),
                "memory": (
                    'max by (instance) (process_resident_memory_bytes{job=~"ssfl-.+"})',
                    "bytes",
                ),
            },
            key="instance",
            sort="memory",
            no_data="no target",
            width=24,
        ),
    ]
