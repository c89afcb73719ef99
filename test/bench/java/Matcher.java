import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import software.amazon.event.ruler.Machine;

/**
 * Runs event-ruler on one thread. Standard input has a line for each rule, an empty line, a line for each event, and an empty line. For each line after
 * that, a number of seconds, it matches all events in turn for so much CPU time, and prints events, seconds of CPU time and matches of one pass.
 */
@SuppressWarnings("deprecation") // rulesForJSONEvent
public final class Matcher {
    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in));
        Machine machine = new Machine();
        int number = 0;
        for (String rule = in.readLine(); !rule.isEmpty(); rule = in.readLine()) {
            machine.addRule("rule-" + number++, rule);
        }
        var events = new ArrayList<String>();
        for (String event = in.readLine(); !event.isEmpty(); event = in.readLine()) {
            events.add(event);
        }
        var threads = ManagementFactory.getThreadMXBean();
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
