"""The dashboard *Clients and reliability*: who is here or late, what was refused or repeated."""

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
NO_RUN = "no coordinator seen"
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
        "Who is here, lost or late; what was refused, repeated or taken up again; what the sites "
        "say of themselves.",
        [
            ("Now", _first()),
            ("Clients", _clients()),
            ("Refused, repeated, taken up again", _trouble()),
            ("Sites, as they see it", _sites()),
        ],
    )


def _first() -> list[Panel]:
    return [
        stat(
            "Here",
            "Clients that have joined and are neither lost nor gone.",
            f'sum(ssfl_clients{{{SELECTED}, state=~"waiting|working|reported"}})',
            no_data=NO_RUN,
        ),
        stat(
            "Lost",
            "Clients that should be here and were not heard of for 30 seconds.",
            f'sum(ssfl_clients{{{SELECTED}, state="lost"}})',
            bad=1.0,
            no_data=NO_RUN,
        ),
        stat(
            "Missing to go on",
            "Clients that a stalled run waits for; 0 if it can go on.",
            f"sum(ssfl_run_missing_clients{{{SELECTED}}})",
            bad=1.0,
            no_data=NO_RUN,
        ),
        stat(
            "Counted of asked",
            "Of the results asked for in the window, the share that counted. The step under way "
            "has none yet: choose a window of several rounds.",
            f"sum(increase(ssfl_clients_reported_total{{{SELECTED}}}[{WINDOW}])) / "
            f"(sum(increase(ssfl_clients_selected_total{{{SELECTED}}}[{WINDOW}])) > 0)",
            unit="percentunit",
            no_data="nobody was asked in this window",
        ),
        stat(
            "Void steps",
            "Steps of the last hour that too few clients reported in, and were repeated.",
            f"sum(increase(ssfl_steps_void_total{{{SELECTED}}}[1h]))",
            bad=0.5,
            no_data=NO_RUN,
        ),
        stat(
            "Coordinator",
            "Whether it took up the run of an earlier process (after a crash or an upgrade).",
            f"max(ssfl_run_recovered{{{SELECTED}}})",
            words={"0": "began the run", "1": "took it up again"},
            no_data=NO_RUN,
        ),
    ]


def _clients() -> list[Panel]:
    def rate(name: str) -> str:
        return f"sum(increase({name}{{{SELECTED}}}[{WINDOW}]))"

    return [
        lines(
            "Clients by what they do",
            "Everybody who ever joined: waiting, working, reported, lost (not heard of for 30 s), "
            "left, removed.",
            [Query(f"sum by (state) (ssfl_clients{{{SELECTED}}})", "{{state}}")],
            unit="short",
            stacked=True,
            colors=STATES,
            no_data=NO_RUN,
        ),
        lines(
            "Asked, counted, late, lost",
            "In the window: clients asked to work, results that counted, results that came when "
            "their step was closed, clients lost.",
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
            "Up to 200 clients; with more, the slowest and those not heard of longest.",
            {
                "here": (f"max by (client) (ssfl_client_up{{{SELECTED}}})", "bool_yes_no"),
                "last heard of": (
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
            sort="last heard of",
            no_data="nobody has joined yet",
        ),
        lines(
            "Longest silences",
            "Time since a client was last heard of: the ten longest.",
            [
                Query(
                    f"topk(10, max by (client) (ssfl_client_last_seen_seconds{{{SELECTED}}}))",
                    "{{client}}",
                )
            ],
            unit="s",
            no_data="nobody has joined yet",
        ),
        lines(
            "Joined",
            "Times a client joined in the window, for the first time or again (after a restart or "
            "a cut).",
            [
                Query(
                    f"sum by (again) (increase(ssfl_clients_joined_total{{{SELECTED}}}[{WINDOW}]))",
                    "again: {{again}}",
                )
            ],
            unit="short",
            bars=True,
            no_data="nobody has joined yet",
        ),
        lines(
            "Uploads at once",
            "Uploads that come in now, and as many as may (dashed). At the top, clients wait for "
            "one another.",
            [
                Query(f"ssfl_uploads_in_flight{{{SELECTED}}}", "now"),
                Query(f"ssfl_upload_slots{{{SELECTED}}}", "at most"),
            ],
            unit="short",
            colors={"now": BLUE, "at most": ORANGE},
            dashed=["at most"],
            no_data=NO_RUN,
        ),
    ]


def _trouble() -> list[Panel]:
    return [
        lines(
            "Refused, by reason",
            "Calls refused in 15 minutes; docs/wire-format.md says what each reason means.",
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
            "Sent again, gone on, void",
            "In the window: tasks sent again, transfers that went on after a cut, void steps, and "
            "how often the coordinator was started.",
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
            "For how long the run could not go on, since too few clients were here.",
            [
                Query(f"ssfl_run_stalled_seconds{{{SELECTED}}}", "stalled for"),
            ],
            unit="s",
            colors={"stalled for": RED},
            no_data=NO_RUN,
        ),
        lines(
            "Programs that answer",
            "1 where Prometheus gets an answer, 0 where it does not.",
            [Query('up{job=~"ssfl-.+"}', "{{job}} {{instance}}")],
            unit="short",
            most=1.0,
            no_data="no target",
        ),
    ]


def _sites() -> list[Panel]:
    return [
        lines(
            "Connected",
            "1 where the coordinator answered the newest call of a client.",
            [Query("ssfl_site_connected", "{{instance}}")],
            unit="short",
            most=1.0,
            no_data="no client is scraped",
            width=8,
        ),
        lines(
            "What they do",
            "The state each client is in, as it says itself.",
            [Query("sum by (state) (ssfl_site_state)", "{{state}}")],
            unit="short",
            stacked=True,
            no_data="no client is scraped",
            width=8,
        ),
        lines(
            "Work under way",
            "Share of the minibatches that are done.",
            [Query("ssfl_site_steps_done / ssfl_site_steps_planned", "{{instance}}")],
            unit="percentunit",
            most=1.0,
            no_data="no client works",
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
            "Mean loss of the newest training; a site that climbs while others fall has a problem "
            "with its data.",
            [Query("ssfl_site_training_loss", "{{instance}}")],
            unit="short",
            no_data="no client has trained yet",
            width=8,
        ),
        lines(
            "Results, joins, tries",
            "In the window: results by what became of them, joins, calls that did not get "
            "through, transfers that went on.",
            [
                Query(
                    "sum by (outcome) (increase(ssfl_site_results_total[$window]))",
                    "result {{outcome}}",
                ),
                Query("sum(increase(ssfl_site_joins_total[$window]))", "joins"),
                Query("sum(increase(ssfl_site_retries_total[$window]))", "not reached"),
                Query("sum(increase(ssfl_site_resumes_total[$window]))", "gone on"),
            ],
            unit="short",
            colors={"joins": SKY, "not reached": RED, "gone on": PURPLE},
            no_data="no client is scraped",
            width=8,
        ),
        table(
            "Programs",
            "Every program that Prometheus sees, with the samples of a client's shard.",
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
