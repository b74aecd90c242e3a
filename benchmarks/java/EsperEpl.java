import com.espertech.esper.common.client.EPCompiled;
import com.espertech.esper.common.client.EventBean;
import com.espertech.esper.common.client.configuration.Configuration;
import com.espertech.esper.compiler.client.CompilerArguments;
import com.espertech.esper.compiler.client.EPCompilerProvider;
import com.espertech.esper.runtime.client.EPEventService;
import com.espertech.esper.runtime.client.EPRuntime;
import com.espertech.esper.runtime.client.EPRuntimeProvider;
import com.espertech.esper.runtime.client.EPStatement;
import java.util.Map;

/** A statement in Esper: one thread, time told by the events (the largest seen so far). */
public final class EsperEpl {
    public static void main(String[] words) throws Exception {
        Map<String, String> options = Bench.options(words);
        Event[] events = Bench.read(options.get("events"));
        int runs = Integer.parseInt(options.get("runs"));
        int warm = Integer.parseInt(options.get("warm"));
        String[] fields = options.get("fields").split(",");
        Configuration configuration = new Configuration();
        configuration.getCommon().addEventType("E", Event.class);
        configuration.getRuntime().getThreading().setInternalTimerEnabled(false);
        EPCompiled compiled = EPCompilerProvider.getCompiler()
                .compile(options.get("epl"), new CompilerArguments(configuration));
        Bench.Matches matches = new Bench.Matches();
        for (int run = 0; run <= runs; run++) {
            matches.clear();
            EPRuntime runtime = EPRuntimeProvider.getRuntime("run " + run, configuration);
            EPEventService service = runtime.getEventService();
            long now = events[0].getTs() - 1;
            service.advanceTime(now);
            EPStatement statement = runtime.getDeploymentService().deploy(compiled).getStatements()[0];
            statement.addListener((found, gone, who, where) -> {
                for (EventBean match : found) {
                    for (String field : fields) {
                        matches.add((Long) match.get(field));
                    }
                }
            });
            int n = run == 0 ? Math.min(warm, events.length) : events.length;
            Bench.start();
            for (int i = 0; i < n; i++) {
                Event event = events[i];
                if (event.getTs() > now) {
                    now = event.getTs();
                    service.advanceTime(now);
                }
                service.sendEventBean(event, "E");
            }
            service.advanceTime(now + 1_000_000);
            Bench.stop();
            runtime.destroy();
        }
        matches.write(options.get("matches"));
        System.exit(0);
    }
}
