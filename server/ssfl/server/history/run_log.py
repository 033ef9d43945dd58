"""The log lines of a run: one per notable fact, and warnings about sample counts.

Counts are claims of the clients. --max-samples limits their effect; this module only warns.
"""

import logging
from typing import Any

from ssfl.method.manifest import Manifest
from ssfl.method.mask import Mask
from ssfl.server.history.density_table import density_table, layer_table, link_speeds
from ssfl.server.history.run_history import Newest, personal_entry
from ssfl.server.run import facts
from ssfl.server.run.facts import Fact
from ssfl.server.run.state import Member, RunState, weight_of
from ssfl.strategies.contract import ClientId, Work

log = logging.getLogger("ssfl.run")

COARSE = 0.5  # share of an update lost in coding at which a run hardly learns
MIN_CLIENTS = 3  # of two clients, one nearly always has more than half


def log_fact(fact: Fact, state: RunState, history: Newest) -> None:
    """Log a fact; `state` and `history` are those after it."""
    match fact:
        case facts.ClientJoined() if not fact.manifest_digest:
            _info("client joined", client=fact.client, num_samples=fact.num_samples)
        case facts.ModelInitialized():
            _info("model initialized", client=fact.client, manifest=fact.manifest_digest[:12])
        case facts.RunStarted():
            _info("run started", clients=len(fact.clients))
            _log_fingerprints(state)
            warn_of_majority(state)
        case facts.StepStarted(work=Work.SCORE, reason=reason) if reason:
            event = f"refreshing the mask: {reason}"
            _info(event, clients=len(fact.cohort), round=fact.round_number)
        case facts.StepStarted(work=Work.TRAIN):
            _info("round started", round=fact.round_number, clients=len(fact.cohort))
        case facts.StepStarted():
            _info(f"{fact.work.value} started", clients=len(fact.cohort))
        case facts.UploadAccepted():
            log.debug("upload accepted", extra={"client": fact.client, "step": fact.step})
        case facts.StepClosed(missing=missing) if missing:
            names = ", ".join(missing)
            log.warning("step closed without some clients", extra={"missing": names})
        case facts.StepVoided():
            then = "to be tried again after the pause" if state.paused else "trying again"
            log.warning("step void, %s", then, extra={"reason": fact.reason})
        case facts.StepCommitted():
            _committed(state, history)
        case facts.RunPaused():
            _info("run paused: nothing new begins until `ssfl resume`", rounds=state.rounds_done)
        case facts.RunResumed():
            _info("run resumed", rounds=state.rounds_done)
        case facts.RunFinished():
            digest = state.base_digest[:12] or "none"
            early = {"early": fact.reason} if fact.reason else {}
            _info("run stopped" if fact.stopped else "run finished", model=digest, **early)
        case facts.ClientLeft():
            _info("client left", client=fact.client, has_final_model=fact.finished)


def _log_fingerprints(state: RunState) -> None:
    """Log groups of clients on whose machines the same training gives different bits."""
    groups: dict[str, list[str]] = {}
    for client in state.founders:
        groups.setdefault(state.members[client].fingerprint, []).append(client)
    if len(groups) > 1:
        names = {
            fingerprint: ", ".join(clients[:5]) + (" …" if clients[5:] else "")
            for fingerprint, clients in groups.items()
        }
        _info(
            "clients differ in library versions, CPU kernels or threads: the same seed gives the "
            "same model only if each client trains on the same kind of machine again",
            fingerprints=names,
        )


def log_mask(mask: Mask, manifest: Manifest, history: Newest) -> None:
    """Log the agreed mask, the votes and what each layer keeps; warn of emptied tensors."""
    kept, renewed = mask.num_kept, history.newest_mask["renewed"]
    changed: dict[str, Any] = {}
    if renewed and renewed["reason"]:
        changed = {"epoch": history.newest_mask["epoch"], "new": f"{renewed['replaced']:.1%}"}
    _info(
        "mask refreshed" if changed else "mask agreed",
        kept=kept,
        of=mask.size,
        density=f"{kept / mask.size:.4f}",
        density_of_all=f"{(kept + manifest.num_unmasked) / manifest.size:.4f}",
        digest=mask.digest.hex()[:12],
        **changed,
    )
    if history.votes:
        votes = [f"{row['client']} {100 * row['share']:.1f} %" for row in history.votes]
        _info("votes by share of the data: " + _first(12, votes))
    else:
        _info("no client was asked: the mask follows from the seed or from the weights")
    _info("what each layer keeps\n" + layer_table(mask.kept_by_tensor(manifest)))
    if history.densities:
        table = density_table(history.densities, link_speeds(history.votes), kept)
        _info("what each sparsity would cost\n" + table)
    if history.not_voted:
        log.warning("did not vote", extra={"clients": ", ".join(history.not_voted)})
    for name, (num_kept, size) in mask.kept_by_tensor(manifest).items():
        if num_kept == 0:
            log.warning(
                "the mask empties a tensor: nothing passes through it; lower the sparsity",
                extra={"tensor": name, "size": size},
            )


def _warn_of_coding(entry: dict[str, Any], value_type: str) -> None:
    if entry["coding_error"] >= COARSE:
        log.warning(
            "the value type is too coarse for these updates: most of their content is lost",
            extra={"value_type": value_type, "lost": f"{entry['coding_error']:.0%}"},
        )
    others = [row["client"] for row in entry["clients"] if row.get("encoding") != value_type]
    if value_type != "float32" and others:
        _info("some updates are not in the encoding of the run", clients=_first(5, others))


def _log_clipped(entry: dict[str, Any], limit: float) -> None:
    clipped = [row for row in entry["clients"] if "clipped" in row]
    if norms := [f"{row['client']} {row['clipped']:.4g}" for row in clipped]:
        log.warning(
            "updates were clipped to --max-update-norm",
            extra={"round": entry["round"], "limit": limit, "norms": _first(12, norms)},
        )


def _committed(state: RunState, history: Newest) -> None:
    if history.last_work is Work.TRAIN and not history.is_round:
        _info("mask chosen in a step of the strategy", kept=history.newest_mask["num_kept"])
    elif history.last_work is Work.TRAIN:
        newest = history.newest_round
        _info(
            "round committed",
            round=newest["round"],
            reported=len(newest["clients"]),
            **_tested("base_accuracy", newest),
            training_loss=f"{newest['training_loss']:.4f}",
            model=state.base_digest[:12],
            **{name: f"{share:.4f}" for name, share in newest.get("mask", {}).items()},
            **({"coding_error": f"{newest['coding_error']:.3g}"} if newest["coding_error"] else {}),
        )
        _warn_of_coding(newest, state.settings.value_type)
        _log_clipped(newest, state.settings.max_update_norm)
    elif history.last_work is Work.PERSONALIZE:
        _log_personal(state, history)
    elif history.last_work is Work.EVALUATE:
        last, best = history.newest_evaluation, state.best
        is_best = best is not None and best.rounds_done == state.rounds_done
        _info(
            "global model evaluated",
            rounds_done=state.rounds_done,
            **_tested("pooled", last),
            **({} if last["mean"] is None else {"mean": f"{100 * last['mean']:.2f}%"}),
            **({} if last["loss"] is None else {"loss": f"{last['loss']:.4f}"}),
            **({"best": True} if is_best else {}),
        )


def _log_personal(state: RunState, history: Newest) -> None:
    end = personal_entry(history.personal, from_rounds=not state.settings.personalize_epochs)
    if end and end["personal"]["mean"] is not None:
        means = {name: f"{100 * end[name]['mean']:.2f}%" for name in ("global", "personal")}
        counts = {"clients": end["own_models"], "of": len(end["clients"])}
        _info("personal models tested: mean over clients that have one", **counts, **means)


def _tested(name: str, entry: dict[str, Any]) -> dict[str, str]:
    """Return the accuracy under `name`, if the task has one, and its other metrics."""
    metrics = {key: f"{value:.4g}" for key, value in entry["metrics"].items()}
    accuracy = entry["pooled"]
    return metrics if accuracy is None else {name: f"{100 * accuracy:.2f}%", **metrics}


def _first(count: int, texts: list[str]) -> str:
    """Return the first texts of a list, and how many more there are."""
    more = f" and {len(texts) - count} more" if texts[count:] else ""
    return ", ".join(texts[:count]) + more


def _info(event: str, **fields: Any) -> None:
    log.info(event, extra=fields)


def majority(state: RunState) -> ClientId | None:
    """Return the ready client that has more than half of all samples, if there is one."""
    weights = {name: weight_of(state.members[name], state.settings) for name in state.ready}
    if len(weights) < MIN_CLIENTS:
        return None
    client = max(weights, key=lambda name: weights[name])
    return client if 2 * weights[client] > sum(weights.values()) else None


def warn_of_majority(state: RunState) -> ClientId | None:
    """Log and return the client that has more than half of all samples."""
    client = majority(state)
    if client is not None:
        log.warning(
            "one client has more than half of all samples: the model is mostly its own "
            "(--max-samples bounds what a client may claim)",
            extra={"client": client, "num_samples": state.members[client].num_samples},
        )
    return client


class SampleCounts:
    """Checks clients that join; logs each warning once per client."""

    def __init__(self) -> None:
        self._changed: set[ClientId] = set()
        self._majority: set[ClientId] = set()

    def joined(self, client: ClientId, before: Member | None, state: RunState) -> None:
        """Check a client that has just joined; `before` is its earlier membership, if any."""
        now = state.members[client]
        if before and before.num_samples != now.num_samples and client not in self._changed:
            self._changed.add(client)
            log.warning(
                "a client joined again with another number of samples: it counts from the next "
                "step on",
                extra={"client": client, "was": before.num_samples, "num_samples": now.num_samples},
            )
        if state.founders and client not in self._majority and majority(state) == client:
            self._majority.add(client)  # before the start, more clients may join
            warn_of_majority(state)
