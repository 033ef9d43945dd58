"""The dashboard *Bytes on the wire*: bytes by phase and encoding, against a dense model."""

from monitoring.panels import (
    BLUE,
    DIRECTIONS,
    GREEN,
    ORANGE,
    SELECTED,
    SKY,
    WINDOW,
    Json,
    Panel,
    Query,
    dashboard,
    lines,
    stat,
)

TITLE = "Bytes on the wire"
NOTHING = "nothing sent yet"
COMPARED = "values|evaluation"  # the phases of ssfl_dense_bytes_total


def bytes_on_the_wire() -> Json:
    """Return the dashboard."""
    return dashboard(
        TITLE,
        "Bytes between coordinator and clients, by direction, phase and encoding, compared with "
        "a dense model; the mask; the clients' links.",
        [
            ("How much", _first()),
            ("By phase and encoding", _parts()),
            ("The mask", _mask()),
            ("Links", _links()),
        ],
    )


def _rate(height: str) -> str:
    return f"rate(ssfl_{height}_bytes_total{{{SELECTED}}}[{WINDOW}])"


def _first() -> list[Panel]:
    return [
        *(
            stat(
                f"Sent {direction}",
                f"Encoded tensors sent {direction} since the coordinator process started; "
                "the status page and the report show the whole run.",
                f'sum(ssfl_payload_bytes_total{{{SELECTED}, direction="{direction}"}})',
                unit="decbytes",
                no_data=NOTHING,
            )
            for direction in ("up", "down")
        ),
        *(
            stat(
                f"Of dense, {direction}",
                "Values sent for training and evaluation since the coordinator process started, as "
                f"a share of the dense model as float32, {direction}.",
                f'ssfl_bytes_to_dense_ratio{{{SELECTED}, direction="{direction}"}}',
                unit="percentunit",
                no_data="no round yet",
            )
            for direction in ("up", "down")
        ),
        stat(
            "Density",
            "Share of maskable weights that the mask keeps.",
            f"ssfl_mask_density_ratio{{{SELECTED}}}",
            unit="percentunit",
            no_data="no mask yet",
        ),
        stat(
            "Message overhead",
            "Bytes that messages add to their encoded tensors: headers, checksums, requests.",
            f"sum(ssfl_message_bytes_total{{{SELECTED}}}) / "
            f"sum(ssfl_payload_bytes_total{{{SELECTED}}}) - 1",
            unit="percentunit",
            no_data=NOTHING,
        ),
        lines(
            "Bytes per second",
            "Encoded tensors by direction, mean over the window.",
            [Query(f"sum by (direction) ({_rate('payload')})", "{{direction}}")],
            unit="Bps",
            colors=DIRECTIONS,
            no_data=NOTHING,
        ),
        lines(
            "Bytes per round",
            "Encoded tensors divided by committed rounds, over the window. More rounds in it give "
            "a better estimate.",
            [
                Query(
                    f"sum by (direction) ({_rate('payload')}) / on () group_left () "
                    f"(sum(rate(ssfl_rounds_total{{{SELECTED}}}[{WINDOW}])) > 0)",
                    "{{direction}}",
                )
            ],
            unit="decbytes",
            colors=DIRECTIONS,
            no_data="no round ended in this window: choose a longer one above",
        ),
    ]


def _parts() -> list[Panel]:
    return [
        lines(
            "By phase",
            "Encoded tensors by phase of the run: initial model, scores, mask, values.",
            [Query(f"sum by (phase) ({_rate('payload')}) > 0", "{{phase}}")],
            unit="Bps",
            stacked=True,
            no_data=NOTHING,
        ),
        lines(
            "By encoding",
            "Encoded tensors by their encoding on the wire.",
            [Query(f"sum by (encoding) ({_rate('payload')}) > 0", "{{encoding}}")],
            unit="Bps",
            stacked=True,
            no_data=NOTHING,
        ),
        lines(
            "Sent, compared with dense",
            "Values sent for training and evaluation since the coordinator process started, and "
            "the same transfers with the dense model as float32 (dashed).",
            [
                Query(
                    f"sum by (direction) (ssfl_dense_bytes_total{{{SELECTED}}})",
                    "dense {{direction}}",
                ),
                Query(
                    "sum by (direction) "
                    f'(ssfl_payload_bytes_total{{{SELECTED}, phase=~"{COMPARED}"}})',
                    "sent {{direction}}",
                ),
            ],
            unit="decbytes",
            colors={
                "dense up": ORANGE,
                "dense down": BLUE,
                "sent up": ORANGE,
                "sent down": BLUE,
            },
            dashed=["dense up", "dense down"],
            logarithmic=True,
            no_data="no round yet",
        ),
        lines(
            "Tensors, messages, TCP",
            "The same traffic at three levels: encoded tensors, whole messages, and the kernel's "
            "count. They should be close together; a gap is overhead or retransmission.",
            [
                Query(f"sum({_rate('payload')})", "tensors"),
                Query(f"sum({_rate('message')})", "messages"),
                Query(f"sum({_rate('socket')})", "TCP"),
            ],
            unit="Bps",
            colors={"tensors": GREEN, "messages": SKY, "TCP": BLUE},
            no_data=NOTHING,
        ),
    ]


def _mask() -> list[Panel]:
    return [
        lines(
            "Kept weights",
            "Weights that the mask keeps, and all values of the model (dashed). Purple marks show "
            "new masks.",
            [
                Query(f"ssfl_mask_kept_weights{{{SELECTED}}}", "kept"),
                Query(f"ssfl_model_values{{{SELECTED}}}", "all values"),
            ],
            unit="short",
            colors={"kept": GREEN, "all values": ORANGE},
            dashed=["all values"],
            logarithmic=True,
            no_data="no mask yet",
        ),
        lines(
            "Masks agreed",
            "Number of masks agreed so far; the legend has the digest of the newest.",
            [
                Query(
                    f"ssfl_mask_epoch{{{SELECTED}}} * on (job, instance) group_left (mask_digest) "
                    f"ssfl_mask_info{{{SELECTED}}}",
                    "{{mask_digest}}",
                )
            ],
            unit="short",
            no_data="no mask yet",
        ),
    ]


def _links() -> list[Panel]:
    return [
        lines(
            "Slowest links",
            "Upload rate of each client's newest result: the ten slowest.",
            [
                Query(
                    "bottomk(10, max by (client) "
                    f"(ssfl_client_upload_bytes_per_second{{{SELECTED}}}))",
                    "{{client}}",
                )
            ],
            unit="Bps",
            no_data="no result yet",
        ),
        lines(
            "Resumed transfers",
            "Resumed uploads and downloads in the window, as the coordinator counts them.",
            [
                Query(
                    f"sum by (direction) (increase(ssfl_resumes_total{{{SELECTED}}}[{WINDOW}]))",
                    "{{direction}}",
                )
            ],
            unit="short",
            bars=True,
            colors=DIRECTIONS,
            no_data="none",
        ),
        lines(
            "Sites: bytes per second",
            "Encoded tensors as counted by the clients that are scraped.",
            [
                Query(
                    "sum by (instance, direction) (rate(ssfl_site_payload_bytes_total[$window]))",
                    "{{instance}} {{direction}}",
                )
            ],
            unit="Bps",
            no_data="no client is scraped",
        ),
        lines(
            "Sites: time of a transfer",
            "0.9 quantile over the window, as measured by the clients.",
            [
                Query(
                    "histogram_quantile(0.9, sum by (instance, direction, le) "
                    "(rate(ssfl_site_transfer_seconds_bucket[$window])))",
                    "{{instance}} {{direction}}",
                )
            ],
            unit="s",
            no_data="no client is scraped",
        ),
    ]
