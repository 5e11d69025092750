"""What goes wrong with a group of replicas, drawn from the scenario's random source.

One rule keeps it fair: at most one replica at a time has lost something that it had acknowledged,
by damage, or by a power cut with ASYNC_FLUSH. It counts as damaged until it has its master's log
again.

Some deeds are sequences, for states that single faults seldom reach: a master with messages that no
other replica has (``cut_off_the_master``), one replica that must know everything (``leave_one``),
two sides that do not hear each other (``split``), masters that end one after the other
(``hunt_masters``), a slave that starts again and again (``flap``), a disk that forgets what it had
synced (``forget_writes``), and a fault at a moment instead of a time (``at_a_moment``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from tests.simulation.failover import CONTROLLER, HOSTS, NAMESRV, REPLICAS, SERVERS, STORE, Group
from tests.simulation.world.damage import cut_file, flip_bit, remove_file
from tests.simulation.world.disk import DiskCopy

from turbopump.config.broker_config import FlushDiskType

LONGEST_S = 12.0
"""Longest time of a cut, a pause, or a slow disk."""
CALM_S = 10.0
"""Longest wait for a group that acknowledges sends, before the next fault."""
SLOW_DISK_S = (0.05, 1.5)
LAGS_S = (0.05, 0.3, 1.0)
WHOM = ("it", "it", "other", "all", "controller", "alone", "split", "split", "split", "split")
MOMENTS = ("send", "change", "master", "elected", "elected", "joined", "joined", "joined")


class Faults:
    """Breaks things for a while."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.simulation = group.simulation
        self.rng: random.Random = group.simulation.random
        self._copies: dict[str, DiskCopy] = {}
        self._usual_disk_s: dict[str, tuple[float, float]] = {}
        self._has_ended = False

    async def make(self, seconds: float) -> None:
        """Break something every second or so for so long. What is cut or paused comes back."""
        loop = self.simulation.loop
        deeds = self.deeds()
        end = loop.time() + seconds
        while loop.time() < end:
            if self.group.shape.is_calm:
                await self._until_in_sync(len(REPLICAS))
            else:
                pause = self.rng.choice((0.02, 0.2, 1.0, 3.0))
                await asyncio.sleep(pause * self.rng.uniform(0.2, 2))
                if self.rng.random() < 0.5:
                    await self._until_in_sync(2)
            self.group.check_alive()
            self.rng.choice(deeds)()
            if self.group.shape.is_calm:
                await asyncio.sleep(self.rng.uniform(1, 3))
        self.heal()

    async def _until_in_sync(self, count: int) -> None:
        """Wait until so many replicas are in sync, for a while, and sends are acknowledged: what is
        lost must first be stored."""
        loop = self.simulation.loop
        deadline = loop.time() + CALM_S
        while len(self.group.in_sync()) < count and loop.time() < deadline:
            await asyncio.sleep(0.05)
        await asyncio.sleep(self.rng.uniform(0, 1))

    def deeds(self) -> list[Callable[[], None]]:
        """Each as often as it is likely."""
        is_calm = self.group.shape.is_calm
        weights = {
            self.cut_off_the_master: 6,
            self.leave_one: 5,
            self.split: 6,
            self.hunt_masters: 2,
            self.flap: 5,
            self.at_a_moment: 25 if is_calm else 9,
            self.lag: 3,
            self.slow_controller: 3,
            self.kill: 2,
            self.kill_all: 3,
            self.power_cut: 2,
            self.power_cut_in_an_operation: 1,
            self.power_cut_of_all: 1,
            self.pause: 3,
            self.cut_one_way: 2,
            self.isolate: 2,
            self.reset: 1,
            self.change_link: 1,
            self.slow_disk: 2,
            self.step_clock: 1,
            self.stop_cleanly: 1,
            self.trouble_the_controller: 3,
            self.kill_the_name_server: 1,
            self.damage: 3 if self.group.shape.is_damaged else 0,
            self.forget_writes: 5 if self.group.shape.is_damaged else 0,
            self.copy_a_store: 1 if self.group.shape.is_damaged else 0,
        }
        return [deed for deed, weight in weights.items() for _ in range(weight)]

    def heal(self) -> None:
        """End every cut, pause and slowness, and what was yet to come."""
        self._has_ended = True
        self.group.moments.clear()
        self.group.kept_down.clear()
        network = self.simulation.network
        for one in HOSTS:
            for other in HOSTS:
                if one != other:
                    self.group.restore_link(one, other)
                    if self.simulation.process(one).alive and self.simulation.process(other).alive:
                        network.heal(one, other)
            process = self.simulation.process(one)
            if process.paused:
                process.resume()
        for host in (CONTROLLER, *REPLICAS):
            self.simulation.disk(host).clear_faults()
            self._restore_disk(host)
        self.note("everything is healed")

    def note(self, event: str, count: str | None = None) -> None:
        self.group.note(event)
        if count is not None:
            self.group.counts[count] += 1

    # --- sequences

    def cut_off_the_master(self) -> None:
        """The master keeps its clients and loses its slaves, often the controller, too: it stores
        sends that nobody confirms. Sometimes it ends meanwhile."""
        self.group.moments["send"].append(self._cut_off)

    def _cut_off(self, host: str) -> None:
        others = [one for one in REPLICAS if one != host]
        if self.rng.random() < 0.6:
            others.append(CONTROLLER)
        seconds = self._shorter_or_longer_than_a_death()
        self.note(f"cut {host} off from {others} for {seconds:.1f} s", "cut_off_masters")
        for other in others:
            self._cut(host, other, seconds)
            if self.rng.random() < 0.7:
                self._cut(other, host, seconds)
        if self.rng.random() < 0.5:
            self._in_a_while(self.rng.uniform(0.1, seconds), self._fail, host)

    def leave_one(self, host: str | None = None) -> None:
        """Let one replica live alone. Before, it may fall behind, cut off or down; it may start
        again meanwhile."""
        host = host or self.rng.choice(REPLICAS)
        others = [one for one in REPLICAS if one != host]
        self.rng.shuffle(others)
        seconds = self.rng.uniform(1, 4)
        before = self.rng.choice(("nothing", "cut", "cut", "down"))
        begin = 0.0
        if before == "cut":
            begin = self.rng.choice((0.3, 1.5, 6.0)) * self.rng.uniform(0.2, 1)
            for other in others:
                self._cut(other, host, begin + seconds)
        elif before == "down":
            begin = self.rng.uniform(0.5, 5)
            self._keep_down(host, begin)
        self.note(f"leave {host} alone in {begin:.2f} s for {seconds:.1f} s", "left_alone")
        for other in others:
            down = seconds + self.rng.uniform(0, 2)
            self._in_a_while(begin + self.rng.uniform(0, 0.1), self._keep_down, other, down)
        if self.rng.random() < 0.4:
            self.group.hurried.add(host)
            self._in_a_while(begin, self._restart, host)
        if self.rng.random() < 0.3:
            self._leave_controller_out(begin + self.rng.uniform(0, 2))

    def _leave_controller_out(self, seconds: float) -> None:
        """The controller does not hear how far the logs get: it is down, or cut off."""
        if self.rng.random() < 0.5:
            self._keep_down(CONTROLLER, seconds)
        else:
            self._cut_off_controller(seconds)

    def split(self, host: str | None = None) -> None:
        """One replica, most often with the controller, and the two others do not hear each other.
        Clients hear both sides. The one may start again meanwhile."""
        side = [host or self.rng.choice(REPLICAS)]
        far = [one for one in REPLICAS if one not in side]
        (side if self.rng.random() < 0.8 else far).append(CONTROLLER)
        if self.rng.random() < 0.6:
            (side if self.rng.random() < 0.7 else far).append(NAMESRV)
        is_both_ways = self.rng.random() < 0.8
        seconds = self._shorter_or_longer_than_a_death()
        self.note(f"split {side} from {far} for {seconds:.1f} s", "splits")
        for one in side:
            for other in far:
                self._cut(other, one, seconds)
                if is_both_ways:
                    self._cut(one, other, seconds)
        if self.rng.random() < 0.3:
            self.group.hurried.add(side[0])
            self._in_a_while(self.rng.choice((0.0, 0.3)), self._restart, side[0])

    def _shorter_or_longer_than_a_death(self) -> float:
        """Seconds in which the controller notices nothing, or takes for dead what it does not
        hear."""
        dead_s = self.group.shape.dead_s
        if self.rng.random() < 0.3:
            return self.rng.uniform(0.2, dead_s)
        return dead_s + self.rng.uniform(1, 5)

    def flap(self) -> None:
        """A slave starts again some times in a row. Sometimes the other one is away meanwhile, or
        nobody sends. Something may fail as soon as the slave is back in the set."""
        master = self.group.master()
        slaves = [one for one in REPLICAS if one != master]
        self.rng.shuffle(slaves)
        count = self.rng.randint(1, 3)
        self.note(f"{slaves[0]} starts again {count} times", "flaps")
        begin = 0.0
        if self.rng.random() < 0.6:
            self._keep_down(slaves[1], self.rng.uniform(3, 10))
            begin = self.rng.uniform(0.5, 1.5)
        if self.rng.random() < 0.4:
            rest = self.rng.uniform(0.5, 3)
            self._in_a_while(
                max(begin - self.rng.uniform(0, 0.2), 0), self.group.clients.rest, rest
            )
        if self.rng.random() < 0.5:
            self._await_moment("joined")
        for _ in range(count):
            self._in_a_while(begin, self._hurry, slaves[0])
            begin += self.rng.choice((0.2, 0.5, 2.0)) * self.rng.uniform(0.5, 1.5)

    def _hurry(self, host: str) -> None:
        self.group.hurried.add(host)
        self._restart(host)

    def forget_writes(self) -> None:
        """The disk of one replica loses what it had synced lately, while the power of all is cut.
        The disks of the others may be slow before that."""
        if not self._may_damage() or self.group.shape.flush is not FlushDiskType.SYNC_FLUSH:
            return
        host = self._replica()
        seconds = self.rng.uniform(0.2, 2)
        copy = self.simulation.disk(host).copy()
        self.note(f"{host} will forget its last {seconds:.1f} s", "damages")
        for other in REPLICAS:
            if other != host and self.rng.random() < 0.7:
                self._slow_disk(other, seconds)
        self._in_a_while(seconds, self._cut_power_of_all, host, copy)

    def _cut_power_of_all(self, forgetful: str, copy: DiskCopy) -> None:
        may_damage = self._may_damage()
        for host in REPLICAS:
            self._cut_power(host)
        if may_damage and not self.simulation.process(forgetful).alive:
            self.group.damaged.add(forgetful)
            self.group.was_damaged = True
            self.simulation.disk(forgetful).put_back(copy)
            self.note(f"{forgetful} has an old copy of its store")

    def _outlive(self, host: str) -> None:
        """Cut a replica off from the others, which end soon."""
        begin, seconds = self.rng.uniform(0.02, 0.5), self.rng.uniform(1, 4)
        self.note(f"{host} outlives the others in {begin:.2f} s for {seconds:.1f} s", "left_alone")
        for other in REPLICAS:
            if other != host:
                self._cut(other, host, begin + seconds)
                self._in_a_while(begin, self._keep_down, other, seconds)

    def hunt_masters(self) -> None:
        """The next masters fail soon after they have become it."""
        count = self.rng.randint(1, 3)
        self.note(f"the next {count} masters will fail", "hunts")
        self._hunt(count)
        master = self.group.master()
        if master is not None:
            self._fail(master)

    def _hunt(self, count: int) -> None:
        delay = self.rng.choice((0.05, 0.5, 2.0)) * self.rng.uniform(0, 1)

        def fail(host: str) -> None:
            self._in_a_while(delay, self._fail, host)
            if count > 1:
                self._hunt(count - 1)

        self.group.moments["master"].append(fail)

    def at_a_moment(self) -> None:
        """Something fails just after an answer, an election, or a replica's return to the set."""
        moment = self.rng.choice(MOMENTS)
        self._await_moment(moment)
        if self.rng.random() < 0.7:
            self._bring_about(moment)

    def _await_moment(self, moment: str) -> None:
        delay = self.rng.choice((0.0, 0.0, 0.005, 0.1)) * self.rng.uniform(0, 1)
        whom = self.rng.choice(WHOM)
        self.note(f"at the next {moment}, {delay:.4f} s later, fails: {whom}", "at_moments")

        def fail(host: str) -> None:
            if whom == "it":
                self._fail(host)
            elif whom == "other":
                self._fail(self.rng.choice([one for one in REPLICAS if one != host]))
            elif whom == "all":
                self.kill_all()
            elif whom == "controller":
                self.note("power cut of the controller", "controller_faults")
                self.simulation.end(CONTROLLER, power_cut=True)
            elif whom == "split":
                others = [one for one in REPLICAS if one != host]
                self.split(
                    host if moment == "joined" else self.rng.choice((*others, *others, host))
                )
            else:
                self._outlive(host if moment == "joined" else self.rng.choice(REPLICAS))

        self.group.moments[moment].append(lambda host: self._in_a_while(delay, fail, host))

    def _bring_about(self, moment: str) -> None:
        """Let the master or a slave start again, so that a moment comes soon."""
        master = self.group.master()
        if moment in ("elected", "master") and master is not None:
            self._end(master)
        elif moment == "joined":
            self._hurry(self.rng.choice([one for one in REPLICAS if one != master]))

    def lag(self) -> None:
        """What the master sends to one slave, or to both, is late."""
        master = self.group.master()
        if master is None:
            return
        slaves = [one for one in REPLICAS if one != master]
        late = self.rng.choice(([slaves[0]], [slaves[1]], slaves))
        for slave in late:
            self._slow_down(master, slave, self.rng.choice(LAGS_S))

    def slow_controller(self) -> None:
        """The controller's answers, or requests to it, are late or lost; or its disk is slow."""
        if self.rng.random() < 0.3:
            self._slow_disk(CONTROLLER, self.rng.uniform(0.5, 3))
            if self.rng.random() < 0.5:
                self._cut_power_of_controller_in_an_operation()
            return
        if self.rng.random() < 0.3:
            host, seconds = self._replica(), self.rng.uniform(0.2, 3)
            self.note(f"cut {CONTROLLER} -> {host} for {seconds:.1f} s", "one_way_cuts")
            self._cut(CONTROLLER, host, seconds)
            return
        lag_s = self.rng.choice(LAGS_S)
        for host in REPLICAS:
            self._slow_down(CONTROLLER, host, lag_s)
            if self.rng.random() < 0.3:
                self._slow_down(host, CONTROLLER, lag_s)

    def _cut_power_of_controller_in_an_operation(self) -> None:
        self.simulation.disk(CONTROLLER).cut_power_at(nth=self.rng.randint(1, 12))
        self.note("the power of the controller will be cut in an operation", "controller_faults")

    def _slow_down(self, source: str, target: str, lag_s: float) -> None:
        link = self.simulation.network.link(source, target)
        link.latency_min, link.latency_max = lag_s / 2, lag_s
        self.note(f"{source} -> {target} takes up to {lag_s} s", "lags")
        self._later(self._while(), self.group.restore_link, source, target)

    def _fail(self, host: str) -> None:
        """End, freeze or cut off one replica."""
        deed = self.rng.choice(("kill", "kill", "power", "pause", "cut"))
        if deed == "power" and self._may_lose(host):
            self._cut_power(host)
        elif deed == "pause":
            self._pause(host)
        elif deed == "cut":
            seconds = self.rng.uniform(0.5, 6)
            self.note(f"isolate {host} for {seconds:.1f} s", "isolations")
            for other in SERVERS:
                if other != host:
                    self._cut(host, other, seconds)
                    self._cut(other, host, seconds)
        else:
            self._end(host)

    def _keep_down(self, host: str, seconds: float) -> None:
        self.group.kept_down.add(host)
        self._later(seconds, self.group.kept_down.discard, host)
        is_sync = self.group.shape.flush is FlushDiskType.SYNC_FLUSH
        if is_sync and self.rng.random() < 0.5:
            self._cut_power(host)
        else:
            self._end(host)

    def _restart(self, host: str) -> None:
        if self._may_lose(host):
            self._cut_power(host)
        else:
            self._end(host)

    # --- deeds

    def kill_all(self) -> None:
        """One of them may lose what it has not on its disk."""
        loses = self._replica() if self.rng.random() < 0.6 else None
        for host in REPLICAS:
            if host == loses and self._may_lose(host):
                self._cut_power(host)
            else:
                self._end(host)

    def kill(self) -> None:
        self._end(self._replica())

    def power_cut(self) -> None:
        host = self._replica()
        if self._may_lose(host):
            self._cut_power(host)

    def power_cut_in_an_operation(self) -> None:
        """Only with SYNC_FLUSH: nobody knows when it will be."""
        host = self._replica()
        if self.group.shape.flush is FlushDiskType.SYNC_FLUSH:
            self.simulation.disk(host).cut_power_at(nth=self.rng.randint(1, 50))
            self.note(f"the power of {host} will be cut in an operation", "power_cuts")

    def power_cut_of_all(self) -> None:
        """Only with SYNC_FLUSH: else it takes what all have acknowledged."""
        if self.group.shape.flush is FlushDiskType.SYNC_FLUSH:
            may_damage = self._may_damage()
            for host in REPLICAS:
                self._cut_power(host)
            if may_damage and self.rng.random() < 0.5:
                self._damage(self._replica())

    def pause(self) -> None:
        host = self._replica() if self.rng.random() < 0.7 else self.rng.choice(HOSTS)
        self._pause(host)

    def cut_one_way(self) -> None:
        source, target = self._pair()
        self.note(f"cut {source} -> {target}", "one_way_cuts")
        self._cut(source, target, self._while())

    def isolate(self) -> None:
        """A replica from the controller, from the other replicas, or from all servers, both ways or
        one way."""
        host = self._replica()
        others = [one for one in SERVERS if one != host]
        ways = self.rng.choice(([CONTROLLER], [one for one in REPLICAS if one != host], others))
        direction = self.rng.choice(("both", "out", "in"))
        seconds = self._while()
        self.note(f"isolate {host} from {ways}, {direction}, for {seconds:.1f} s", "isolations")
        for other in ways:
            if direction != "in":
                self._cut(host, other, seconds)
            if direction != "out":
                self._cut(other, host, seconds)

    def reset(self) -> None:
        one, other = self._pair()
        self.note(f"reset {one} {other}", "resets")
        self.simulation.network.reset(one, other)

    def change_link(self) -> None:
        one, other = self._pair()
        link = self.simulation.network.link(one, other)
        link.latency_max = self.rng.choice((0.000_3, 0.01, 0.5))
        link.chunk_size_max = self.rng.choice((None, 1, 50, 1000))
        self.note(f"link {one} -> {other}: {link.latency_max} s, pieces {link.chunk_size_max}")
        self._later(self._while(), self.group.restore_link, one, other)

    def slow_disk(self) -> None:
        self._slow_disk(self._replica(), self._while())

    def _slow_disk(self, host: str, seconds: float) -> None:
        self._usual_disk_s.setdefault(host, self.simulation.disk(host).sync_seconds)
        self.simulation.disk(host).sync_seconds = SLOW_DISK_S
        self.note(f"the disk of {host} is slow", "slow_disks")
        self._later(seconds, self._restore_disk, host)

    def step_clock(self) -> None:
        host = self.rng.choice(SERVERS)
        step_ms = self.rng.choice((-1, 1)) * self.rng.choice((500, 5000, 60_000, 3_600_000))
        self.note(f"the clock of {host} jumps by {step_ms} ms", "clock_steps")
        self.simulation.clock(host).jump(step_ms)

    def stop_cleanly(self) -> None:
        host = self._replica()
        self.note(f"{host} is told to stop", "stops")
        self.group.stop_cleanly(host)

    def trouble_the_controller(self) -> None:
        deed = self.rng.choice(("kill", "power", "operation", "operation", "pause", "cut"))
        if deed == "kill":
            self._end(CONTROLLER)
        elif deed == "operation":
            self._cut_power_of_controller_in_an_operation()
        elif deed == "power":
            self.note("power cut of the controller", "controller_faults")
            self.simulation.end(CONTROLLER, power_cut=True)
        elif deed == "pause":
            self._pause(CONTROLLER)
        else:
            self._cut_off_controller(self._while())

    def _cut_off_controller(self, seconds: float) -> None:
        self.note(f"the controller is cut off for {seconds:.1f} s", "controller_faults")
        for host in REPLICAS:
            self._cut(CONTROLLER, host, seconds)
            self._cut(host, CONTROLLER, seconds)

    def kill_the_name_server(self) -> None:
        self._end(NAMESRV)

    def copy_a_store(self) -> None:
        """For a later damage: the old copy of a whole store."""
        host = self.rng.choice(REPLICAS)
        self._copies[host] = self.simulation.disk(host).copy()
        self.note(f"the store of {host} is copied")

    def damage(self) -> None:
        """Kill a replica, and damage its files before it starts again."""
        host = self._replica()
        if self._may_damage():
            self._end(host)
            self._damage(host)

    def _may_damage(self) -> bool:
        """True if another replica has what one may lose now."""
        return (
            self.group.shape.is_damaged
            and not self.group.damaged
            and len(self.group.in_sync()) >= 2
        )

    def _damage(self, host: str) -> None:
        self.group.damaged.add(host)
        self.group.was_damaged = True
        deed = self.rng.choice(
            (self._flip, self._flip, self._truncate, self._remove, self._turn_back)
        )
        self.note(f"damage of {host}: {deed(host)}", "damages")

    # --- the ways of damage; each returns what it did

    def _flip(self, host: str) -> str:
        path = self._some_file(host)
        at = flip_bit(self.simulation.disk(host), path, self.rng, end=self._used(host, path))
        return f"a bit of {path} at {at}"

    def _truncate(self, host: str) -> str:
        path = self._some_file(host)
        size = cut_file(self.simulation.disk(host), path, self.rng, end=self._used(host, path))
        return f"{path} is cut to {size}"

    def _remove(self, host: str) -> str:
        path = self._some_file(host)
        remove_file(self.simulation.disk(host), path)
        return f"{path} is gone"

    def _turn_back(self, host: str) -> str:
        if host not in self._copies:
            return self._remove(host)
        self.simulation.disk(host).put_back(self._copies[host])
        return "an old copy of the whole store"

    def _some_file(self, host: str) -> Path:
        """A file of the store that has content: half of the time one of the log."""
        files = self.simulation.disk(host).files
        found = sorted(path for path in files if path.is_relative_to(STORE) and files[path].size)
        log = [path for path in found if path.parent == STORE / "commitlog"]
        return self.rng.choice(log if log and self.rng.random() < 0.5 else found)

    def _used(self, host: str, path: Path) -> int:
        """The end of what is not zeros in a file."""
        return max(len(self.simulation.disk(host).files[path].content.rstrip(b"\0")), 1)

    # --- how it is done

    def _replica(self) -> str:
        """The master, half of the time."""
        master = self.group.master()
        if master is not None and self.rng.random() < 0.5:
            return master
        return self.rng.choice(REPLICAS)

    def _pair(self) -> tuple[str, str]:
        """Two hosts, most often servers."""
        hosts = SERVERS if self.rng.random() < 0.8 else HOSTS
        one, other = self.rng.sample(hosts, 2)
        return one, other

    def _while(self) -> float:
        return self.rng.choice((0.5, 3.0, LONGEST_S)) * self.rng.uniform(0.1, 1)

    def _later(self, seconds: float, act: Callable[..., object], *args: object) -> None:
        self.simulation.loop.call_later(seconds, act, *args)

    def _in_a_while(self, seconds: float, act: Callable[..., object], *args: object) -> None:
        """Do it later, unless everything is healed by then."""
        self._later(seconds, lambda: None if self._has_ended else act(*args))

    def _may_lose(self, host: str) -> bool:
        """True if a power cut of this host is fair now."""
        is_sync = self.group.shape.flush is FlushDiskType.SYNC_FLUSH
        return is_sync or not self.group.damaged - {host}

    def _cut_power(self, host: str) -> None:
        if not self.simulation.process(host).alive:
            return
        if self.group.shape.flush is not FlushDiskType.SYNC_FLUSH:
            self.group.damaged.add(host)
        self.note(f"power cut of {host}", "power_cuts")
        self.simulation.end(host, power_cut=True)

    def _end(self, host: str) -> None:
        """By kill -9."""
        if self.simulation.process(host).alive:
            self.note(f"kill {host}", "kills" if host in REPLICAS else f"kills_of_{host}")
            self.simulation.end(host, power_cut=False)

    def _pause(self, host: str) -> None:
        process = self.simulation.process(host)
        if process.alive and not process.paused:
            seconds = self._while()
            self.note(f"pause {host} for {seconds:.1f} s", "pauses")
            process.pause()
            self._later(seconds, process.resume)

    def _cut(self, source: str, target: str, seconds: float) -> None:
        self.simulation.network.cut(source, target)
        self._later(seconds, self.simulation.network.heal, source, target)

    def _restore_disk(self, host: str) -> None:
        if host in self._usual_disk_s:
            self.simulation.disk(host).sync_seconds = self._usual_disk_s[host]
