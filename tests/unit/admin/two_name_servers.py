"""Two name servers in the loop of a test."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.namesrv.server import NameServer


@asynccontextmanager
async def two_name_servers() -> AsyncIterator[tuple[list[str], list[NameServer]]]:
    async with AsyncExitStack() as stack:
        addresses, servers = [], []
        for _ in range(2):
            server = NameServer(NamesrvConfig(listen_port=0))
            stack.push_async_callback(server.close)
            _, port = await server.start()
            addresses.append(f"127.0.0.1:{port}")
            servers.append(server)
        yield addresses, servers
