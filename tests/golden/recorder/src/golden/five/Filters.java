package golden.five;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import golden.Golden;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;

/** What Apache's own classes make of SQL92 filters: refused, or for each message true, false, null or error. */
final class Filters {
    private static final String[] MESSAGES = {
        "", "a=1", "a=-1 b=x", "a=10.5 b=5", "a=true b=TRUE c=no", "a=x b=x", "a=+5 b= 5 ", "a=99999999999 b=2147483648", "a=5d b=0x1p3 c=NaN",
        "a=Infinity b=-0.0 c=0.0", "a=it's b=xyz c=x", "TAGS=paid a=3 b=3 c=4", "A=1 b=", "a=1e3 b=1000 c=1.0", "a=-2147483648 b=9223372036854775807"};
    private static final String[] BY_HAND = {
        "a", "NOT a", "a AND b", "a OR b", "NOT a OR b", "TRUE", "FALSE", "NULL", "NOT TRUE", "NOT NULL", "1", "'x'", "-a", "a = 1", "a=1", "1 = a", "a = '1'",
        "a = 1.0", "a = 1L", "a = 2147483648", "a = -2147483648", "a = 9223372036854775807", "a = 9223372036854775808", "a <> 1", "a <> 'x'", "a = b", "a <> b",
        "a = TRUE", "TRUE = a", "a = FALSE", "TRUE = FALSE", "TRUE = 1", "1 = TRUE", "TRUE = 'x'", "'x' = TRUE", "a = NULL", "NULL = a", "NULL = NULL",
        "a IS NULL", "a IS NOT NULL", "1 IS NULL", "NULL IS NULL", "(a = 1) IS NULL", "a IS 5", "a IS", "a IS NOT", "a IS NULL IS NOT NULL", "a > 1", "a >= 1",
        "a < 1", "a <= 1", "1 > a", "a > b", "a >= b", "a < b", "a <= b", "a > 'x'", "a > TRUE", "a > NULL", "TRUE > a", "a > 1.5", "a > -1", "a > - - 1", "a > +1",
        "a > +-1", "a > -'x'", "a > -b", "a > -TRUE", "a = -b", "a > (b)", "a > (b = 1)", "(a = 1) > b", "a > b > c", "a = b = c", "(a = 1) = TRUE", "TRUE = (a = 1)",
        "(a = 1) = (b = 1)", "(a = 1) = 'true'", "(a = 1) = 1", "a = (b = 1)", "NOT a = 1", "NOT (a = 1)", "NOT a > 1", "NOT NOT a", "NOT (NOT a = 1)",
        "a BETWEEN 1 AND 5", "a NOT BETWEEN 1 AND 5", "a BETWEEN 5 AND 1", "a NOT BETWEEN 5 AND 1", "a BETWEEN 1 AND 1", "a BETWEEN 1 AND 1.5",
        "a BETWEEN 1.5 AND 1", "a BETWEEN -1 AND -5", "a BETWEEN 'a' AND 'b'", "a BETWEEN 'a' AND 5", "a BETWEEN 5 AND 'a'", "a BETWEEN NULL AND 5",
        "a BETWEEN TRUE AND FALSE", "a BETWEEN b AND c", "a NOT BETWEEN b AND c", "1 BETWEEN a AND b", "a BETWEEN 1 AND 5 AND b = 'x'", "a BETWEEN 1 OR 5",
        "a BETWEEN 9223372036854775807 AND 1", "a BETWEEN 1 AND 9223372036854775807", "a IN ('1','2')", "a NOT IN ('1','2')", "a IN ('1')", "a IN ()", "a IN (1)",
        "a IN ('1',)", "1 IN ('1')", "'x' IN ('x')", "(a) IN ('1')", "-a IN ('1')", "NOT a IN ('1')", "NOT (a IN ('1'))",
        "a IN ('1','2','3','4','5','x')", "b IN ('x', 'it''s', '')", "a CONTAINS 't'", "a NOT CONTAINS 't'", "a CONTAINS ''", "a NOT CONTAINS ''", "a CONTAINS b",
        "'xyz' CONTAINS 'y'", "1 CONTAINS '1'", "a STARTSWITH 'it'", "a NOT STARTSWITH 'it'", "a STARTSWITH ''", "b ENDSWITH 'z'", "b NOT ENDSWITH 'z'", "b ENDSWITH ''",
        "NOT (a CONTAINS 'x')", "NOT (a NOT CONTAINS 'x')", "NOT a CONTAINS 'x'", "TRUE CONTAINS 't'", "a CONTAINS 'x' CONTAINS 'y'", "a > 05", "a > 0x10",
        "a = 1 junk", "a like 'x%'", "a + 1 > 2", "a = 1 @", "a = 1 junk @", "a @", "@", "", " ", "a == 1", "a != 1", "a = \"x\"", "a.b = 1", "a-b = 1", "a = 1)",
        "(a = 1", "((a = 1))", "()", "a = 'x", "a = 'it''s'", "a = ''''", "a = ''", "a = 1 -- comment", "a = 1 -- comment\n", "a = --5", "a = --5\n1", "a = /* x */ 1",
        "a = /* x * / ** */ 1", "a = /* x", "a = 1 /", "a\t=\n1", "a\u000b= 1", "a\u00a0= 1", "a = .5", "a = 5.", "a = 5E3", "a = 5.5e-3", "a = 1e400", "a = 0.0",
        "a = 0", "a = -0", "a = 1e-400", "a = 5E", "a = 0L", "a = 1l", "a = 00", "$a = 1", "_a = 1", "a1$ = 1", "1a = 1", "and = 1", "a And b Or NOT c", "a aNd TRUE",
        "TAGS = 'paid'", "tags = 'paid'", "A = '1'", "TAGS IS NOT NULL AND TAGS = 'paid'", "a = 1 OR b = 'x'", "a = 1 AND b = 'x'", "b = 'x' OR a = 1",
        "b = 'x' AND a = 1", "a = 1 OR a = 2 OR b = 'x'", "a = 1 AND a = 2 OR b = 'x'", "a = 1 OR a = 2 AND b = 'x'", "(a = 1 OR a = 2) AND b = 'x'", "a > 1 OR TRUE",
        "TRUE OR a > 1", "FALSE AND a > 1", "a > 1 AND FALSE", "a IS NULL OR a > 1", "a IS NOT NULL AND a > 1", "5 > 3", "5 > 'x'", "5 = 5", "5 = 5.0", "5 = '5'", "'a' = 'a'",
        "'a' = 'b'", "'true' = TRUE", "c > 0", "c = 1.5", "c > 1.5", "a >= b AND b >= a", "a , b", "a = 1,", "NOT", "AND", "a AND", "OR a", "a OR OR b", "a NOT", "a NOT b",
        "a NOT LIKE 'x'", "a BETWEEN 1", "a IN '1'", "IS NULL", "+a", "+ + a = 1", "+(a = 1)", "-(a = 1)", "-(a = 1) = 1", "+NOT a", "NOT -a", "- NOT a", "(1)", "(a)", "('x')"};
    private static final String[] OPERANDS = {
        "a", "b", "c", "TAGS", "1", "5", "-1", "1.5", "1000", "2147483648", "'x'", "'1'", "'true'", "TRUE", "FALSE", "NULL", "-a", "(a)", "(b = 'x')", "+5", "''", "10L"};
    private static final String[] SIGNS = {"=", "<>", ">", ">=", "<", "<="};
    private static final int MADE = 500;
    private final Golden golden;
    private final Random random = new Random(92);

    Filters(Golden golden) {
        this.golden = golden;
    }

    void record() {
        Set<String> expressions = new LinkedHashSet<>(List.of(BY_HAND));
        while (expressions.size() < BY_HAND.length + MADE) {
            expressions.add(disjunction(0));
        }
        JSONArray recorded = new JSONArray();
        for (String expression : expressions) {
            JSONObject one = new JSONObject(true);
            one.put("expression", expression);
            one.put("outcomes", outcomes(expression));
            recorded.add(one);
        }
        JSONObject all = new JSONObject(true);
        List<Map<String, String>> messages = new ArrayList<>();
        for (String message : MESSAGES) {
            messages.add(properties(message));
        }
        all.put("messages", messages);
        all.put("filters", recorded);
        golden.add("filters", "filters", all.toJSONString().getBytes(StandardCharsets.UTF_8), "count", recorded.size());
    }

    /** Pairs separated by one blank; a further blank belongs to the value. */
    private static Map<String, String> properties(String message) {
        Map<String, String> properties = new java.util.TreeMap<>();
        for (String pair : message.split(" (?=[A-Za-z]+=)")) {
            int sign = pair.indexOf('=');
            if (sign > 0) {
                properties.put(pair.substring(0, sign), pair.substring(sign + 1));
            }
        }
        return properties;
    }

    private static Object outcomes(String expression) {
        Expression compiled;
        try {
            compiled = SelectorParser.parse(expression);
        } catch (Throwable refused) {
            return "refused";
        }
        List<String> outcomes = new ArrayList<>();
        for (String message : MESSAGES) {
            try {
                outcomes.add(String.valueOf(compiled.evaluate(new MessageEvaluationContext(new HashMap<>(properties(message))))));
            } catch (Throwable error) {
                outcomes.add("error");
            }
        }
        return outcomes;
    }

    private String disjunction(int depth) {
        return chain(" OR ", depth, this::conjunction);
    }

    private String conjunction(int depth) {
        return chain(" AND ", depth, this::condition);
    }

    private String chain(String word, int depth, java.util.function.IntFunction<String> term) {
        StringBuilder text = new StringBuilder(term.apply(depth));
        while (random.nextInt(10) < 3) {
            text.append(word).append(term.apply(depth));
        }
        return text.toString();
    }

    private String condition(int depth) {
        String not = random.nextInt(4) == 0 ? "NOT " : "";
        switch (random.nextInt(depth > 2 ? 8 : 10)) {
            case 0: return one(OPERANDS) + " " + not + "BETWEEN " + one(OPERANDS) + " AND " + one(OPERANDS);
            case 1: return one(OPERANDS) + " " + not + "IN ('x', '" + random.nextInt(3) + "')";
            case 2: return one(OPERANDS) + " " + not + one("CONTAINS", "STARTSWITH", "ENDSWITH") + " " + one("'x'", "'1'", "''", "'5'");
            case 3: return one(OPERANDS) + " IS " + not + "NULL";
            case 4: case 5: case 6: case 7: return not + one(OPERANDS) + " " + one(SIGNS) + " " + one(OPERANDS);
            case 8: return not + "(" + disjunction(depth + 1) + ")";
            default: return not + one(OPERANDS);
        }
    }

    private String one(String... texts) {
        return texts[random.nextInt(texts.length)];
    }
}
