"""The keys of `broker.conf` from Apache's BrokerConfig, BrokerIdentity, AuthConfig and
BrokerStartup, as data.

A line is: key, Java type, default in 5.3.3, default in 4.9.8 (`=` the same, `-` no such key, `''`
empty). The keys under the empty reason are honoured; the others are accepted without effect, for
the reason above them. Its one rule: every key that Apache reads stands here once. It must not say
what a honoured key does: its field does.
"""

from typing import Final

BROKER: Final = {
    "": """
        brokerName                          String   host name              =
        brokerClusterName                   String   DefaultCluster         =
        brokerId                            long     0                      =
        traceOn                             boolean  true                   =
        msgTraceTopicName                   String   RMQ_SYS_TRACE_TOPIC    =
        traceTopicEnable                    boolean  false                  =
        startAcceptSendRequestTimeStamp     long     0                      =
        registerBrokerTimeoutMills          int      24000                  6000
        regionId                            String   DefaultRegion          =
        sendThreadPoolQueueCapacity         int      10000                  =
        waitTimeMillsInSendQueue            long     200                    =
        brokerFastFailureEnable             boolean  true                   =
        messageStorePlugIn                  String   ''                     =
        brokerPermission                    int      6                      =
        defaultTopicQueueNums               int      8                      =
        autoCreateTopicEnable               boolean  true                   =
        recallMessageEnable                 boolean  false                  -
        coldCtrStrategyEnable               boolean  false                  -
        usePIDColdCtrStrategy               boolean  true                   -
        cgColdReadThreshold                 long     3145728                -
        globalColdReadThreshold             long     104857600              -
        storeReplyMessageEnable             boolean  true                   =
        brokerIP1                           String   an outward address     =
        brokerIP2                           String   an outward address     =
        flushConsumerOffsetInterval         int      5000                   =
        clusterTopicEnable                  boolean  true                   =
        namesrvAddr                         String   variable NAMESRV_ADDR  =
        autoCreateSubscriptionGroup         boolean  true                   =
        listenPort                          int      10911                  =
        useTLS                              boolean  false                  =
        litePullMessageEnable               boolean  true                   -
        enablePropertyFilter                boolean  false                  =
        brokerTopicEnable                   boolean  true                   =
        maxPopPollingSize                   long     100000                 -
        reviveQueueNum                      int      8                      -
        popPollingSize                      int      1024                   -
        popFromRetryProbability             int      20                     -
        loadBalancePollNameServerInterval   long     30000                  -
        serverLoadBalancerEnable            boolean  true                   -
        defaultMessageRequestMode           String   PULL                   -
        defaultPopShareQueueNum             int      -1                     -
        initPopOffsetByCheckMsgInMem        boolean  true                   -
        retrieveMessageFromPopRetryTopicV1  boolean  true                   -
        enableRetryTopicV2                  boolean  false                  -
        popResponseReturnActualRetryTopic   boolean  false                  -
        popInflightMessageThreshold         long     10000                  -
        enablePopMessageThreshold           boolean  false                  -
        longPollingEnable                   boolean  true                   =
        notifyConsumerIdsChangedEnable      boolean  true                   =
        useServerSideResetOffset            boolean  true                   =
        shortPollingTimeMills               long     1000                   =
        registerNameServerPeriod            int      30000                  =
        aclEnable                           boolean  false                  =
        enableControllerMode                boolean  false                  -
        channelExpiredTimeout               long     120000                 -
        validateSystemTopicWhenUpdateTopic  boolean  true                   -
        clearRetryTopicWhenDeleteTopic      boolean  true                   -
        enableMixedMessageType              boolean  false                  -
        enableDetailStat                    boolean  true                   =
        authenticationEnabled               boolean  false                  -
        authorizationEnabled                boolean  false                  -
        rejectTransactionMessage            boolean  false                  =
        transactionTimeOut                  long     6000                   =
        transactionCheckMax                 int      15                     =
        transactionCheckInterval            long     30000                  60000
        transactionOpMsgMaxSize             int      4096                   -
        transactionOpBatchInterval          int      3000                   -
    """,
    "there is no broker container": """
        inBrokerContainer  boolean  false  -
        isolateLogEnable   boolean  false  =
    """,
    "the configuration cannot be changed at run time": """
        configBlackList   String  configBlackList;brokerConfigPath  =
        brokerConfigPath  String  ''                                -
    """,
    "POP keeps its records in the log alone, and nothing of it is looked at in intervals": """
        reviveInterval                        long     1000    -
        popCkStayBufferTime                   int      10000   -
        popCkStayBufferTimeOut                int      3000    -
        popPollingMapSize                     int      100000  -
        reviveScanTime                        long     10000   -
        reviveMaxSlow                         long     3       -
        enablePopBufferMerge                  boolean  false   -
        popCkMaxBufferSize                    int      200000  -
        popCkOffsetMaxQueueSize               int      20000   -
        enablePopBatchAck                     boolean  false   -
        enableSkipLongAwaitingAck             boolean  false   -
        reviveAckWaitMs                       long     180000  -
        enablePopLog                          boolean  false   -
        popConsumerFSServiceInit              boolean  true    -
        popConsumerKVServiceLog               boolean  false   -
        popConsumerKVServiceInit              boolean  false   -
        popConsumerKVServiceEnable            boolean  false   -
        popReviveMaxReturnSizePerRead         int      16384   -
        popReviveMaxAttemptTimes              int      16      -
        popLongPollingForceNotifyInterval     long     800     -
        enableNotifyBeforePopCalculateLag     boolean  true    -
        enableNotifyAfterPopOrderLockRelease  boolean  true    -
        skipWhenCKRePutReachMaxTimes          boolean  false   -
        appendAckAsync                        boolean  false   -
        appendCkAsync                         boolean  false   -
    """,
    "no thread pool, so no queue before it; only sends wait, in the send queue": """
        waitTimeMillsInPullQueue                long     5000     =
        litePullThreadPoolQueueCapacity         int      100000   -
        adminBrokerThreadPoolQueueCapacity      int      10000    -
        loadBalanceThreadPoolQueueCapacity      int      100000   -
        waitTimeMillsInLitePullQueue            long     5000     -
        putThreadPoolQueueCapacity              int      10000    =
        pullThreadPoolQueueCapacity             int      100000   =
        ackThreadPoolQueueCapacity              int      100000   -
        replyThreadPoolQueueCapacity            int      10000    =
        queryThreadPoolQueueCapacity            int      20000    =
        clientManagerThreadPoolQueueCapacity    int      1000000  =
        consumerManagerThreadPoolQueueCapacity  int      1000000  =
        heartbeatThreadPoolQueueCapacity        int      50000    =
        waitTimeMillsInHeartbeatQueue           long     31000    =
        endTransactionPoolQueueCapacity         int      100000   =
        waitTimeMillsInTransactionQueue         long     3000     =
        waitTimeMillsInAdminBrokerQueue         long     5000     -
        enableNetWorkFlowControl                boolean  false    -
        waitTimeMillsInAckQueue                 long     3000     -
    """,
    "a slow consumer is never cut off": """
        consumerFallbehindThreshold         long     17179869184  =
        disableConsumeIfConsumerReadSlowly  boolean  false        =
    """,
    "replication comes with a later release": """
        slaveReadEnable                  boolean  false  =
        syncBrokerMemberGroupPeriod      int      1000   -
        cleanOfflineBrokerInterval       int      30000  -
        forwardTimeout                   long     3000   -
        brokerHeartbeatInterval          int      1000   -
        brokerNotActiveTimeoutMillis     long     10000  -
        enableSlaveActingMaster          boolean  false  -
        enableRemoteEscape               boolean  false  -
        skipPreOnline                    boolean  false  -
        consumerOffsetUpdateVersionStep  long     500    -
        compatibleWithOldNameSrv         boolean  true   -
    """,
    "with one replica the broker itself is the quorum that grants a lock": """
        lockInStrictMode  boolean  false  -
    """,
    "belongs to Netty's buffers and selectors": """
        transferMsgByHeap  boolean  true  =
    """,
    "Apache's own code never asks for it": """
        highSpeedMode  boolean  false  =
    """,
    "one event loop serves everything; there are no pools to size": """
        sendMessageThreadPoolNums           int      min(cores, 4)                          =
        putMessageFutureThreadPoolNums      int      min(cores, 4)                          =
        pullMessageThreadPoolNums           int      16 + cores * 2                         =
        ackMessageThreadPoolNums            int      16                                     -
        processReplyMessageThreadPoolNums   int      16 + cores * 2                         =
        queryMessageThreadPoolNums          int      8 + cores                              =
        adminBrokerThreadPoolNums           int      16                                     =
        litePullMessageThreadPoolNums       int      16 + cores * 2                         -
        clientManageThreadPoolNums          int      32                                     =
        consumerManageThreadPoolNums        int      32                                     =
        heartbeatThreadPoolNums             int      min(32, cores)                         =
        endTransactionThreadPoolNums        int      max(8 + cores * 2, 4 * min(cores, 4))  =
        loadBalanceProcessorThreadPoolNums  int      32                                     -
        asyncSendEnable                     boolean  true                                   -
        recoverConcurrently                 boolean  false                                  -
        recoverThreadPoolNums               int      32                                     -
        enableFastChannelEventProcess       boolean  false                                  -
    """,
    "no history of offsets is kept": """
        flushConsumerOffsetHistoryInterval  int  60000  =
    """,
    "Java only": """
        rocketmqHome  String  variable ROCKETMQ_HOME  =
    """,
    "calls to name servers keep the client's own time limits": """
        sendHeartbeatTimeoutMillis  int  1000  -
    """,
    "the broker does not count half messages by topic": """
        transactionMetricFlushInterval  long  3000  -
    """,
    "name servers are given as addresses, not looked up": """
        fetchNamesrvAddrByAddressServer  boolean  false             =
        fetchNameSrvAddrByDnsLookup      boolean  false             -
        fetchNamesrvAddrInterval         long     10000             -
        updateNameServerAddrPeriod       int      120000            -
        rmqAddressServerDomain           String   jmenv.tbsite.net  =
        rmqAddressServerSubGroup         String   nsaddr            =
    """,
    "metrics, and counts by account, come with a later release": """
        commercialBaseCount                   int      1        =
        commercialSizePerMsg                  int      4096     -
        accountStatsEnable                    boolean  true     -
        accountStatsPrintZeroValues           boolean  true     -
        maxStatsIdleTimeInMinutes             int      -1       -
        metricsExporterType                   String   DISABLE  -
        metricsOtelCardinalityLimit           int      50000    -
        metricsGrpcExporterTarget             String   ''       -
        metricsGrpcExporterHeader             String   ''       -
        metricGrpcExporterTimeOutInMills      long     3000     -
        metricGrpcExporterIntervalInMills     long     60000    -
        metricLoggingExporterIntervalInMills  long     10000    -
        metricsLabel                          String   ''       -
        metricsInDelta                        boolean  false    -
        metricsPromExporterPort               int      5557     -
        metricsPromExporterHost               String   ''       -
        estimateAccumulation                  boolean  true     -
        printChannelGroups                    boolean  false    -
        printChannelGroupsMinNum              int      5        -
        commercialEnable                      boolean  -        true
        commercialTransCount                  int      -        1
        commercialBigCount                    int      -        1
    """,
    "each filter is asked for each message: there is no Bloom filter before it": """
        enableCalcFilterBitMap      boolean  false     =
        expectConsumerNumUseFilter  int      32        =
        maxErrorRateOfBloomFilter   int      20        =
        filterDataCleanTimeSpan     long     86400000  =
        filterSupportRetry          boolean  false     =
        filterServerNums            int      -         0
    """,
    "every registration carries all topics, uncompressed": """
        compressedRegister         boolean  false  =
        forceRegister              boolean  true   =
        enableSingleTopicRegister  boolean  false  -
        enableSplitRegistration    boolean  false  -
        splitRegistrationSize      int      800    -
    """,
    "consumers are told of a change at once": """
        realTimeNotifyConsumerChange  boolean  true  -
    """,
    "recalls are taken whatever brokerPermission says": """
        allowRecallWhenBrokerNotWriteable  boolean  true  -
    """,
    "delayed messages need no such thing here": """
        delayOffsetUpdateVersionStep  long  200  -
        commercialTimerCount          int   -    1
        maxDelayTime                  int   -    40
    """,
    "every kind of consumer is served": """
        rejectPullConsumerEnable  boolean  false  -
    """,
    "the controller comes with a later release": """
        controllerAddr                   String   ''          -
        fetchControllerAddrByDnsLookup   boolean  false       -
        syncBrokerMetadataPeriod         long     5000        -
        checkSyncStateSetPeriod          long     5000        -
        syncControllerMetadataPeriod     long     10000       -
        brokerElectionPriority           int      2147483647  -
        controllerHeartBeatTimeoutMills  long     10000       -
    """,
    "broadcast offsets are kept by the consumers": """
        enableBroadcastOffsetStore      boolean  true  -
        broadcastOffsetExpireSecond     long     120   -
        broadcastOffsetExpireMaxSecond  long     300   -
    """,
    "subscriptions come and go with heartbeats alone": """
        subscriptionExpiredTimeout  long     600000  -
        useStaticSubscription       boolean  false   -
    """,
    "light message queues and multi-dispatch are not served": """
        enableLmqStats  boolean  false  -
    """,
    "RocksDB queues are not served (asking for them is refused)": """
        configManagerVersion  String  v1  -
    """,
    "always on here": """
        enableRegisterProducer  boolean  true  -
        autoDeleteUnusedStats   boolean  true  false
        enableCreateSysGroup    boolean  true  -
    """,
    "access control is off in this release (turning it on is refused)": """
        configName                                String   ''     -
        clusterName                               String   ''     -
        authConfigPath                            String   ''     -
        authenticationProvider                    String   ''     -
        authenticationMetadataProvider            String   ''     -
        authenticationStrategy                    String   ''     -
        authenticationWhitelist                   String   ''     -
        initAuthenticationUser                    String   ''     -
        innerClientAuthenticationCredentials      String   ''     -
        authorizationProvider                     String   ''     -
        authorizationMetadataProvider             String   ''     -
        authorizationStrategy                     String   ''     -
        authorizationWhitelist                    String   ''     -
        migrateAuthFromV1Enabled                  boolean  false  -
        userCacheMaxNum                           int      1000   -
        userCacheExpiredSecond                    int      600    -
        userCacheRefreshSecond                    int      60     -
        aclCacheMaxNum                            int      1000   -
        aclCacheExpiredSecond                     int      600    -
        aclCacheRefreshSecond                     int      60     -
        statefulAuthenticationCacheMaxNum         int      10000  -
        statefulAuthenticationCacheExpiredSecond  int      60     -
        statefulAuthorizationCacheMaxNum          int      10000  -
        statefulAuthorizationCacheExpiredSecond   int      60     -
    """,
}
