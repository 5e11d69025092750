import java.util.Objects;
import java.util.concurrent.Callable;

/** Failed comparisons, and waiting for another process with a deadline. */
final class Check {
    private Check() {
    }

    static void that(boolean truth, String what) {
        if (!truth) {
            throw new AssertionError(what);
        }
    }

    static void equal(Object wanted, Object got, String what) {
        that(Objects.equals(wanted, got), what + ": wanted " + wanted + ", got " + got);
    }

    /** Asks every 20 ms until true; an exception of the question counts as "not yet" and is told at the deadline. */
    static void eventually(String what, Callable<Boolean> question) throws Exception {
        long deadline = System.nanoTime() + Main.PATIENCE_SECONDS * 1_000_000_000L;
        Exception last = null;
        while (System.nanoTime() < deadline) {
            try {
                if (question.call()) {
                    return;
                }
                last = null;
            } catch (Exception error) {
                last = error;
            }
            Thread.sleep(20);
        }
        throw new AssertionError("never came true: " + what, last);
    }
}
