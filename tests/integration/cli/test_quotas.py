"""penstock quota."""


def test_the_life_of_a_quota(penstock) -> None:
    entity = ("user=life", "client-id=app")
    done = penstock("quota", "set", *entity, "producer_byte_rate=1MB", "request_percentage=12.5")
    assert done.err == "Set producer_byte_rate, request_percentage of user=life client-id=app\n"
    rows = [row for row in penstock("quota", "ls", "-o", "ndjson").lines if row["entity"].startswith("user=life")]
    assert rows == [
        {"entity": "user=life client-id=app", "quota": "producer_byte_rate", "value": 1_000_000},
        {"entity": "user=life client-id=app", "quota": "request_percentage", "value": 12.5},
    ]
    removed = penstock("quota", "rm", *entity, "request_percentage")
    assert removed.err == "Removed request_percentage from user=life client-id=app\n"
    penstock("quota", "rm", *entity)
    assert "user=life" not in penstock("quota", "ls").out
    assert "has no quota" in penstock("quota", "rm", *entity, code=3).err
    penstock("quota", "rm", *entity, "--if-exists")


def test_a_kind_without_a_name_means_all_others(penstock) -> None:
    penstock("quota", "set", "ip", "connection_creation_rate=100000")
    assert {"entity": "ip", "quota": "connection_creation_rate", "value": 100_000} in penstock(
        "quota", "ls", "-o", "json"
    ).json
    penstock("quota", "rm", "ip")


def test_mistakes_are_sentences(penstock) -> None:
    assert "No entity" in penstock("quota", "set", "producer_byte_rate=1", code=2).err
    assert "No quota to set" in penstock("quota", "set", "user=x", code=2).err
    assert "is not an amount" in penstock("quota", "set", "user=x", "producer_byte_rate=much", code=2).err
    assert "has no name" in penstock("quota", "set", "user=", "producer_byte_rate=1", code=2).err
    refused = penstock("quota", "set", "user=x", "speed=1", code=1)
    assert "There is no quota 'speed'" in refused.err
    assert len(refused.err.splitlines()) == 1
