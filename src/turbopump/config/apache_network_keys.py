"""The keys of both files from Apache's NettyServerConfig and NettyClientConfig, as data; columns as
in `apache_broker_keys`.

Its one rule: every key that Apache reads stands here once; `listenPort` and `useTLS` stand with
each server, which treat them differently. It must not say what a honoured key does: its field does.
"""

from typing import Final

SERVER: Final = {
    "": """
        bindAddress                      String  0.0.0.0  -
        serverChannelMaxIdleTimeSeconds  int     120      =
    """,
    "one event loop serves everything; there are no pools to size": """
        serverWorkerThreads            int      8     =
        serverSelectorThreads          int      3     =
        serverCallbackExecutorThreads  int      0     =
        serverNettyWorkerGroupEnable   boolean  true  -
    """,
    "no thread pool, so no queue before it; the connection pushes back instead": """
        serverOnewaySemaphoreValue  int  256  =
        serverAsyncSemaphoreValue   int  64   =
    """,
    "belongs to Netty's buffers and selectors": """
        serverSocketSndBufSize              int      0      =
        serverSocketRcvBufSize              int      0      =
        serverSocketBacklog                 int      1024   =
        serverPooledByteBufAllocatorEnable  boolean  true   =
        useEpollNativeSelector              boolean  false  =
        writeBufferLowWaterMark             int      0      =
        writeBufferHighWaterMark            int      0      =
    """,
    "a stop always answers what it has read, then closes": """
        enableShutdownGracefully  boolean  false  -
        shutdownWaitTimeSeconds   int      30     -
    """,
}

CLIENT: Final = {
    "calls to name servers keep the client's own time limits": """
        clientCloseSocketIfTimeout       boolean  true   =
        connectTimeoutMillis             int      3000   =
        channelNotActiveInterval         long     60000  =
        clientChannelMaxIdleTimeSeconds  int      120    =
        maxReconnectIntervalTimeSeconds  long     60     -
        enableReconnectForGoAway         boolean  true   -
        scanAvailableNameSrv             boolean  true   -
    """,
    "one event loop serves everything; there are no pools to size": """
        clientWorkerThreads            int      4      =
        clientCallbackExecutorThreads  int      cores  =
        disableCallbackExecutor        boolean  false  -
        disableNettyWorkerGroup        boolean  false  -
    """,
    "no thread pool, so no queue before it; the connection pushes back instead": """
        clientOnewaySemaphoreValue  int  65535  =
        clientAsyncSemaphoreValue   int  65535  =
    """,
    "belongs to Netty's buffers and selectors": """
        clientSocketSndBufSize              int      0      =
        clientSocketRcvBufSize              int      0      =
        clientPooledByteBufAllocatorEnable  boolean  false  =
    """,
    "outgoing connections are direct": """
        socksProxyConfig  String  {}  -
    """,
}
