"""The handshake: only both ends of one connection with the same token can complete it, and it sends no token."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipexctl.node.common.frames import FrameError, decode_json, encode_json
from ipexctl.node.common.token_proof import (
    CHECKPOINT_EXCHANGE,
    CHECKPOINT_FILES,
    FILES,
    LINK_SPEED,
    MAX_FRAME,
    RANKS,
    ClientHandshake,
    ConnectionBroken,
    HandshakeError,
    MessageSocket,
    ServerHandshake,
    derive_token,
)

TOKEN = "0123456789abcdef" * 4
PORTS = (RANKS, CHECKPOINT_EXCHANGE, CHECKPOINT_FILES, FILES, LINK_SPEED)


def sent(message: dict[str, Any]) -> dict[str, Any]:
    """As the other end receives it."""
    return decode_json(encode_json(message)[5:])


@pytest.mark.parametrize("port", PORTS)
def test_both_ends_with_the_token_accept_each_other(port: str) -> None:
    server, client = ServerHandshake(TOKEN, port), ClientHandshake(TOKEN, port, rank=3, host="n\u00f6de", attempt=None)
    hello = sent(client.hello(sent(server.challenge())))
    assert (hello["rank"], hello["host"], hello["attempt"]) == (3, "n\u00f6de", None)
    server.check(hello)
    welcome = sent(server.welcome(offsets={"out": 1}, stop=False))
    client.check(welcome)
    assert welcome["offsets"] == {"out": 1}


def test_messages_have_neither_token_nor_key() -> None:
    server, client = ServerHandshake(TOKEN, FILES), ClientHandshake(TOKEN, FILES)
    messages = [server.challenge()]
    messages.append(client.hello(messages[0]))
    server.check(messages[1])
    messages.append(server.welcome())
    text = json.dumps(messages)
    keys = [hmac.new(TOKEN.encode(), json.dumps(["port", port]).encode(), hashlib.sha256).hexdigest() for port in PORTS]
    assert client._key.hex() in keys
    assert not [secret for secret in (TOKEN, *keys) if secret in text]


def test_each_port_and_purpose_has_its_own_key() -> None:
    keys = {ClientHandshake(TOKEN, port)._key.hex() for port in PORTS}
    derived = {derive_token(TOKEN, CHECKPOINT_FILES, name) for name in ("a", "b")} | {derive_token(TOKEN, FILES)}
    assert len(keys | derived | {TOKEN}) == len(PORTS) + 4
    assert derive_token(TOKEN, "a", "bc") != derive_token(TOKEN, "ab", "c")
    assert derive_token(TOKEN, "port", FILES) not in keys


@pytest.mark.parametrize(("token", "port"), [("f" * 64, RANKS), (TOKEN, FILES), (TOKEN[:-1], RANKS), ("", RANKS)])
def test_another_token_or_port_is_refused_by_both_ends(token: str, port: str) -> None:
    server, client = ServerHandshake(TOKEN, RANKS), ClientHandshake(TOKEN, RANKS)
    with pytest.raises(HandshakeError, match="doesn't have the token"):
        server.check(ClientHandshake(token, port).hello(server.challenge()))
    other = ServerHandshake(token, port)
    other._peer_nonce = client.hello(other.challenge())["nonce"]
    with pytest.raises(HandshakeError, match="doesn't have the token"):
        client.check(other.welcome())


def test_recorded_messages_are_refused_on_another_connection() -> None:
    server, client = ServerHandshake(TOKEN, RANKS), ClientHandshake(TOKEN, RANKS)
    challenge = server.challenge()
    hello = client.hello(challenge)
    server.check(hello)
    welcome = server.welcome()
    with pytest.raises(HandshakeError):
        ServerHandshake(TOKEN, RANKS).check(hello)
    victim = ClientHandshake(TOKEN, RANKS)
    victim.hello(challenge)
    with pytest.raises(HandshakeError):
        victim.check(welcome)


def test_own_proof_is_no_proof_of_the_other_end() -> None:
    server, client = ServerHandshake(TOKEN, RANKS), ClientHandshake(TOKEN, RANKS)
    hello = client.hello(server.challenge())
    for proof in (hello["proof"], [hello["proof"]]):
        with pytest.raises(HandshakeError):
            client.check({"t": "welcome", "proof": proof})
    with pytest.raises(HandshakeError):
        client.check(hello)
    # A server that answers with the client's own nonce learns a proof of the client for it, and none of the server.
    mirrored = ClientHandshake(TOKEN, RANKS)
    same = mirrored.hello({"t": "challenge", "nonce": mirrored._nonce})
    with pytest.raises(HandshakeError):
        mirrored.check({**same, "t": "welcome"})
    # Nor is the proof of a server one of a client, for whoever connects to two servers.
    server.check(hello)
    with pytest.raises(HandshakeError):
        server.check({**hello, "proof": server.welcome()["proof"]})


@pytest.mark.parametrize("change", [{"rank": 1}, {"more": 1}, {"rank": "0"}, {"nonce": "b" * 32}, {"t": "welcome"}])
def test_changed_hello_is_refused(change: dict[str, Any]) -> None:
    server = ServerHandshake(TOKEN, RANKS)
    hello = ClientHandshake(TOKEN, RANKS, rank=0).hello(server.challenge())
    with pytest.raises(HandshakeError):
        server.check({**hello, **change})
    server.check(hello)


def test_changed_welcome_is_refused() -> None:
    server, client = ServerHandshake(TOKEN, RANKS), ClientHandshake(TOKEN, RANKS)
    server.check(client.hello(server.challenge()))
    welcome = server.welcome(attempt=1)
    for change in ({"attempt": 2}, {"stop": True}, {"t": "challenge"}):
        with pytest.raises(HandshakeError):
            client.check({**welcome, **change})
    client.check(welcome)


@pytest.mark.parametrize(
    "challenge",
    [{}, {"t": "challenge"}, *({"t": "challenge", "nonce": nonce} for nonce in (None, 1, "", "a" * 31, "a" * 4000))],
)
def test_client_sends_no_proof_for_a_malformed_challenge(challenge: dict[str, Any]) -> None:
    with pytest.raises(HandshakeError):
        ClientHandshake(TOKEN, RANKS).hello(challenge)


def test_client_answers_one_challenge_and_no_welcome_before_it() -> None:
    server, client = ServerHandshake(TOKEN, RANKS), ClientHandshake(TOKEN, RANKS)
    with pytest.raises(HandshakeError):
        client.check({"t": "welcome", "proof": ""})
    client.hello(server.challenge())
    with pytest.raises(HandshakeError):
        client.hello(server.challenge())


def signed(*orders: dict[str, Any]) -> tuple[ClientHandshake, list[dict[str, Any]]]:
    """Orders as a server sends them to a client that it has met."""
    server, client = ServerHandshake(TOKEN, RANKS), ClientHandshake(TOKEN, RANKS)
    server.check(client.hello(server.challenge()))
    client.check(server.welcome())
    proof = server.order_proof()
    return client, [sent(proof.sign(order)) for order in orders]


@pytest.mark.parametrize(
    "arriving",
    [
        lambda first, second: [first, first],
        lambda first, second: [second],
        lambda first, second: [first, {**second, "line": "other"}],
        lambda first, second: [first, {**second, "more": 1}],
        lambda first, second: [first, {**second, "proof": first["proof"]}],
        lambda first, second: [first, {"t": "shell", "line": "true"}],
        lambda first, second: [first, signed({"t": "start"}, {"t": "shell", "line": "true"})[1][1]],
    ],
    ids=["repeated", "reordered", "changed", "longer", "proof of another", "no proof", "of another connection"],
)
def test_order_counts_only_as_it_was_sent(arriving: Callable[..., list[dict[str, Any]]]) -> None:
    client, orders = signed({"t": "start"}, {"t": "shell", "line": "true"})
    proof = client.order_proof()
    for order in orders:
        proof.check(order)
    *before, last = arriving(*orders)
    proof = client.order_proof()
    for order in before:
        proof.check(order)
    with pytest.raises(HandshakeError):
        proof.check(last)


VALUES = st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=3), st.lists, max_leaves=3)
DEEP: list[Any] = []
for _ in range(3000):
    DEEP = [DEEP]


@given(st.sampled_from(["t", "nonce", "proof", "rank"]), VALUES)
def test_malformed_hello_is_refused_without_another_error(field: str, value: object) -> None:
    server = ServerHandshake(TOKEN, RANKS)
    hello = ClientHandshake(TOKEN, RANKS, rank=-1).hello(server.challenge())
    with pytest.raises(HandshakeError):
        server.check({**hello, field: value})


@pytest.mark.parametrize("value", [DEEP, 10**5000, "\ud800"], ids=["deep", "long", "surrogate"])
@pytest.mark.parametrize("field", ["proof", "rank"])
def test_value_without_a_text_is_refused(field: str, value: object) -> None:
    server = ServerHandshake(TOKEN, RANKS)
    with pytest.raises(HandshakeError):
        server.check({**ClientHandshake(TOKEN, RANKS).hello(server.challenge()), field: value})


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\xff\xff\xff\xffJ", FrameError),
        ((MAX_FRAME + 1).to_bytes(4, "big") + b"J", FrameError),
        (b"", ConnectionBroken),
    ],
)
def test_frame_before_the_handshake_is_bounded(data: bytes, error: type[Exception]) -> None:
    own, other = socket.socketpair()
    with own, other:
        other.sendall(data)
        other.close()
        with pytest.raises(error):
            list(MessageSocket(own).receive())


def test_truncated_hello_is_no_message() -> None:
    server = ServerHandshake(TOKEN, RANKS)
    hello = encode_json(ClientHandshake(TOKEN, RANKS).hello(server.challenge()))
    own, other = socket.socketpair()
    with own, other:
        conn = MessageSocket(own)
        other.sendall(hello[:-1])
        assert list(conn.receive()) == []
        assert conn.reader.has_rest
        other.sendall(hello[-1:])
        ((_, payload),) = conn.receive()
        server.check(decode_json(payload))
        assert not conn.reader.has_rest
