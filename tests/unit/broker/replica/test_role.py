"""What a replica makes of news from a controller."""

from turbopump.broker.replica.role import News, Part, Role

OWN = 1
OTHER = 2


def master(replica_id: int, epoch: int, *ids: int, set_epoch: int = 1) -> News:
    return News(
        master_id=replica_id,
        master_address=f"10.0.1.{replica_id}:10911",
        master_epoch=epoch,
        sync_state_set=frozenset(ids or (replica_id,)),
        set_epoch=set_epoch,
    )


def test_a_replica_follows_an_election() -> None:
    role = Role(id=OWN).after(master(OTHER, 1))
    assert (role.part, role.master_address) == (Part.SLAVE, "10.0.1.2:10911")
    role = role.after(master(OWN, 2))
    assert (role.part, role.id_at_name_servers) == (Part.MASTER, 0)
    role = role.after(master(OTHER, 3))
    assert (role.part, role.id_at_name_servers) == (Part.SLAVE, OWN)


def test_news_that_come_late_change_nothing() -> None:
    role = Role(id=OWN).after(master(OTHER, 4))
    assert role.after(master(OWN, 3)) is role
    assert role.after(News(master_epoch=3)) is role


def test_a_process_that_has_just_started_is_not_the_master_of_an_old_epoch() -> None:
    role = Role(id=OWN, floor=4)
    assert role.is_stale(master(OWN, 4))
    assert role.after(master(OWN, 4)) is role
    assert role.after(master(OWN, 5)).is_master


def test_it_follows_another_master_of_the_old_epoch() -> None:
    assert Role(id=OWN, floor=4).after(master(OTHER, 4)).part is Part.SLAVE


def test_an_election_without_a_winner_ends_a_mastership() -> None:
    role = Role(id=OWN).after(master(OWN, 1))
    ended = role.after(News(master_epoch=2))
    assert (ended.part, ended.master_epoch) == (Part.WAITING, 2)
    assert ended.begins_again(role)
    assert ended.after(master(OWN, 1)) is ended


def test_a_missing_master_at_the_same_epoch_changes_nothing() -> None:
    role = Role(id=OWN).after(master(OTHER, 1))
    assert role.after(News(master_epoch=1)) is role


def test_a_newer_set_of_the_same_epoch_is_taken() -> None:
    role = Role(id=OWN).after(master(OWN, 1))
    grown = role.after(master(OWN, 1, OWN, OTHER, set_epoch=2))
    assert grown.sync_state_set == {OWN, OTHER}
    assert not grown.begins_again(role)
    assert grown.after(master(OWN, 1, OWN, set_epoch=2)) is grown


def test_a_set_without_the_master_is_not_believed() -> None:
    role = Role(id=OWN).after(master(OWN, 1))
    assert role.after(master(OWN, 1, OTHER, set_epoch=2)) is role


def test_a_slave_stays_open_when_its_master_changes() -> None:
    role = Role(id=OWN).after(master(OTHER, 1))
    assert not role.after(master(3, 2)).begins_again(role)


def test_a_master_elected_again_begins_a_new_epoch() -> None:
    role = Role(id=OWN).after(master(OWN, 1))
    assert role.after(master(OWN, 2)).begins_again(role)


def test_a_slave_takes_a_new_address_of_its_master() -> None:
    role = Role(id=OWN).after(master(OTHER, 1))
    moved = News(master_id=OTHER, master_address="10.0.9.9:1", master_epoch=1)
    assert role.after(moved).master_address == "10.0.9.9:1"
