package golden;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Collects recorded bytes: one small file each, and an index that says what a reader must find in them.
 *
 * The index is written from the fields of the Java objects (by reflection), not from their bytes, so that it is a
 * second witness. Nothing here depends on the clock, the host or the process.
 */
public final class Golden {
    /** Of HAClientRuntimeInfo: no accessor, so it does not travel. */
    private static final String NO_GETTER = "isActivated";

    private final String apache;
    private final Path directory;
    private final List<Object> entries = new ArrayList<>();

    public Golden(String apache, Path data) {
        this.apache = apache;
        this.directory = data.resolve(apache);
    }

    /** The same, with Apache's logging kept off the screen and out of the user's home, in UTC. */
    public static Golden quietly(String apache, Path data) throws IOException {
        java.util.TimeZone.setDefault(java.util.TimeZone.getTimeZone("UTC"));
        System.setProperty("user.home", Files.createTempDirectory("golden-home").toString());
        System.setOut(new java.io.PrintStream(java.io.OutputStream.nullOutputStream()));
        return new Golden(apache, data);
    }

    /** Adds a file of bytes with what it holds; `fields` alternates names and values. */
    public void add(String kind, String name, byte[] bytes, Object... fields) {
        Map<String, Object> entry = entry(kind, name, fields);
        String file = name + ".bin";
        entry.put("file", file);
        try {
            Files.createDirectories(directory);
            Files.write(directory.resolve(file), bytes);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    /** Adds a fact that needs no file of its own. */
    public void fact(String kind, String name, Object... fields) {
        entry(kind, name, fields);
    }

    public void finish() throws IOException {
        Map<String, Object> index = new LinkedHashMap<>();
        index.put("apache", apache);
        index.put("entries", entries);
        StringBuilder out = new StringBuilder();
        json(out, index, 0);
        out.append('\n');
        Files.createDirectories(directory);
        Files.write(directory.resolve("index.json"), out.toString().getBytes(StandardCharsets.US_ASCII));
        System.err.println(apache + ": " + entries.size() + " entries in " + directory.getFileName());
    }

    private Map<String, Object> entry(String kind, String name, Object... fields) {
        Map<String, Object> entry = new LinkedHashMap<>();
        entry.put("name", name);
        entry.put("kind", kind);
        for (int i = 0; i < fields.length; i += 2) {
            entry.put((String) fields[i], fields[i + 1]);
        }
        entries.add(entry);
        return entry;
    }

    public static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }

    /** The fields of a header object as they must travel: name to text. */
    public static Map<String, String> header(Object header) {
        Map<String, String> fields = new TreeMap<>();
        if (header != null) {
            for (Map.Entry<String, Object> field : fieldsOf(header).entrySet()) {
                if (field.getValue() != null) {
                    fields.put(field.getKey(), field.getValue().toString());
                }
            }
        }
        return fields;
    }

    /** A body object as plain values: beans and string maps to objects, other maps to lists of pairs. */
    public static Object describe(Object value) {
        if (value == null || value instanceof String || value instanceof Boolean) {
            return value;
        }
        if (value instanceof Enum) {
            return ((Enum<?>) value).name();
        }
        if (value instanceof Number) {
            return value instanceof Float || value instanceof Double ? value : ((Number) value).longValue();
        }
        if (value instanceof byte[]) {
            return hex((byte[]) value);
        }
        if (value.getClass().isArray()) {
            List<Object> items = new ArrayList<>();
            for (int i = 0; i < Array.getLength(value); i++) {
                items.add(describe(Array.get(value, i)));
            }
            return items;
        }
        if (value instanceof Collection) {
            List<Object> items = new ArrayList<>();
            ((Collection<?>) value).forEach(item -> items.add(describe(item)));
            return items;
        }
        if (value instanceof Map) {
            return describeMap((Map<?, ?>) value);
        }
        Map<String, Object> fields = new TreeMap<>();
        for (Map.Entry<String, Object> field : fieldsOf(value).entrySet()) {
            if (field.getValue() != null) {
                fields.put(beanName(field.getKey()), describe(field.getValue()));
            }
        }
        return fields;
    }

    private static Object describeMap(Map<?, ?> map) {
        boolean named = map.keySet().stream().allMatch(key -> key instanceof String);
        if (named) {
            Map<String, Object> entries = new LinkedHashMap<>();
            map.forEach((key, item) -> entries.put((String) key, describe(item)));
            return entries;
        }
        List<Object> pairs = new ArrayList<>();
        map.forEach((key, item) -> pairs.add(List.of(describe(key), describe(item))));
        return pairs;
    }

    /** All fields that can travel, of the class and its superclasses: no statics, no transients, no machinery. */
    private static Map<String, Object> fieldsOf(Object bean) {
        Map<String, Object> fields = new LinkedHashMap<>();
        for (Class<?> type = bean.getClass(); type.getName().startsWith("org.apache."); type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                int modifiers = field.getModifiers();
                if (Modifier.isStatic(modifiers) || Modifier.isTransient(modifiers) || field.isSynthetic()
                    || field.getType() == java.util.Random.class || field.getName().equals(NO_GETTER)) {
                    continue;
                }
                try {
                    field.setAccessible(true);
                    fields.putIfAbsent(field.getName(), field.get(bean));
                } catch (IllegalAccessException e) {
                    throw new IllegalStateException(e);
                }
            }
        }
        return fields;
    }

    /** `isWithoutSub` is the bean property `withoutSub`. */
    private static String beanName(String field) {
        if (field.startsWith("is") && field.length() > 2 && Character.isUpperCase(field.charAt(2))) {
            return Character.toLowerCase(field.charAt(2)) + field.substring(3);
        }
        return field;
    }

    private static void json(StringBuilder out, Object value, int level) {
        if (value instanceof Map) {
            out.append('{');
            String comma = "";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(comma);
                line(out, level + 1);
                quote(out, (String) entry.getKey());
                out.append(": ");
                json(out, entry.getValue(), level + 1);
                comma = level < 3 ? "," : ", ";
            }
            line(out, ((Map<?, ?>) value).isEmpty() ? 9 : level);
            out.append('}');
        } else if (value instanceof Collection) {
            out.append('[');
            String comma = "";
            for (Object item : (Collection<?>) value) {
                out.append(comma);
                line(out, level + 1);
                json(out, item, level + 1);
                comma = level < 3 ? "," : ", ";
            }
            line(out, ((Collection<?>) value).isEmpty() ? 9 : level);
            out.append(']');
        } else if (value instanceof String) {
            quote(out, (String) value);
        } else {
            out.append(value);
        }
    }

    private static void line(StringBuilder out, int level) {
        if (level <= 3) {
            out.append('\n').append(" ".repeat(level));
        }
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
