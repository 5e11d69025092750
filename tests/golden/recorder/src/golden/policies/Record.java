package golden.policies;

import golden.Golden;
import java.nio.file.Path;

/** Records what the evaluator of policies says: `Record VERSION DATA_DIRECTORY`. */
public final class Record {
    public static void main(String[] args) throws Exception {
        Golden golden = Golden.quietly(args[0], Path.of(args[1]));
        new Policies(golden).record();
        golden.finish();
        System.exit(0);
    }
}
