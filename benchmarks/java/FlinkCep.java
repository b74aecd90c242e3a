import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.cep.CEP;
import org.apache.flink.cep.PatternStream;
import org.apache.flink.cep.functions.PatternProcessFunction;
import org.apache.flink.cep.pattern.Pattern;
import org.apache.flink.cep.pattern.conditions.IterativeCondition;
import org.apache.flink.cep.pattern.conditions.SimpleCondition;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;

/**
 * A pattern in Flink CEP: a local cluster, state on the heap, objects reused, no checkpoints. With one of {@code slots}
 * all of the job runs in one task; with several one source feeds the patterns, which are spread by key.
 *
 * <p>Watermarks follow the largest time seen, less {@code bound}, told after every 200 ms of event time, as the default
 * interval would at the speed at which the events happened. Event time must be strictly increasing along a match,
 * and Flink's {@code within} is open where ours is closed, so it is given one millisecond more.
 */
public final class FlinkCep {
    private static Event[] events;
    private static final Bench.Matches MATCHES = new Bench.Matches();

    public static void main(String[] words) throws Exception {
        Map<String, String> options = Bench.options(words);
        Event[] all = Bench.read(options.get("events"));
        int runs = Integer.parseInt(options.get("runs"));
        int warm = Integer.parseInt(options.get("warm"));
        for (int run = 0; run <= runs; run++) {
            events = run == 0 ? java.util.Arrays.copyOf(all, Math.min(warm, all.length)) : all;
            MATCHES.clear();
            once(options);
            Bench.stop();
        }
        MATCHES.write(options.get("matches"));
        System.exit(0);
    }

    private static void once(Map<String, String> options) throws Exception {
        int slots = Integer.parseInt(options.get("slots"));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(slots, new Configuration());
        env.getConfig().enableObjectReuse();
        long bound = Long.parseLong(options.get("bound"));
        String[] parts = options.get("parts").split(",");
        boolean keyed = options.get("keyed").equals("1");
        DataStream<Event> stream = env.fromSequence(0, events.length - 1)
                .setParallelism(1)
                .map(new Feed())
                .returns(Event.class)
                .setParallelism(1)
                .assignTimestampsAndWatermarks(
                        WatermarkStrategy.<Event>forGenerator(c -> new Bounded(bound))
                                .withTimestampAssigner((event, before) -> event.getTs()))
                .setParallelism(1);
        if (options.get("filter").equals("1")) {
            java.util.Set<String> asked = new java.util.HashSet<>();
            for (String part : parts) {
                asked.add(part.replace("!", ""));
            }
            stream = stream.filter(event -> asked.contains(event.getKind())).setParallelism(1);
        }
        Pattern<Event, Event> pattern = pattern(parts, options.get("rise").equals("1"))
                .within(Duration.ofMillis(Long.parseLong(options.get("window")) + 1));
        PatternStream<Event> found = CEP.pattern(keyed ? stream.keyBy(Event::getKey) : stream, pattern);
        found.process(new Keep(parts)).returns(Long.class).print().name("nothing");
        env.execute();
    }

    private static Pattern<Event, Event> pattern(String[] parts, boolean rise) {
        Pattern<Event, Event> pattern = null;
        int last = 0;
        for (int i = 0; i < parts.length; i++) {
            last = parts[i].startsWith("!") ? last : i;
        }
        for (int i = 0; i < parts.length; i++) {
            String kind = parts[i].replace("!", "");
            if (pattern == null) {
                pattern = Pattern.begin(kind);
            } else if (parts[i].startsWith("!")) {
                pattern = pattern.notFollowedBy(kind);
            } else {
                pattern = pattern.followedByAny(kind);
            }
            pattern = pattern.where(SimpleCondition.of(event -> event.getKind().equals(kind)));
            if (rise && i == last) {
                pattern = pattern.where(new Dearer(parts[0]));
            }
        }
        return pattern;
    }

    /** Dearer than the first event of the match. */
    private static final class Dearer extends IterativeCondition<Event> {
        private final String first;

        Dearer(String first) {
            this.first = first;
        }

        @Override
        public boolean filter(Event event, Context<Event> context) throws Exception {
            for (Event other : context.getEventsForPattern(first)) {
                return event.getPrice() > other.getPrice();
            }
            return false;
        }
    }

    /** The events from memory; the first one starts the clock. */
    private static final class Feed extends RichMapFunction<Long, Event> {
        @Override
        public void open(OpenContext context) {
            Bench.start();
        }

        @Override
        public Event map(Long at) {
            return events[at.intValue()];
        }
    }

    private static final class Bounded implements WatermarkGenerator<Event> {
        private final long bound;
        private long told = Long.MIN_VALUE;
        private long most = Long.MIN_VALUE;

        Bounded(long bound) {
            this.bound = bound;
        }

        @Override
        public void onEvent(Event event, long ts, WatermarkOutput output) {
            most = Math.max(most, ts);
            if (told == Long.MIN_VALUE || most >= told + 200) {
                told = most;
                output.emitWatermark(new Watermark(most - bound - 1));
            }
        }

        @Override
        public void onPeriodicEmit(WatermarkOutput output) {}
    }

    private static final class Keep extends PatternProcessFunction<Event, Long> {
        private final String[] parts;

        Keep(String[] parts) {
            this.parts = parts;
        }

        @Override
        public void processMatch(Map<String, List<Event>> match, Context context, Collector<Long> out) {
            synchronized (MATCHES) {
                for (String part : parts) {
                    if (!part.startsWith("!")) {
                        MATCHES.add(match.get(part).get(0).getId());
                    }
                }
            }
        }
    }
}
