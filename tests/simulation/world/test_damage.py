"""Damage while a process is down is there at the next start, also after a power cut."""

from pathlib import Path
from random import Random

from tests.loops import in_loop, simulated
from tests.simulation.world.damage import cut_file, flip_bit, remove_file, zero_rest
from tests.simulation.world.simulation import Simulation

HOST = "10.0.0.1"
FILE = Path("/store/file")
OTHER = Path("/store/other")


def written(simulation: Simulation, content: bytes = b"some bytes") -> None:
    """A file that was synced, whose process is gone."""
    disk = simulation.disk(HOST)
    mount = disk.mount()
    mount.make_directory(FILE.parent)
    mount.write_file(FILE, content)
    disk.kill()


def found(simulation: Simulation, path: Path = FILE) -> bytes | None:
    """The file at the next start, after a power cut in between."""
    disk = simulation.disk(HOST)
    disk.mount()
    disk.power_cut()
    content = disk.mount().read_file(path)
    disk.kill()
    return content


@in_loop(simulated)
async def test_one_bit_differs(simulation: Simulation, /) -> None:
    written(simulation)
    at = flip_bit(simulation.disk(HOST), FILE, Random(1), end=4)
    content = found(simulation)
    assert content is not None
    differing = [n for n, byte in enumerate(content) if byte != b"some bytes"[n]]
    assert differing == [at]
    assert at < 4
    assert (content[at] ^ b"some bytes"[at]).bit_count() == 1


@in_loop(simulated)
async def test_a_cut_file_is_shorter(simulation: Simulation, /) -> None:
    written(simulation)
    size = cut_file(simulation.disk(HOST), FILE, Random(1))
    assert found(simulation) == b"some bytes"[:size]


@in_loop(simulated)
async def test_the_rest_of_a_file_is_zeros(simulation: Simulation, /) -> None:
    written(simulation)
    zero_rest(simulation.disk(HOST), FILE, 4)
    assert found(simulation) == b"some\0\0\0\0\0\0"


@in_loop(simulated)
async def test_a_removed_file_does_not_come_back(simulation: Simulation, /) -> None:
    written(simulation)
    remove_file(simulation.disk(HOST), FILE)
    assert found(simulation) is None


@in_loop(simulated)
async def test_an_old_copy_replaces_everything_as_often_as_one_likes(
    simulation: Simulation, /
) -> None:
    written(simulation)
    disk = simulation.disk(HOST)
    copy = disk.copy()
    for _ in range(2):
        mount = disk.mount()
        mount.write_file(FILE, b"newer")
        mount.write_file(OTHER, b"later")
        disk.kill()
        disk.put_back(copy)
        assert found(simulation) == b"some bytes"
        assert found(simulation, OTHER) is None
