"""Faulty client behavior: repeated old messages and invalid messages."""

import hashlib

import numpy as np

from simulation.agents import ACCEPTED, Agent
from simulation.checker import Made
from simulation.site import Answer, request_of
from ssfl.client.errors import CallError
from ssfl.v1 import transfer_pb2


async def mischief(agent: Agent, kind: str) -> None:
    """Send an old or an invalid message; any answer of the coordinator is accepted."""
    world = agent.world
    rng = world.rng
    if not agent.site.sent or agent.is_uploading or not agent.caller.run_id:
        return
    answer = agent.site.sent[-1] if kind == "stale" else rng.choice(agent.site.sent)
    method, request = request_of(answer, agent.caller)
    payload = answer.payload
    if kind == "old session":
        request.caller.CopyFrom(rng.choice(agent.site.callers[:-1]))
    elif kind == "stale":
        if answer.kind != "values" or agent.asked is None:
            return
        request.header.step = agent.asked.step
        request.header.round_number = agent.asked.train.round_number
        request.header.attempt = agent.asked.train.attempt
    elif kind in ("other bytes", "not a number"):
        plain = answer.kind == "values" and request.header.values.encoding == 1
        if not plain or request.header.HasField("own_mask"):
            return
        bad = np.frombuffer(payload, dtype="<f4").copy()
        bad[0] = np.nan if kind == "not a number" else bad[0] + 1
        payload = bad.tobytes()
        digest = hashlib.sha256(payload)
        request.header.values.digest = digest.digest()
        made = Made(agent.site.name, "train", "", 0, bad, is_sound=False)
        world.checker.made[agent.site.name, digest.hexdigest()] = made
    world.say(agent.site.name, f"sends step {answer.step} again ({kind})")
    try:
        outcome = await agent.upload(method, request, payload, granted=rng.random() < 0.5)
    except CallError as error:
        world.say(agent.site.name, f"gets the error: {error}")
        return
    word = transfer_pb2.Outcome.Name(outcome)
    world.say(agent.site.name, f"has a receipt for the repetition: {word}")
    if outcome in ACCEPTED:
        sent = Answer(answer.kind, 0, request.header.SerializeToString(), payload)
        world.checker.acknowledged(agent.site.name, request.header.step, sent.digest, word)
