"""The keys of `broker.conf` from Apache's BrokerConfig, BrokerIdentity, AuthConfig and
BrokerStartup, as data.

A line is: key, Java type, default in 5.3.3, default in 4.9.8 (`=` the same, `-` no such key, `''`
empty). The keys under the empty reason are honoured; the others are accepted without effect, for
the reason above them. Its one rule: every key that Apache reads stands here once. It must not say
what a honoured key does: its field does.
"""

import difflib
import enum
from collections.abc import Mapping
from dataclasses import dataclass
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


# TODO-PROSE from apache_store_keys.py:
# The keys of `broker.conf` from Apache's MessageStoreConfig, as data; columns as in
# `apache_broker_keys`.
#
# Its one rule: every key that Apache reads stands here once. It must not say what a honoured key
# does: its field does.


STORE: Final = {
    "": """
        mappedFileSizeCommitLog            int      1073741824      =
        storeType                          String   default         -
        mappedFileSizeConsumeQueue         int      6000000         =
        mapperFileSizeBatchConsumeQueue    int      13800000        -
        flushIntervalCommitLog             int      500             =
        flushIntervalConsumeQueue          int      1000            =
        maxMessageSize                     int      4194304         =
        storePathCommitLog                 String   ''              =
        maxTransferBytesOnMessageInMemory  int      262144          =
        maxTransferCountOnMessageInMemory  int      32              =
        maxTransferBytesOnMessageInDisk    int      65536           =
        maxTransferCountOnMessageInDisk    int      8               =
        accessMessageInMemoryMaxRatio      int      40              =
        coldDataFlowControlEnable          boolean  false           -
        dataReadAheadEnable                boolean  true            -
        haListenPort                       int      listenPort + 1  =
        brokerRole                         String   ASYNC_MASTER    =
        flushDiskType                      String   ASYNC_FLUSH     =
        syncFlushTimeout                   int      5000            =
        osPageCacheBusyTimeOutMills        long     1000            =
        storePathRootDir                   String   ~/store         =
        enableDLegerCommitLog              boolean  false           =
        messageIndexEnable                 boolean  true            =
        maxHashSlotNum                     int      5000000         =
        maxIndexNum                        int      20000000        =
        maxMsgsNumBatch                    int      64              =
        defaultQueryMaxNum                 int      32              =
        enabledAppendPropCRC               boolean  false           -
        cleanResourceInterval              int      10000           =
        deleteWhen                         String   04              =
        fileReservedTime                   int      72              =
        deleteFileBatchMax                 int      10              -
        deleteCommitLogFilesInterval       int      100             =
        deleteConsumeQueueFilesInterval    int      100             =
        diskMaxUsedSpaceRatio              int      75              =
        diskSpaceCleanForciblyRatio        int      85              -
        diskSpaceWarningLevelRatio         int      90              -
        cleanFileForciblyEnable            boolean  true            =
        readOnlyCommitLogStorePaths        String   ''              =
        messageDelayLevel                  String   1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h  =
        flushDelayOffsetInterval           long     10000           =
        timerWheelEnable                   boolean  true            -
        timerMaxDelaySec                   int      259200          -
        timerPrecisionMs                   int      1000            -
        timerRollWindowSlot                int      172800          -
        timerFlushIntervalMs               int      1000            -
        mappedFileSizeTimerLog             int      104857600       -
    """,
    "RocksDB queues are not served (asking for them is refused)": """
        rocksdbCompressionType                         String   lz4         -
        rocksdbCQDoubleWriteEnable                     boolean  false       -
        realTimePersistRocksDBConfig                   boolean  true        -
        statRocksDBCQIntervalSec                       long     10          -
        cleanRocksDBDirtyCQIntervalMin                 long     60          -
        memTableFlushIntervalMs                        long     3600000     -
        enableRocksDBLog                               boolean  false       -
        bottomMostCompressionTypeForConsumeQueueStore  String   zstd        -
        rocksdbFlushWalFrequency                       int      1024        -
        rocksdbWalFileRollingThreshold                 long     1073741824  -
    """,
    "checksums are always checked": """
        checkCRCOnRecover     boolean  true   =
        forceVerifyPropCRC    boolean  false  -
    """,
    "one thread owns the store; there is no lock": """
        debugLockEnable                        boolean  false   =
        putMsgIndexHightWater                  int      600000  =
        messageIndexSafe                       boolean  false   =
        useReentrantLockWhenPutMessage         boolean  true    =
        spinLockCollisionRetreatOptimalDegree  int      1000    -
        useABSLock                             boolean  false   -
    """,
    "replication comes with a later release": """
        duplicationEnable                 boolean  false       =
        storePathEpochFile                String   ''          -
        storePathBrokerIdentity           String   ''          -
        haSendHeartbeatInterval           int      5000        =
        haHousekeepingInterval            int      20000       =
        haTransferBatchSize               int      32768       =
        haMaxGapNotInSync                 int      268435456   -
        putMessageTimeout                 int      8000        -
        slaveTimeout                      int      3000        =
        haMasterAddress                   String   ''          =
        offsetCheckInSlave                boolean  false       =
        totalReplicas                     int      1           -
        inSyncReplicas                    int      1           -
        minInSyncReplicas                 int      1           -
        allAckInSyncStateSet              boolean  false       -
        enableAutoInSyncReplicas          boolean  false       -
        haFlowControlEnable               boolean  false       -
        maxHaTransferByteInSecond         long     104857600   -
        haMaxTimeSlaveNotCatchup          long     15000       -
        syncMasterFlushOffsetWhenStartup  boolean  false       -
        maxChecksumRange                  long     1073741824  -
        maxSlaveResendLength              long     268435456   -
        syncFromLastFile                  boolean  false       -
        asyncLearner                      boolean  false       -
        haSlaveFallbehindMax              int      -           268435456
    """,
    "no thread pool, so no queue before it; only sends wait, in the send queue": """
        maxAsyncPutMessageRequests   int   5000  -
    """,
    "metrics, and counts by account, come with a later release": """
        diskFallRecorded  boolean  true  =
    """,
    "mapped files are opened and warmed by this store's own rules": """
        warmMapedFileEnable                 boolean  false     =
        travelCqFileNumWhenGetMessage       int      1         -
        correctLogicMinOffsetSleepInterval  int      1         -
        correctLogicMinOffsetForceInterval  int      300000    -
        maxRecoveryCommitlogFiles           int      30        -
        recheckReputOffsetFromCq            boolean  false     -
        commitLogForceSwapMapInterval       long     43200000  -
        commitLogSwapMapReserveFileNum      int      100       -
        logicQueueForceSwapMapInterval      long     43200000  -
        logicQueueSwapMapReserveFileNum     int      20        -
        cleanSwapedMapInterval              long     300000    -
        commitLogSwapMapInterval            long     3600000   -
        logicQueueSwapMapInterval           long     3600000   -
        mappedFileSwapEnable                boolean  true      -
        maxConsumeQueueScan                 int      20000     -
        readUnCommitted                     boolean  false     -
        putConsumeQueueDataByFileChannel    boolean  true      -
    """,
    "compaction topics come with a later release": """
        compactionMappedFileSize    int      104857600  -
        compactionCqMappedFileSize  int      10485760   -
        compactionScheduleInternal  int      900000     -
        maxOffsetMapSize            int      104857600  -
        enableCompaction            boolean  true       -
    """,
    "one event loop serves everything; there are no pools to size": """
        compactionThreadNum                  int      6      -
        dispatchFromSenderThread             boolean  false  -
        dispatchCqThreads                    int      10     -
        dispatchCqCacheNum                   int      4096   -
        enableAsyncReput                     boolean  true   -
        timerGetMessageThreadNum             int      3      -
        timerPutMessageThreadNum             int      3      -
        enableBuildConsumeQueueConcurrently  boolean  false  -
        batchDispatchRequestThreadPoolNums   int      16     -
        topicQueueLockNum                    int      32     -
    """,
    "property filters look at the messages themselves: nothing is kept beside the queues for them": """
        enableConsumeQueueExt          boolean  false     =
        mappedFileSizeConsumeQueueExt  int      50331648  =
        bitMapLengthConsumeQueueExt    int      64        =
        maxFilterMessageSize           int      16000     -
    """,
    "a file that is still being read is unlinked at once, and closed when its last read ends": """
        destroyMapedFileIntervalForcibly  int  120000  =
        redeleteHangedFileInterval        int  120000  =
    """,
    "a disk is judged as a whole, whoever else uses it": """
        replicasPerDiskPartition                int     1    -
        logicalDiskSpaceCleanForciblyThreshold  double  0.8  -
    """,
    "topic names end at 127 bytes": """
        maxTopicLength                int      127   -
        autoMessageVersionOnTopicLen  boolean  true  -
    """,
    "DLedger logs are not served (turning them on is refused)": """
        storePathDLedgerCommitLog  String   ''     =
        dLegerGroup                String   ''     =
        dLegerPeers                String   ''     =
        dLegerSelfId               String   ''     =
        preferredLeaderId          String   ''     =
        enableBatchPush            boolean  false  =
    """,
    "every flush covers all that is written; nothing is committed in pages": """
        flushCommitLogLeastPages           int      4      =
        flushConsumeQueueLeastPages        int      2      =
        flushCommitLogThoroughInterval     int      10000  =
        flushConsumeQueueThoroughInterval  int      60000  =
        flushCommitLogTimed                boolean  true   =
        flushLeastPagesWhenWarmMapedFile   int      4096   =
        commitIntervalCommitLog            int      200    =
        commitCommitLogLeastPages          int      4      =
        commitCommitLogThoroughInterval    int      200    =
        wakeCommitWhenPutMessage           boolean  true   -
        wakeFlushWhenPutMessage            boolean  false  -
    """,
    "delayed messages are delivered in the loop, in the order of their levels": """
        enableScheduleMessageStats                boolean  true                 =
        enableScheduleAsyncDeliver                boolean  false                =
        scheduleAsyncDeliverMaxPendingLimit       int      2000                 =
        scheduleAsyncDeliverMaxResendNum2Blocked  int      3                    =
    """,
    "timer messages are never dropped, nor put off because there are many; how many wait is not "
    "counted by topic": """
        timerEnableCheckMetrics       boolean  true        -
        timerStopEnqueue              boolean  false       -
        timerSkipUnknownError         boolean  false       -
        timerEnableRetryUntilSuccess  boolean  false       -
        timerMetricSmallThreshold     int      1000000     -
        timerCongestNumEachSlot       int      2147483647  -
        timerProgressLogIntervalMs    int      10000       -
        timerColdDataCheckIntervalMs  int      60000       -
    """,
    "a delay level is always a level, as it is with Apache's broker": """
        timerInterceptDelayLevel  boolean  false  -
    """,
    "delivery begins at once after a start": """
        disappearTimeAfterStart  int  -1  -
    """,
    "writes go to the mapped file at once; there is no pool of buffers": """
        transientStorePoolEnable       boolean  false  =
        transientStorePoolSize         int      5      =
        fastFailIfNoBufferInStorePool  boolean  false  =
    """,
    "each look-up is a binary search over all files": """
        searchBcqByCacheEnable  boolean  true  -
    """,
    "Apache's own code never asks for it": """
        pullBatchMaxMessageCount  int      160    -
        maxBatchDeleteFilesNum    int      50     -
        enableCleanExpiredOffset  boolean  false  -
    """,
    "light message queues and multi-dispatch are not served": """
        enableLmq              boolean  false  =
        enableMultiDispatch    boolean  false  =
        maxLmqConsumeQueueNum  int      20000  =
    """,
    "what may not be in memory is known by its place here": """
        sampleCountThreshold           int      5000   -
        coldDataScanEnable             boolean  false  -
        sampleSteps                    int      32     -
        accessMessageInMemoryHotRatio  int      26     -
    """,
}


# TODO-PROSE from apache_network_keys.py:
# The keys of both files from Apache's NettyServerConfig and NettyClientConfig, as data; columns as
# in `apache_broker_keys`.
#
# Its one rule: every key that Apache reads stands here once; `listenPort` and `useTLS` stand with
# each server, which treat them differently. It must not say what a honoured key does: its field does.


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


# TODO-PROSE from apache_namesrv_keys.py:
# The keys of `namesrv.conf` from Apache's NamesrvConfig, as data; columns as in
# `apache_broker_keys`.
#
# Its one rule: every key that Apache reads stands here once. It must not say what a honoured key
# does: its field does.


NAMESRV: Final = {
    "": """
        listenPort                         int      9876                     =
        scanNotActiveBrokerInterval        long     5000                     -
        enableAllTopicList                 boolean  true                     -
        enableTopicList                    boolean  true                     -
        enableControllerInNamesrv          boolean  false                    -
        needWaitForService                 boolean  false                    -
        waitSecondsForService              int      45                       -
        deleteTopicWithBrokerRegistration  boolean  false                    -
        supportActingMaster                boolean  false                    -
    """,
    "the key-value configuration comes with a later release": """
        orderMessageEnable              boolean  false                    =
        kvConfigPath                    String   ~/namesrv/kvConfig.json  =
        returnOrderTopicConfigToBroker  boolean  true                     -
    """,
    "the configuration cannot be changed at run time": """
        configBlackList  String  configBlackList;configStorePath;kvConfigPath  =
        configStorePath  String  ~/namesrv/namesrv.properties                  =
    """,
    "Java only": """
        rocketmqHome  String  variable ROCKETMQ_HOME  =
    """,
    "routes are not borrowed from another name server": """
        productEnvName  String   center  =
        clusterTest     boolean  false   =
    """,
    "one event loop serves everything; there are no pools to size": """
        clientRequestThreadPoolNums  int  8   -
        defaultThreadPoolNums        int  16  -
    """,
    "no thread pool, so no queue before it; the connection pushes back instead": """
        clientRequestThreadPoolQueueCapacity  int  50000  -
        defaultThreadPoolQueueCapacity        int  10000  -
        unRegisterBrokerQueueCapacity         int  3000   -
    """,
    "the name server calls nobody": """
        useTLS  boolean  false  -
    """,
    "replication comes with a later release": """
        notifyMinBrokerIdChanged  boolean  false  -
    """,
}


# TODO-PROSE from keys.py:
# Every key that Apache's servers read from their files (5.3.3 and 4.9.8), each in one of three
# classes: honoured, accepted without effect, unknown.
#
# Its one rule: nothing is guessed; a key that is in no table is unknown, and the nearest known one is
# offered. It must not know values. Source: the setters of Apache's configuration classes at both
# tags, which is how `MixAll.properties2Object` finds keys.


class KeyClass(enum.Enum):
    """What a key in a file does here."""

    HONOURED = "honoured"
    ACCEPTED = "accepted without effect"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Key:
    """One of Apache's keys. A default of None means that this version has no such key; `reason` is
    empty when honoured."""

    name: str
    java_type: str
    default_5: str | None
    default_4: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """What is to be said about a key: the reason for having no effect, or the nearest known key."""

    key_class: KeyClass
    reason: str = ""
    nearest: str = ""


KeyTable = Mapping[str, Key]


def classify(name: str, table: KeyTable) -> Found:
    """The class of a key in one of the two tables; `Found.nearest` is empty when no known key is
    near."""
    if key := table.get(name):
        return (
            Found(KeyClass.ACCEPTED, reason=key.reason) if key.reason else Found(KeyClass.HONOURED)
        )
    by_lower = {known.lower(): known for known in table}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return Found(KeyClass.UNKNOWN, nearest=by_lower[near[0]] if near else "")


def _read_table(
    *parts: Mapping[str, str], only_5: tuple[str, ...] = (), own: tuple[Key, ...] = ()
) -> KeyTable:
    table: dict[str, Key] = {}
    for part in parts:
        for reason, lines in part.items():
            for line in lines.strip().splitlines():
                key = _read_line(line, reason)
                if key.name in only_5:
                    key = Key(key.name, key.java_type, key.default_5, None, key.reason)
                assert key.name not in table, f"key={key.name} stands in two tables"
                table[key.name] = key
    table.update((key.name, key) for key in own)
    return table


def _read_line(line: str, reason: str) -> Key:
    name, java_type, default_5, default_4 = (column for column in line.split("  ") if column)
    new = _default(default_5.strip())
    old = new if default_4.strip() == "=" else _default(default_4.strip())
    return Key(name.strip(), java_type.strip(), new, old, reason)


def _default(text: str) -> str | None:
    return {"-": None, "''": ""}.get(text, text)


def _names(part: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(line.split()[0] for lines in part.values() for line in lines.strip().splitlines())


# Ours: Apache's broker cannot advertise another port than its own, judges a disk in per cent alone,
# leaves the types of messages to its proxy, and has the last four only in its documentation.
OWN_KEYS: Final = (
    Key("advertisedPort", "int", None, None, ""),
    Key("coldReadSharePercent", "int", None, None, ""),
    Key("diskFreeSpaceMin", "long", None, None, ""),
    Key("enableTopicMessageTypeCheck", "boolean", None, None, ""),
    Key("scrubBytesPerSecond", "int", None, None, ""),
    Key("storePathConsumeQueue", "String", None, None, ""),
    Key("storePathIndex", "String", None, None, ""),
    Key("storeCheckpoint", "String", None, None, ""),
    Key("abortFile", "String", None, None, ""),
)

BROKER_KEYS: Final = _read_table(BROKER, STORE, SERVER, CLIENT, own=OWN_KEYS)
# RocketMQ: the name server of 4.9 reads no NettyClientConfig.
NAMESRV_KEYS: Final = _read_table(NAMESRV, SERVER, CLIENT, only_5=_names(CLIENT))
