import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's tools one after the other in one JVM, each as if it had its own.
 *
 * A line of JSON on standard input is one run: main class, arguments, standard input, seconds. A
 * line of JSON on standard output is its end: exit status (-1: not ended in time), output, errors.
 */
public class ToolsInOneJvm {
    private static final long HOOK_SECONDS = 30;
    private static final ObjectMapper JSON = new ObjectMapper();
    private static volatile CompletableFuture<Integer> status;
    private static volatile List<Runnable> hooks;

    public static void main(String[] none) throws Exception {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        PrintStream answers = System.out;
        Exit.setExitProcedure((code, message) -> exit(code, message));
        Exit.setHaltProcedure((code, message) -> exit(code, message));
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        String line;
        while ((line = asked.readLine()) != null) {
            answers.println(JSON.writeValueAsString(run(JSON.readTree(line))));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    /** What System.exit is to a tool: it never comes back from it. */
    private static void exit(int code, String message) {
        if (message != null) {
            System.err.println(message);
        }
        status.complete(code);
        while (true) {
            try {
                Thread.sleep(Long.MAX_VALUE);
            } catch (InterruptedException ignored) {
                // the run is over: nothing may go on here
            }
        }
    }

    private static Map<String, Object> run(JsonNode call) throws Exception {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        System.setIn(new ByteArrayInputStream(call.get("stdin").asText().getBytes("UTF-8")));
        System.setOut(new PrintStream(output, true, "UTF-8"));
        System.setErr(new PrintStream(errors, true, "UTF-8"));
        status = new CompletableFuture<>();
        hooks = Collections.synchronizedList(new ArrayList<>());
        List<String> arguments = new ArrayList<>();
        call.get("arguments").forEach(one -> arguments.add(one.asText()));
        String name = call.get("main").asText();
        aside(() -> invoke(name, arguments.toArray(new String[0])));
        int code;
        try {
            code = status.get(call.get("seconds").asInt(), TimeUnit.SECONDS);
        } catch (TimeoutException late) {
            code = -1;
        }
        for (Runnable hook : new ArrayList<>(hooks)) {
            aside(hook).join(TimeUnit.SECONDS.toMillis(HOOK_SECONDS));
        }
        System.out.flush();
        System.err.flush();
        return Map.of(
            "status", code, "output", output.toString("UTF-8"), "errors", errors.toString("UTF-8"));
    }

    private static Thread aside(Runnable work) {
        Thread thread = new Thread(work, "main");
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void invoke(String name, String[] arguments) {
        CompletableFuture<Integer> own = status;
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
            own.complete(0);
        } catch (InvocationTargetException thrown) {
            thrown.getCause().printStackTrace();
            own.complete(1);
        } catch (ReflectiveOperationException missing) {
            missing.printStackTrace();
            own.complete(127);
        }
    }
}
