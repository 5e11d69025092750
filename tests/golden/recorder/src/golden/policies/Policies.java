package golden.policies;

import golden.Golden;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Supplier;
import java.util.zip.GZIPOutputStream;
import org.apache.rocketmq.auth.authentication.model.Subject;
import org.apache.rocketmq.auth.authentication.model.User;
import org.apache.rocketmq.auth.authorization.chain.AclAuthorizationHandler;
import org.apache.rocketmq.auth.authorization.context.DefaultAuthorizationContext;
import org.apache.rocketmq.auth.authorization.enums.Decision;
import org.apache.rocketmq.auth.authorization.enums.PolicyType;
import org.apache.rocketmq.auth.authorization.exception.AuthorizationException;
import org.apache.rocketmq.auth.authorization.model.Acl;
import org.apache.rocketmq.auth.authorization.model.Environment;
import org.apache.rocketmq.auth.authorization.model.Policy;
import org.apache.rocketmq.auth.authorization.model.PolicyEntry;
import org.apache.rocketmq.auth.authorization.model.Resource;
import org.apache.rocketmq.auth.authorization.provider.AuthorizationMetadataProvider;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.common.action.Action;

/**
 * 10,000 pairs of a random policy set and a random request, and what Apache's evaluator says of them: 1,000 lines, each
 * `SET|ASKS`. SET is `;`-separated entries `TYPE RESOURCE ACTIONS SOURCES DECISION`, ASKS are `;`-separated `RESOURCE ACTIONS ADDRESS VERDICT`,
 * with `+` (allowed), `-` (denied by an entry) or `0` (no entry matches).
 */
public final class Policies {
    private static final int SETS = 1000;
    private static final int ASKS = 10;
    private static final String[] RESOURCES = {"*", "Topic:*", "Topic:ord*", "Topic:orders*", "Topic:orders", "Topic:order", "Topic:a*b*", "Topic:é*",
        "Group:*", "Group:ord*", "Group:orders", "Group:billing", "Cluster:*", "Cluster:DefaultCluster", "Cluster:Def*"};
    private static final String[] ASKED = {"Topic:orders", "Topic:order", "Topic:ord", "Topic:orders-2", "Topic:other", "Topic:a-b", "Topic:éa",
        "Group:orders", "Group:billing", "Group:ord", "Cluster:DefaultCluster", "Cluster:Other"};
    private static final String[] SOURCES = {"10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "10.1.2.3/31", "192.168.0.0/16", "0.0.0.0/0", "2001:db8::/32",
        "2001:db8::1", "::1", "fe80::/10"};
    private static final String[] ADDRESSES = {"10.1.2.3", "10.1.2.2", "10.2.0.1", "192.168.1.1", "172.16.0.1", "2001:db8::1", "2001:db8:5::1", "::1",
        "fe80::1"};
    private static final Action[] OF_POLICIES = {Action.ALL, Action.PUB, Action.SUB, Action.CREATE, Action.UPDATE, Action.DELETE, Action.GET, Action.LIST};
    private static final Action[] OF_REQUESTS = {Action.ANY, Action.PUB, Action.SUB, Action.CREATE, Action.UPDATE, Action.DELETE, Action.GET, Action.LIST};
    private final Golden golden;
    private final Random random = new Random(16);

    Policies(Golden golden) {
        this.golden = golden;
    }

    void record() throws Exception {
        AuthConfig config = new AuthConfig();
        config.setConfigName("golden");
        config.setAuthorizationMetadataProvider(OneAcl.class.getName());
        AclAuthorizationHandler handler = new AclAuthorizationHandler(config);
        StringBuilder lines = new StringBuilder();
        for (int set = 0; set < SETS; set++) {
            List<PolicyEntry> custom = entries(), byDefault = random.nextInt(3) == 0 ? entries() : List.of();
            List<Policy> policies = new ArrayList<>();
            if (!custom.isEmpty()) {
                policies.add(Policy.of(PolicyType.CUSTOM, new ArrayList<>(custom)));
            }
            if (!byDefault.isEmpty()) {
                policies.add(Policy.of(PolicyType.DEFAULT, new ArrayList<>(byDefault)));
            }
            OneAcl.acl = Acl.of(User.of("ann"), policies);
            List<String> texts = new ArrayList<>();
            custom.forEach(entry -> texts.add("Custom " + text(entry)));
            byDefault.forEach(entry -> texts.add("Default " + text(entry)));
            lines.append(String.join(";", texts)).append('|');
            for (int ask = 0; ask < ASKS; ask++) {
                lines.append(ask == 0 ? "" : ";").append(asked(handler));
            }
            lines.append('\n');
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (GZIPOutputStream zip = new GZIPOutputStream(bytes)) {
            zip.write(lines.toString().getBytes(StandardCharsets.UTF_8));
        }
        golden.add("policies", "policies", bytes.toByteArray(), "sets", SETS, "asks", ASKS);
    }

    private List<PolicyEntry> entries() {
        List<PolicyEntry> entries = new ArrayList<>();
        for (int count = random.nextInt(6); count > 0; count--) {
            List<String> sources = new ArrayList<>();
            for (int source = random.nextInt(8) - 5; source > 0; source--) {
                sources.add(any(SOURCES));
            }
            entries.add(PolicyEntry.of(Resource.of(any(RESOURCES)), actions(OF_POLICIES), Environment.of(sources),
                random.nextInt(3) == 0 ? Decision.DENY : Decision.ALLOW));
        }
        return entries;
    }

    private String asked(AclAuthorizationHandler handler) {
        String resource = any(ASKED), address = any(ADDRESSES);
        List<Action> actions = actions(OF_REQUESTS);
        String verdict = "+";
        try {
            handler.handle(DefaultAuthorizationContext.of(User.of("ann"), Resource.of(resource), actions, address), null).join();
        } catch (CompletionException | AuthorizationException e) {
            verdict = String.valueOf(e.getMessage()).contains("the decision is deny") ? "-" : "0";
        }
        return resource + " " + names(actions) + " " + address + " " + verdict;
    }

    private List<Action> actions(Action[] from) {
        LinkedHashSet<Action> actions = new LinkedHashSet<>();
        for (int count = 1 + random.nextInt(3); count > 0; count--) {
            actions.add(any(from));
        }
        return new ArrayList<>(actions);
    }

    private <T> T any(T[] from) {
        return from[random.nextInt(from.length)];
    }

    private static String text(PolicyEntry entry) {
        List<String> sources = entry.getEnvironment() == null ? List.of("-") : entry.getEnvironment().getSourceIps();
        return entry.toResourceStr() + " " + names(entry.getActions()) + " " + String.join(",", sources) + " " + entry.getDecision().getName();
    }

    private static String names(List<Action> actions) {
        List<String> names = new ArrayList<>();
        actions.forEach(action -> names.add(action.getName()));
        return String.join(",", names);
    }

    /** Gives the handler the set of the moment. */
    public static final class OneAcl implements AuthorizationMetadataProvider {
        static Acl acl;

        @Override
        public void initialize(AuthConfig config, Supplier<?> metadataService) {
        }

        @Override
        public void shutdown() {
        }

        @Override
        public CompletableFuture<Void> createAcl(Acl unused) {
            throw new UnsupportedOperationException();
        }

        @Override
        public CompletableFuture<Void> deleteAcl(Subject unused) {
            throw new UnsupportedOperationException();
        }

        @Override
        public CompletableFuture<Void> updateAcl(Acl unused) {
            throw new UnsupportedOperationException();
        }

        @Override
        public CompletableFuture<Acl> getAcl(Subject unused) {
            return CompletableFuture.completedFuture(acl);
        }

        @Override
        public CompletableFuture<List<Acl>> listAcl(String subjectFilter, String resourceFilter) {
            throw new UnsupportedOperationException();
        }
    }
}
