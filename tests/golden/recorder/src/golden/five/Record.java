package golden.five;

import golden.Golden;
import java.nio.file.Path;

/** Records everything of the 5.x line: `Record VERSION DATA_DIRECTORY`. */
public final class Record {
    public static void main(String[] args) throws Exception {
        Golden golden = Golden.quietly(args[0], Path.of(args[1]));
        System.setProperty("rocketmq.remoting.version", Integer.toString(
            org.apache.rocketmq.common.MQVersion.CURRENT_VERSION));
        new Commands(golden).record();
        new Bodies(golden).record();
        new AdminBodies(golden).record();
        new Routes(golden).record();
        new ConfigFiles(golden).record();
        new Messages(golden).record();
        new Ids(golden).record();
        new Texts(golden).record();
        new Clients(golden).record();
        new Filters(golden).record();
        new Allocations(golden).record();
        golden.finish();
        System.exit(0);
    }
}
