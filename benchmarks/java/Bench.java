import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

/**
 * What both drivers share: reading events, keeping matches, taking the time.
 *
 * <p>Files are columns of 8-byte words, little-endian: id, kind (A is 0), key, ts, price. Matches are written as rows of
 * ids. The clock runs from the first event that is fed to the last match, over all threads of the process.
 */
public final class Bench {
    /** What is asked: given as {@code name=value} words. */
    public static Map<String, String> options(String[] words) {
        Map<String, String> options = new HashMap<>();
        for (String word : words) {
            int at = word.indexOf('=');
            options.put(word.substring(0, at), word.substring(at + 1));
        }
        return options;
    }

    public static Event[] read(String file) throws IOException {
        ByteBuffer words = ByteBuffer.wrap(Files.readAllBytes(Path.of(file))).order(ByteOrder.LITTLE_ENDIAN);
        int n = words.capacity() / 40;
        String[] kinds = new String[26];
        for (int i = 0; i < 26; i++) {
            kinds[i] = String.valueOf((char) ('A' + i));
        }
        Event[] events = new Event[n];
        for (int i = 0; i < n; i++) {
            String kind = kinds[(int) words.getLong(8 * (n + i))];
            long key = words.getLong(8 * (2 * n + i));
            long ts = words.getLong(8 * (3 * n + i));
            events[i] = new Event(words.getLong(8 * i), kind, key, ts, words.getDouble(8 * (4 * n + i)));
        }
        return events;
    }

    /** Ids of matches, one after the other; one thread writes at a time. */
    public static final class Matches {
        private long[] ids = new long[1 << 16];
        private int size;

        public void add(long id) {
            if (size == ids.length) {
                ids = Arrays.copyOf(ids, 2 * size);
            }
            ids[size++] = id;
        }

        public void clear() {
            size = 0;
        }

        public void write(String file) throws IOException {
            ByteBuffer words = ByteBuffer.allocate(8 * size).order(ByteOrder.LITTLE_ENDIAN);
            words.asLongBuffer().put(ids, 0, size);
            Files.write(Path.of(file), words.array());
        }
    }

    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static volatile long wall;
    private static volatile long cpu;

    public static void start() {
        cpu = SYSTEM.getProcessCpuTime();
        wall = System.nanoTime();
    }

    /** One line for each run: seconds by the clock on the wall, and of processor time of all threads. */
    public static void stop() {
        System.out.printf("%.6f %.6f%n", (System.nanoTime() - wall) / 1e9, (SYSTEM.getProcessCpuTime() - cpu) / 1e9);
    }

    private Bench() {}
}
