package golden.four;

import golden.Golden;
import java.nio.file.Path;

/** Records what differs in the 4.9 line: `Record VERSION DATA_DIRECTORY`. Stored messages are the same there. */
public final class Record {
    public static void main(String[] args) throws Exception {
        Golden golden = Golden.quietly(args[0], Path.of(args[1]));
        System.setProperty("rocketmq.remoting.version", Integer.toString(
            org.apache.rocketmq.common.MQVersion.CURRENT_VERSION));
        new Commands(golden).record();
        new Bodies(golden).record();
        new ConfigFiles(golden).record();
        golden.finish();
        System.exit(0);
    }
}
