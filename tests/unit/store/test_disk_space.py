"""How full is too full: levels from figures, refusals from levels, and what several disks make of
it."""

import errno
from pathlib import Path

import pytest

from turbopump.disk.disk import Space
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import StoreClosedError
from turbopump.store.disk_space import SpaceLevel, SpaceLimits, SpaceWatch
from turbopump.store.start_reserve import START_RESERVE_MAX, StartReserve

A, B, QUEUES = Path("/a"), Path("/b"), Path("/queues")


def used(percent: float) -> Space:
    return Space(1000, round(1000 - 10 * percent))


class AskedDisk(SystemDisk):
    """A disk whose answers are given here; what is not given cannot be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[Path, Space | OSError] = {}

    def space(self, path: Path) -> Space:
        answer = self.answers.get(path, OSError(errno.EIO, "Input/output error"))
        if isinstance(answer, OSError):
            raise answer
        return answer


class Watched:
    def __init__(self, *, limits: SpaceLimits | None = None, forcibly: bool = True) -> None:
        self.disk = AskedDisk()
        self.said: list[str] = []
        self.watch = SpaceWatch(
            self.disk,
            (A, B),
            (QUEUES,),
            limits or SpaceLimits(),
            self.said.append,
            self.said.append,
            forcibly=forcibly,
        )

    def look(self, **answers: Space | OSError) -> SpaceLevel:
        for name, answer in answers.items():
            self.disk.answers[Path("/") / name] = answer
        self.watch.check_space()
        return self.watch.level


@pytest.mark.parametrize(
    ("percent", "level"),
    [
        (75, SpaceLevel.NORMAL),
        (75.1, SpaceLevel.CLEAN),
        (85, SpaceLevel.CLEAN),
        (85.1, SpaceLevel.CLEAN_FORCIBLY),
        (90, SpaceLevel.CLEAN_FORCIBLY),
        (90.1, SpaceLevel.FULL),
        (100, SpaceLevel.FULL),
    ],
)
def test_levels_are_apaches_with_the_used_share_rounded_up(
    percent: float, level: SpaceLevel
) -> None:
    assert SpaceLimits().level_of(used(percent)) is level


@pytest.mark.parametrize(
    ("free", "level"),
    [
        (250, SpaceLevel.NORMAL),
        (249, SpaceLevel.CLEAN),
        (149, SpaceLevel.CLEAN_FORCIBLY),
        (100, SpaceLevel.CLEAN_FORCIBLY),
        (99, SpaceLevel.FULL),
    ],
)
def test_free_bytes_have_levels_in_the_same_proportion(free: int, level: SpaceLevel) -> None:
    assert SpaceLimits(free_min=100).level_of(Space(1 << 50, free)) is level


def test_ratios_out_of_bounds_count_as_the_nearest_within_as_in_apaches_broker() -> None:
    assert SpaceLimits(used_max=99, clean_forcibly=99, warning=99) == SpaceLimits(used_max=95)
    assert SpaceLimits(used_max=0, clean_forcibly=0, warning=0) == SpaceLimits(
        used_max=10, clean_forcibly=30, warning=35
    )


def test_an_empty_file_system_is_full() -> None:
    assert Space(0, 0).used_percent == 100


def test_of_several_roots_the_least_used_counts_and_the_queues_count_always() -> None:
    watched = Watched()
    assert watched.look(a=used(95), b=used(50), queues=used(10)) is SpaceLevel.NORMAL
    assert watched.watch.full_roots == {A}
    assert watched.watch.refusal is None
    assert watched.look(b=used(80)) is SpaceLevel.CLEAN
    assert watched.look(b=used(92)) is SpaceLevel.FULL
    assert watched.watch.refusal is not None
    assert "the disk of /b is full: 92 % used, 80 of 1000 bytes free" in watched.watch.refusal
    assert watched.look(a=used(20), b=used(20), queues=used(91)) is SpaceLevel.FULL
    assert "the disk of /queues is full: 91 % used" in (watched.watch.refusal or "")


def test_sends_are_refused_from_one_level_and_taken_from_another_each_change_told_once() -> None:
    watched = Watched()
    refused = []
    for percent in (80, 89, 91, 95, 89, 86, 91, 86, 85, 89, 91, 84):
        watched.look(a=used(percent), b=used(99), queues=used(0))
        refused.append(watched.watch.refusal is not None)
    assert refused == [False, False, True, True, True, True, True, True, False, False, True, False]
    assert [text.partition(":")[0] for text in watched.said] == [
        "sends are refused",
        "there is enough space again",
        "sends are refused",
        "there is enough space again",
    ]


@pytest.mark.parametrize(
    ("forcibly", "advice"),
    [
        (True, "deleted already (cleanFileForciblyEnable=true)"),
        (False, "at any age (cleanFileForciblyEnable)"),
    ],
)
def test_a_refusal_does_not_advise_what_is_switched_on(*, forcibly: bool, advice: str) -> None:
    watched = Watched(forcibly=forcibly)
    watched.look(a=used(95), b=used(95), queues=used(0))
    assert (watched.watch.refusal or "").endswith(advice)


def test_a_path_that_cannot_be_asked_changes_nothing_and_is_told_once() -> None:
    watched = Watched()
    broken = OSError(errno.EIO, "Input/output error")
    watched.look(a=used(95), b=used(95), queues=used(0))
    before = watched.watch.refusal
    watched.look(a=broken, b=broken)
    watched.look()
    assert (watched.watch.level, watched.watch.refusal) == (SpaceLevel.FULL, before)
    assert sum("cannot be read" in text for text in watched.said) == 1
    watched.look(a=used(5))
    assert watched.watch.refusal is None


def test_a_directory_without_a_file_yet_counts_as_what_it_will_lie_in() -> None:
    watched = Watched()
    watched.disk.answers[Path("/")] = used(88)
    assert (
        watched.look(a=used(5), b=FileNotFoundError(), queues=FileNotFoundError())
        is SpaceLevel.CLEAN_FORCIBLY
    )
    assert watched.said == []
    watched.disk.answers[Path("/")] = FileNotFoundError(errno.ENOENT, "No such file or directory")
    watched.look()
    assert "cannot be read" in watched.said[0]


def test_before_anything_is_known_nothing_is_refused() -> None:
    watched = Watched()
    assert watched.watch.level is SpaceLevel.NORMAL
    watched.look()
    assert watched.watch.refusal is None


def no_room() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def test_a_file_without_room_has_sends_refused_until_any_root_has_enough() -> None:
    watched = Watched(limits=SpaceLimits(free_min=1))
    watched.look(a=Space(1000, 99), b=Space(1000, 50), queues=Space(1000, 999))
    raised = watched.watch.no_room(no_room(), A, 100)
    assert isinstance(raised, StoreClosedError)
    assert (
        "no space for 100 bytes in /a (No space left on device; 91 % used, 99 of 1000 bytes free)"
    ) in str(raised)
    watched.look(a=Space(1000, 98))
    assert "98 of 1000 bytes free" in (watched.watch.refusal or ""), "the figures are the last ones"
    watched.look(b=Space(1000, 100))
    assert watched.watch.refusal is None


def test_a_queue_file_without_room_waits_for_room_where_the_queues_are() -> None:
    watched = Watched(limits=SpaceLimits(free_min=1))
    watched.look(a=Space(1000, 900), b=Space(1000, 900), queues=Space(1000, 10))
    watched.watch.no_room(no_room(), QUEUES, 100)
    watched.look()
    assert "no space for 100 bytes in /queues" in (watched.watch.refusal or "")
    watched.look(queues=Space(1000, 100))
    assert watched.watch.refusal is None


def test_another_error_of_a_new_file_is_passed_on_and_refuses_only_this_send() -> None:
    watched = Watched()
    error = OSError(errno.EACCES, "Permission denied")
    assert watched.watch.no_room(error, A, 100) is error
    assert watched.watch.refusal is None


def test_the_brokers_own_appends_leave_a_hundredth_or_16_mib_free() -> None:
    watched = Watched()
    fits = watched.watch.has_room_beside_reserve
    assert fits(1 << 40, 1 << 40), "nothing is known yet"
    watched.look(a=Space(1000, 50), b=Space(1000, 30), queues=Space(1000, 20))
    assert (fits(40, 0), fits(41, 0)) == (True, False)
    assert (fits(0, 15), fits(0, 16)) == (True, False), "queues may take half of it"
    assert fits(40, 15)
    assert not fits(41, 15)
    large = Space(1 << 50, 1 << 30)
    watched.look(a=large, b=large, queues=large)
    room = (1 << 30) - (16 << 20)
    assert (fits(room, 0), fits(room + 1, 0)) == (True, False)
    full = Space(1000, 0)
    watched.look(a=full, b=full, queues=full)
    assert fits(0, 0), "files that are there have their blocks"


class Reserve:
    """What a start keeps for itself, on a real directory of which is said how much room it has."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "turbopump.reserve"
        self.disk = AskedDisk()
        self.said: list[str] = []
        self.start()

    def start(self) -> None:
        self.reserve = StartReserve(self.disk, self.path, self.said.append)

    def free(self, size: int, total: int = 1_000_000) -> None:
        self.disk.answers[self.directory] = Space(total, size)

    @property
    def size(self) -> int | None:
        return self.disk.file_size(self.path)


def test_room_for_a_start_is_kept_once_there_is_plenty(tmp_path: Path) -> None:
    kept = Reserve(tmp_path)
    kept.free(99_999)
    kept.reserve.make_missing()
    assert kept.size is None
    kept.free(100_000)
    for _ in range(2):
        kept.reserve.make_missing()
        assert kept.size == 10_000
    kept.path.unlink()
    kept.start()
    kept.free(1 << 40, total=1 << 40)
    kept.reserve.make_missing()
    assert kept.size == START_RESERVE_MAX


def test_a_start_on_a_full_disk_gives_it_up_and_makes_it_of_what_is_left(tmp_path: Path) -> None:
    kept = Reserve(tmp_path)
    kept.free(500_000)
    kept.reserve.make_missing()
    kept.start()
    kept.reserve.use_if_full()
    assert (kept.size, kept.said) == (10_000, []), "nothing was wanting"
    kept.free(9_999)
    kept.reserve.use_if_full()
    assert kept.size is None
    assert "the disk is full" in kept.said[0]
    kept.reserve.make_missing()
    assert kept.size == 7_500


def test_a_start_without_it_goes_on_as_if_there_were_room(tmp_path: Path) -> None:
    kept = Reserve(tmp_path)
    kept.free(0)
    kept.reserve.use_if_full()
    kept.reserve.make_missing()
    assert (kept.size, kept.said) == (None, [])


def test_a_file_that_cannot_be_opened_is_reported_once_for_each_look() -> None:
    watched = Watched()
    error = OSError(errno.EMFILE, "Too many open files")
    for _ in range(3):
        assert watched.watch.no_room(error, QUEUES, 100) is error
    assert watched.said == [
        "a send is refused, because a file in /queues cannot be made or opened "
        "(Too many open files): "
        "raise the limit of open files (ulimit -n), or let fewer clients connect"
    ]
    watched.look()
    watched.watch.no_room(error, QUEUES, 100)
    assert len(watched.said) == 3, "the look could not ask either"
    assert watched.watch.refusal is None
