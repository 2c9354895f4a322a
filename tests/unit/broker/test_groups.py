"""Groups and topics on the real store."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from gateway import model
from gateway.broker.administration.topics import PAGE_PARTITIONS
from gateway.broker.consume import groups
from gateway.broker.consume.groups import PAGE, decode_key, encode_key
from gateway.broker.publish.partitions import fnv1a
from gateway.errors import InvalidRequest, UnknownGroup, UnknownPartition, UnknownTopic
from gateway.requests import (
    CommitOffset,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DescribeTopics,
    GroupOffset,
    JoinGroup,
    ListGroups,
    ReadOffset,
    TopicCreated,
)
from tests.unit.broker.house import opened


def test_the_partitioner_is_the_one_flymq_clients_expect():
    """FlyMQ wire 4: check values."""
    known = {b"user-123": 0x8C93CC93, b"a": 0xE40C292C, b"key": 0x6815C86C, b"order-42": 0x572446F4}
    assert {key: fnv1a(key) for key in known} == known


def test_keys_of_offsets_do_not_collide():
    keys = [("a", "bc", 1), ("ab", "c", 1), ("", "abc", 1), ("a\0", "b", 0)]
    assert len({encode_key(*key) for key in keys}) == len(keys)
    assert [decode_key(encode_key(*key)) for key in keys] == keys


async def test_offsets_survive_a_restart_and_are_forgotten_with_their_topic(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await client.publish("t", b"a", b"b")
        await client.ask(CommitOffset(0, "t", "g", 0, 1))
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        assert await client.ask(ReadOffset(0, "t", "g", 0)) == GroupOffset(1, True, 0, 2)
        await client.ask(DeleteTopic(0, "t"))
        assert await client.ask(ReadOffset(0, "t", "g", 0)) == GroupOffset(None, False)


async def test_a_commit_needs_no_topic_unless_it_says_so(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await client.ask(CommitOffset(0, "nope", "g", 3, 2**64 - 1))
        assert (await client.ask(ReadOffset(0, "nope", "g", 3))).offset == 2**64 - 1
        assert isinstance(await client.ask(CommitOffset(0, "nope", "g", 0, 1, must_exist=True)), UnknownTopic)
        assert isinstance(await client.ask(CommitOffset(0, "nope", "g", -1, 1)), UnknownPartition)


async def test_members_count_while_they_are_connected(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client, member = gateway.client(), gateway.client()
        await member.ask(JoinGroup(0, "t", "g"))
        (group,) = (await client.ask(ListGroups(0))).groups
        assert (group.address, group.group, group.members, group.offsets) == ("t", "g", 1, [])
        member.side.detach()
        (group,) = (await client.ask(ListGroups(0))).groups
        assert (group.members, group.offsets) == (0, [])  # it is there, as at the original (FlyMQ wire 1, SUBSCRIBE)
        assert (await client.ask(ReadOffset(0, "t", "g", 0))).group_exists
        await client.ask(DeleteGroup(0, "t", "g"))
        assert not (await client.ask(ListGroups(0))).groups


async def test_how_many_groups_without_anything_are_remembered_is_bounded(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(groups, "MOST_LEFT", 2)
    async with opened(tmp_path) as gateway:
        for name in "abc":
            member = gateway.client()
            await member.ask(JoinGroup(0, "t", name))
            member.side.detach()
        assert [group.group for group in (await gateway.client().ask(ListGroups(0))).groups] == ["b", "c"]


async def test_deleting_a_group(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        for topic in ("a", "b"):
            await client.ask(CommitOffset(0, topic, "g", 0, 1))
        await client.ask(DeleteGroup(0, "a", "g"))
        assert [group.address for group in (await client.ask(ListGroups(0))).groups] == ["b"]
        await client.ask(DeleteGroup(0, "", "g"))
        assert isinstance(await client.ask(DeleteGroup(0, "", "g")), UnknownGroup)


async def test_groups_are_listed_in_pages_and_found_by_name_and_topic(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        names = [f"g{number:04}" for number in range(PAGE + 1)]
        for name in reversed(names):
            client.start(CommitOffset(0, "b", name, 0, 1))
        for topic in ("a", "bb"):
            await client.ask(CommitOffset(0, topic, names[0], 0, 1))
        first = await client.ask(ListGroups(0))
        assert [(one.address, one.group) for one in first.groups] == [("a", names[0])] + [("b", n) for n in names[:-2]]
        rest = await client.ask(ListGroups(0, after=first.following))
        assert [(one.address, one.group) for one in rest.groups] == [("b", n) for n in names[-2:]] + [("bb", names[0])]
        assert rest.following is None
        assert [one.group for one in (await client.ask(ListGroups(0, "b"))).groups] == names[:PAGE]
        assert [one.address for one in (await client.ask(ListGroups(0, "", names[0]))).groups] == ["a", "b", "bb"]
        assert [one.address for one in (await client.ask(ListGroups(0, "bb", names[0]))).groups] == ["bb"]
        await client.publish("b", b"x")
        await client.ask(DeleteTopic(0, "b"))
        assert [one.address for one in (await client.ask(ListGroups(0))).groups] == ["a", "bb"]


async def test_the_groups_of_a_topic_go_page_by_page_and_one_that_comes_back_stays(
    tmp_path: Path, autojump_clock: MockClock
):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        await client.publish("t", b"x")
        names = [f"g{number:04}" for number in range(2 * PAGE + 1)]
        for name in names:
            client.start(CommitOffset(0, "t", name, 0, 1))
        await client.ask(DeleteTopic(0, "t"))
        await client.ask(CommitOffset(0, "t", names[-1], 0, 7))
        while len(left := (await client.ask(ListGroups(0))).groups) > 1:  # noqa: ASYNC110  # nobody announces it
            await trio.sleep(0.01)
        assert [(one.group, one.offsets) for one in left] == [(names[-1], [(0, 7)])]
    async with opened(tmp_path) as gateway:
        assert [one.group for one in (await gateway.client().ask(ListGroups(0))).groups] == [names[-1]]


async def test_topics_are_listed_in_pages_by_how_many_partitions_they_have(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path) as gateway:
        client = gateway.client()
        for name in ("c", "a", "b", "d"):
            await client.ask(CreateTopic(0, name, PAGE_PARTITIONS // 2))
        first = await client.ask(DescribeTopics(0))
        assert ([one.address for one in first.topics], first.following) == (["a", "b"], "b")
        await client.ask(DeleteTopic(0, "c"))
        rest = await client.ask(DescribeTopics(0, after="b"))
        assert ([one.address for one in rest.topics], rest.following) == (["d"], "")


async def test_topics_are_created_once_and_listed_by_their_bytes(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path, topics={"fixed": model.TopicSettings(partitions=2)}) as gateway:
        client = gateway.client()
        assert await client.ask(CreateTopic(0, "b", 3)) == TopicCreated(True, 3)
        assert await client.ask(CreateTopic(0, "b", 9)) == TopicCreated(False, 3)
        assert (await client.ask(CreateTopic(0, "fixed", 9))).partitions == 2
        assert isinstance(await client.ask(CreateTopic(0, "c", 0)), InvalidRequest)
        assert isinstance(await client.ask(CreateTopic(0, "__ours", 1)), InvalidRequest)
        await client.publish("B", b"x")
        listed = (await client.ask(DescribeTopics(0))).topics
        assert [info.address for info in listed] == ["B", "b", "fixed"]
        assert isinstance(await client.ask(DescribeTopics(0, "no")), UnknownTopic)


async def test_keys_keep_to_a_partition_and_the_others_take_turns(tmp_path: Path, autojump_clock: MockClock):
    async with opened(tmp_path, topics={"many": model.TopicSettings(partitions=4)}) as gateway:
        client = gateway.client()
        keyed = await client.publish("many", b"1", b"2", b"3", keys=[b"user-123", b"user-123", b"a"])
        assert [keyed.position(i) for i in range(3)] == [(3, 0), (3, 1), (0xE40C292C % 4, 0)]
        turns = await client.publish("many", *[b"x"] * 4, round_robin=True)
        assert sorted(turns.position(i)[0] for i in range(4)) == [0, 1, 2, 3]
        sticky = [await client.publish("many", b"y") for _ in range(3)]
        assert len({published.partition for published in sticky}) == 1
        assert isinstance(await client.publish("many", b"z", partition=4), UnknownPartition)
