import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;

/**
 * java Main NAMESRV PREFIX COUNT: runs every scenario at once, each on topics and groups that start with PREFIX, and prints
 * one JSON line per scenario as it ends. Exits 0 only when all passed. With INTEROP_SCENARIOS=a,b in the environment: those alone.
 */
public final class Main {
    static final int PATIENCE_SECONDS = 180; // only a failure waits that long, or a machine busy with much else

    interface Scenario {
        String run(String topic) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Session session = new Session(args[0], args[1], Integer.parseInt(args[2]));
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        Sending.addTo(scenarios, session);
        Consuming.addTo(scenarios, session);
        Administration.addTo(scenarios, session);
        Querying.addTo(scenarios, session);
        RequestReply.addTo(scenarios, session);
        boolean passed = all(scenarios, args[1]);
        session.close();
        System.exit(passed ? 0 : 1);
    }

    /** Runs those that are wanted, all at once; whether all passed. */
    static boolean all(Map<String, Scenario> scenarios, String prefix) throws InterruptedException {
        String wanted = System.getenv("INTEROP_SCENARIOS");
        if (wanted != null) {
            scenarios.keySet().retainAll(List.of(wanted.split(",")));
        }
        CountDownLatch ended = new CountDownLatch(scenarios.size());
        Map<String, Boolean> passed = new ConcurrentHashMap<>();
        scenarios.forEach((name, scenario) -> new Thread(() -> {
            passed.put(name, report(name, scenario, prefix + "-" + name));
            ended.countDown();
        }, name).start());
        ended.await();
        return !passed.containsValue(false);
    }

    static boolean report(String name, Scenario scenario, String topic) {
        long start = System.nanoTime();
        String detail;
        boolean ok = false;
        try {
            detail = scenario.run(topic);
            ok = true;
        } catch (Throwable error) {
            detail = error + " at " + error.getStackTrace()[0] + " cause " + error.getCause();
            error.printStackTrace();
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        String line = String.format(java.util.Locale.ROOT, "{\"scenario\":\"%s\",\"ok\":%b,\"seconds\":%.2f,\"detail\":%s}",
            name, ok, seconds, quoted(detail));
        System.out.println(line);
        System.out.flush();
        return ok;
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        text.chars().forEach(c -> {
            if (c < 0x20 || c == '"' || c == '\\' || c > 0x7e) {
                out.append(String.format("\\u%04x", c));
            } else {
                out.append((char) c);
            }
        });
        return out.append('"').toString();
    }
}
