import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What Apache's DefaultMQAdminExt answers: java AdminAnswers NAMESRV reads a call a line, the name of the method and its arguments
 * between tabs, and answers each with a line "BYTES" and so many bytes of JSON, as brokers write it. A call that fails answers with
 * a text that begins with "failed".
 */
final class AdminAnswers {
    private AdminAnswers() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        DefaultMQAdminExt admin = new DefaultMQAdminExt(Session.signer(Session.ADMIN), 60_000L);
        admin.setNamesrvAddr(args[0]);
        admin.setInstanceName("answers");
        admin.start();
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = calls.readLine(); line != null; line = calls.readLine()) {
            String[] words = line.split("\t", -1);
            byte[] bytes = answer(admin, words[0], Arrays.copyOfRange(words, 1, words.length));
            answers.println(bytes.length);
            answers.write(bytes);
            answers.flush();
        }
        System.exit(0);
    }

    private static byte[] answer(DefaultMQAdminExt admin, String name, String[] words) throws Exception {
        for (Method method : DefaultMQAdminExt.class.getMethods()) {
            if (method.getName().equals(name) && takes(method, words)) {
                try {
                    return RemotingSerializable.encode(method.invoke(admin, arguments(method, words)));
                } catch (InvocationTargetException failure) {
                    return ("failed: " + failure.getCause()).getBytes(StandardCharsets.UTF_8);
                }
            }
        }
        throw new IllegalArgumentException(name + " with " + words.length + " words");
    }

    private static boolean takes(Method method, String[] words) {
        return method.getParameterCount() == words.length
            && Arrays.stream(method.getParameterTypes()).allMatch(type -> type == String.class || type == List.class || type.isPrimitive());
    }

    private static Object[] arguments(Method method, String[] words) {
        Object[] found = new Object[words.length];
        for (int n = 0; n < words.length; n++) {
            found[n] = argument(method.getParameterTypes()[n], words[n]);
        }
        return found;
    }

    private static Object argument(Class<?> type, String word) {
        if (type == boolean.class) {
            return Boolean.parseBoolean(word);
        }
        if (type == long.class) {
            return Long.parseLong(word);
        }
        if (type == int.class) {
            return Integer.parseInt(word);
        }
        return type == List.class ? List.of(word) : word;
    }
}
