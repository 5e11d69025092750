import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Apache's mqadmin, many commands in one JVM: java Mqadmin reads a command a line, its words between tabs, and answers each with
 * a line "BYTES" and so many bytes of what the command printed. A command that is not back in SECONDS (the first word of its line)
 * is interrupted, and "TIMEOUT" is added to what it printed.
 */
final class Mqadmin {
    private static final class Commands extends MQAdminStartup {
        static void forget() {
            SUB_COMMANDS.clear();
        }
    }

    private Mqadmin() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split("\t", -1);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream printer = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(printer);
            System.setErr(printer);
            if (!ends(Arrays.copyOfRange(words, 1, words.length), 1000L * Integer.parseInt(words[0]))) {
                printer.println("TIMEOUT");
            }
            byte[] bytes = printed.toByteArray();
            answers.println(bytes.length);
            answers.write(bytes);
            answers.flush();
        }
        System.exit(0);
    }

    private static boolean ends(String[] command, long millis) throws InterruptedException {
        Commands.forget(); // some of them are used up after one run
        Thread running = new Thread(() -> MQAdminStartup.main0(command, null), command[0]);
        running.setDaemon(true);
        running.start();
        long end = System.nanoTime() + 1_000_000 * millis;
        while (running.isAlive() && System.nanoTime() < end) {
            running.join(20);
            if (closes(running)) {
                hastenClose();
            }
        }
        running.interrupt();
        return !running.isAlive();
    }

    private static boolean closes(Thread client) {
        return Arrays.stream(client.getStackTrace()).anyMatch(
            one -> one.getClassName().endsWith("NettyRemotingClient") && one.getMethodName().equals("shutdown"));
    }

    /** A client that closes waits up to three seconds for its thread that waits for events of connections. */
    private static void hastenClose() {
        Thread.getAllStackTraces().keySet().stream().filter(one -> one.getName().startsWith("NettyEventExecutor")).forEach(Thread::interrupt);
    }
}
