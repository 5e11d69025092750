"""The keys of `broker.conf` from Apache's MessageStoreConfig, as data; columns as in
`apache_broker_keys`.

Its one rule: every key that Apache reads stands here once. It must not say what a honoured key
does: its field does.
"""

from typing import Final

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
