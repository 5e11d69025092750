"""The keys of `namesrv.conf` from Apache's NamesrvConfig, as data; columns as in
`apache_broker_keys`.

Its one rule: every key that Apache reads stands here once. It must not say what a honoured key
does: its field does.
"""

from typing import Final

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
