"""Apache's own name server and broker, started from their Maven Central jars for tests and
benchmarks.

The one rule: everything a run writes lives under the `directory` it was given, and whoever enters
the cluster leaves no process behind. The jars are resolved once per version by Maven into
`.cache/apache/<name>/lib` of the checkout (git-ignored). Must not know about our own servers or
client: this module imports nothing of turbopump, so that a benchmark can use it too.

    settings = {"flushDiskType": "SYNC_FLUSH"}
    with ApacheCluster("5.3.3", directory=tmp, heap="2g", broker_config=settings) as c:
        talk_to(c.namesrv, c.broker)          # "127.0.0.1:41234"

`python -m tests.interop.apache 5.3.3 DIRECTORY` runs one until it is interrupted, for trying things
by hand.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from tests.ports import free_ports

LOOPBACK = "127.0.0.1"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "apache"

# The newest of each line whose name server *and* broker are on Maven Central (4.9.8: client and
# tools alone).
NEWEST = "5.3.3"
NEWEST_4 = "4.9.7"

# Start in seconds rather than in tens: a benchmark passes its own options instead.
QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")

# 4.9 unmaps its files by reflection into the JDK, as Java 8 allowed; 5.x is not hurt by it.
OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)

LOGBACK = """<configuration>
  <appender name="file" class="{package}.core.FileAppender">
    <file>{file}</file>
    <encoder class="{package}.classic.encoder.PatternLayoutEncoder">
      <pattern>%d %p %t %c - %m%n</pattern>
    </encoder>
  </appender>
  <root level="{level}"><appender-ref ref="file"/></root>
</configuration>
"""

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>turbopump.interop</groupId>
  <artifactId>apache-jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""

DEPENDENCY = (
    "    <dependency><groupId>{}</groupId><artifactId>{}</artifactId>"
    "<version>{}</version>{}</dependency>"
)


class ToolMissingError(Exception):
    """Java or Maven is not installed on this machine, so Apache's software cannot run here."""


class ApacheStartError(Exception):
    """One of Apache's servers ended or did not answer in time; the message holds what it printed
    last."""


def fetch_jars(version: str, *, artifacts: Sequence[str] = ("namesrv", "broker", "tools")) -> Path:
    """The folder with the jars of `rocketmq-<artifact>` and all they need; asks Maven only the
    first time.

    Raises ToolMissingError without `mvn`, ApacheStartError with Maven's own words when it cannot.
    """
    name = "-".join([*(artifacts if "broker" not in artifacts else ()), version])
    return fetch_maven(name, [f"org.apache.rocketmq:rocketmq-{a}:{version}" for a in artifacts])


def fetch_maven(name: str, artifacts: Sequence[str]) -> Path:
    """The folder, kept under ``name``, with these jars (`group:artifact:version[:classifier]`) and
    all they need. Errors as `fetch_jars`."""
    folder = CACHE / name
    library = folder / "lib"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs in one checkout must not both write it
        if library.is_dir():
            return library
        maven = shutil.which("mvn")
        if maven is None:
            raise ToolMissingError("mvn is not installed: these jars come from Maven Central")
        folder.mkdir(parents=True, exist_ok=True)
        dependencies = "\n".join(map(_dependency, artifacts))
        (folder / "pom.xml").write_text(POM.format(dependencies=dependencies))
        arriving = folder / "arriving"
        shutil.rmtree(arriving, ignore_errors=True)
        command = [
            maven,
            "-q",
            "-B",
            "-ntp",
            "-f",
            str(folder / "pom.xml"),
            "dependency:copy-dependencies",
        ]
        command += [f"-DoutputDirectory={arriving}", "-DincludeScope=runtime"]
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900
        )
        if result.returncode != 0 or not arriving.is_dir():
            raise ApacheStartError(f"mvn could not resolve {artifacts}: {result.stdout[-2000:]}")
        arriving.rename(library)
        return library


def _dependency(artifact: str) -> str:
    group, name, version, *classifier = artifact.split(":")
    further = "".join(f"<classifier>{one}</classifier>" for one in classifier)
    return DEPENDENCY.format(group, name, version, further)


def java() -> str:
    """The path of `java`; raises ToolMissingError when there is none."""
    found = shutil.which("java")
    if found is None:
        raise ToolMissingError("java is not installed")
    return found


class ApacheCluster:
    """One name server and one broker of Apache's, in two Java processes on loopback.

    Enter it to start both and wait until the broker is in the name server's routes; leaving stops
    both by SIGTERM. `stop_broker`, `kill_broker` and `start_broker` end and restart the broker on
    the same directory and ports.
    """

    def __init__(
        self,
        version: str = NEWEST,
        *,
        directory: Path | str,
        heap: str = "512m",
        namesrv_heap: str = "128m",
        broker_config: Mapping[str, str | int | bool] | None = None,
        jvm_options: Sequence[str] = QUICK_START,
        broker_prefix: Sequence[str] = (),
        start_timeout: float = 300.0,
        host: str = LOOPBACK,
        properties: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`heap` is the broker's -Xms and -Xmx; `broker_prefix` goes before its java (`taskset -c
        0`); `broker_config` are further lines of broker.conf in Apache's keys; the broker listens
        on `host`, an address of loopback (the name server always on 127.0.0.1). `properties` are of
        both JVMs; with `tls` the name server is asked over TLS whether it is ready. Nothing is
        started yet.
        """
        self.version = version
        self.directory = Path(directory).resolve()
        self.store = self.directory / "store"
        self.broker_name = "broker-a"
        self.heap = heap
        self.namesrv_heap = namesrv_heap
        self.jvm_options = tuple(jvm_options)
        self.namesrv_options: tuple[str, ...] = QUICK_START
        self.broker_prefix = tuple(broker_prefix)
        self.start_timeout = start_timeout
        self.broker_config = dict(broker_config or {})
        self.properties = dict(properties or {})
        self.tls = tls
        self.host = f"[{host}]" if ":" in host else host
        self.namesrv_port = free_ports(0)
        self.broker_port = free_ports(-2, 0, 1)  # VIP, listen, HA
        self._namesrv: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None

    @property
    def namesrv(self) -> str:
        """HOST:PORT of the name server."""
        return f"127.0.0.1:{self.namesrv_port}"

    @property
    def broker(self) -> str:
        """HOST:PORT of the broker."""
        return f"{self.host}:{self.broker_port}"

    @property
    def namesrv_runs(self) -> bool:
        return self._namesrv is not None

    @property
    def broker_pid(self) -> int:
        """Process id of the broker's JVM (of the prefix's exec chain, which `taskset` keeps)."""
        assert self._broker is not None, "the broker is not running"
        return self._broker.pid

    @property
    def namesrv_pid(self) -> int:
        """Process id of the name server's JVM."""
        assert self._namesrv is not None, "the name server is not running"
        return self._namesrv.pid

    def __enter__(self) -> ApacheCluster:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(self.tail(), file=sys.stderr)
        self.stop()

    def start(self) -> None:
        """Start both; returns when a client can send. Raises ApacheStartError, ToolMissingError."""
        self.write_configuration()
        self.start_namesrv()
        # it retries its registration, so the two JVMs may start side by side
        self.start_broker(wait=False)
        self.wait_ready()

    def start_broker(self, *, wait: bool = True) -> None:
        """Start the broker on its directory, which may hold a store already."""
        assert self._broker is None, "the broker is already running"
        conf = self.directory / "conf" / "broker.conf"
        command = [
            *self.broker_prefix,
            java(),
            f"-Xms{self.heap}",
            f"-Xmx{self.heap}",
            *self._java_options("broker"),
        ]
        self._broker = self._spawn(
            "broker", [*command, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf)]
        )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the name server routes the auto-create topic to our broker, and its port
        answers."""
        deadline = time.monotonic() + self.start_timeout
        while True:
            for name, process in (("namesrv", self._namesrv), ("broker", self._broker)):
                if process is not None and process.poll() is not None:
                    raise ApacheStartError(
                        f"{name} {self.version} ended with {process.returncode}\n{self.tail()}"
                    )
            if self.broker in routed_brokers(self.namesrv_port, "TBW102", self.tls) and connects(
                self.host.strip("[]"), self.broker_port
            ):
                return
            if time.monotonic() > deadline:
                raise ApacheStartError(
                    f"{self.version} was not ready in {self.start_timeout} s\n{self.tail()}"
                )
            time.sleep(0.05)

    def stop(self) -> None:
        """End the broker by SIGTERM, so that its store is closed cleanly, and the name server,
        which keeps nothing.

        Takes 5.x about 15 s, for its threads are joined one after the other; `kill` is immediate.
        """
        self.stop_broker()
        self.kill_namesrv()

    def kill(self) -> None:
        """End both by SIGKILL."""
        self.kill_broker()
        self.kill_namesrv()

    def kill_namesrv(self) -> None:
        """SIGKILL: it keeps nothing."""
        end(self._namesrv, signal.SIGKILL)
        self._namesrv = None

    def stop_broker(self) -> None:
        """SIGTERM and wait: offsets, topics and checkpoint written, `abort` removed."""
        end(self._broker, signal.SIGTERM)
        self._broker = None

    def kill_broker(self) -> None:
        """SIGKILL: what the kernel has of the mapped files stays, `abort` stays."""
        end(self._broker, signal.SIGKILL)
        self._broker = None

    def tail(self, size: int = 4000) -> str:
        """The last `size` characters of each server's output and log."""
        parts = []
        for path in sorted(self.directory.glob("*.out")) + sorted(self.directory.glob("*.log")):
            text = path.read_text(errors="replace")[-size:]
            parts.append(f"--- {path.name} of Apache {self.version}\n{text}")
        return "\n".join(parts)

    def write_configuration(self) -> None:
        """Write conf/broker.conf and the log settings; `start` does it too."""
        conf = self.directory / "conf"
        for role in ("namesrv", "broker"):
            write_log_settings(self.version, self.directory, role)
        settings: dict[str, str | int | bool] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": self.broker_name,
            "brokerId": 0,
            "brokerIP1": self.host,
            "bindAddress": self.host.strip("[]"),
            "listenPort": self.broker_port,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "autoCreateTopicEnable": True,
            "mappedFileSizeCommitLog": 64 * 1024 * 1024,
            "diskMaxUsedSpaceRatio": 95,
            **self.broker_config,
        }
        (conf / "broker.conf").write_text(properties_text(settings))

    def start_namesrv(self) -> None:
        """Start the name server alone, after `write_configuration`; returns at once."""
        settings: dict[str, str | int | bool] = {
            "listenPort": self.namesrv_port,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(self.directory / "kvConfig.json"),
        }
        conf = self.directory / "conf" / "namesrv.conf"
        conf.write_text(properties_text(settings))
        heap = f"-Xmx{self.namesrv_heap}"
        command = [java(), heap, *self._java_options("namesrv")]
        self._namesrv = self._spawn(
            "namesrv", [*command, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf)]
        )

    def _java_options(self, role: str) -> list[str]:
        options = self.jvm_options if role == "broker" else self.namesrv_options
        return java_options(self.version, self.directory, role, options, self.properties)

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        return spawn_java(self.directory, name, command)


def java_options(
    version: str,
    directory: Path,
    role: str,
    options: Sequence[str] = QUICK_START,
    properties: Mapping[str, str] | None = None,
) -> list[str]:
    """What goes between `java` and the main class of a server that lives in `directory`. The log
    settings of `role` are those of `write_log_settings`. Errors as `fetch_jars`."""
    classpath = f"{directory / 'conf' / role}:{fetch_jars(version)}/*"
    # user.home: whatever Apache writes outside its configured paths lands in our directory too
    home = f"-Duser.home={directory}"
    # a registration that is late must not close the broker's connection: the name server would
    # forget it
    patient = "-Dcom.rocketmq.remoting.client.closeSocketIfTimeout=false"
    own = (f"-D{name}={value}" for name, value in (properties or {}).items())
    return [*options, *OPENS, home, patient, *own, "-cp", classpath]


def write_log_settings(version: str, directory: Path, role: str, level: str = "WARN") -> None:
    """Have a server of this role log this level and worse to ROLE.log in `directory`."""
    old = version.startswith("4.")
    package = "ch.qos.logback" if old else "org.apache.rocketmq.logging.ch.qos.logback"
    text = LOGBACK.format(package=package, file=directory / f"{role}.log", level=level)
    # 4.9 opens the first by path; 5.x finds the second on its class path.
    conf = directory / "conf"
    (conf / role).mkdir(parents=True, exist_ok=True)
    (conf / f"logback_{role}.xml").write_text(text)
    (conf / role / "rmq.logback.xml").write_text(text)


def spawn_java(directory: Path, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a server that lives in `directory`. What it prints goes to NAME.out there."""
    environment = {
        k: v for k, v in os.environ.items() if k not in {"NAMESRV_ADDR", "JAVA_TOOL_OPTIONS"}
    }
    environment["ROCKETMQ_HOME"] = str(directory)
    with (directory / f"{name}.out").open("ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=directory,
            env=environment,
        )


def end(
    process: subprocess.Popen[bytes] | None, sign: signal.Signals, grace: float = 180.0
) -> None:
    """Signal a process and wait for it; one that outlives its grace is killed, and that is said."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(sign)
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        print(f"process {process.pid} outlived {sign.name} by {grace} s: killed", file=sys.stderr)
        process.kill()
        process.wait()


def properties_text(settings: Mapping[str, str | int | bool]) -> str:
    """A Java .properties file; booleans as Java spells them."""
    lines = (f"{k}={str(v).lower() if isinstance(v, bool) else v}\n" for k, v in settings.items())
    return "".join(lines)


def connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def routed_brokers(namesrv_port: int, topic: str, tls: ssl.SSLContext | None = None) -> set[str]:
    """Addresses of the masters that the name server routes `topic` to; empty while it is not up.

    Speaks one GET_ROUTEINFO_BY_TOPIC (105) itself, because this module must work without any client
    of ours. The body is read for its addresses only: it is fastjson's dialect, not JSON.
    """
    header = {
        "code": 105,
        "language": "JAVA",
        "version": 0,
        "opaque": 1,
        "flag": 0,
        "extFields": {"topic": topic},
    }
    data = json.dumps(header).encode()
    try:
        with ExitStack() as stack:
            connection = stack.enter_context(
                socket.create_connection((LOOPBACK, namesrv_port), timeout=2)
            )
            if tls is not None:
                connection = stack.enter_context(tls.wrap_socket(connection))
            connection.sendall(struct.pack(">II", 4 + len(data), len(data)) + data)
            stream = connection.makefile("rb")
            size, header_size = struct.unpack(">II", stream.read(8))
            reply = stream.read(size - 4)
    except (OSError, struct.error):
        return set()
    body = reply[header_size & 0xFFFFFF :].decode()
    return {word for word in body.split('"') if word.startswith((f"{LOOPBACK}:", "["))}


def main() -> None:
    version, directory = sys.argv[1:3]
    with ApacheCluster(version, directory=directory) as cluster:
        print(
            f"ready namesrv={cluster.namesrv} broker={cluster.broker} pid={cluster.broker_pid}",
            flush=True,
        )
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("stopping")


if __name__ == "__main__":
    main()
