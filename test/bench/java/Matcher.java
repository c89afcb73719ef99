import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import software.amazon.event.ruler.Machine;

/**
 * Runs event-ruler on one thread. Arguments: a file with rules and one with events, one a line. For each line of standard input, a number of seconds, it
 * matches all events in turn for so much CPU time, and prints events, seconds of CPU time and matches of one pass.
 */
public final class Matcher {
    public static void main(String[] args) throws Exception {
        Machine machine = new Machine();
        int number = 0;
        for (String rule : Files.readAllLines(Path.of(args[0]))) {
            machine.addRule("rule-" + number++, rule);
        }
        List<String> events = Files.readAllLines(Path.of(args[1]));
        var threads = ManagementFactory.getThreadMXBean();
        System.out.println("ready");
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            long limit = (long) (Double.parseDouble(line) * 1e9);
            long began = threads.getCurrentThreadCpuTime();
            long count = 0;
            long matches = 0;
            long used;
            do {
                matches = 0;
                for (String event : events) {
                    matches += machine.rulesForJSONEvent(event).size();
                }
                count += events.size();
                used = threads.getCurrentThreadCpuTime() - began;
            } while (used < limit);
            System.out.println(count + " " + used / 1e9 + " " + matches);
        }
    }
}
