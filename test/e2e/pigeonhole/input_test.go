package pigeonhole

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/IBM/sarama"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/pigeonhole"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
	"github.com/aviaryhq/aviary/test/systems/rabbitmq"
)

// publish puts one message into a queue.
func (r *rabbitSystem) publish(t testing.TB, queue string, p amqp.Publishing) {
	t.Helper()
	require.NoError(t, r.with(func(c *amqp.Channel) error {
		require.NoError(t, c.Confirm(false))
		d, err := c.PublishWithDeferredConfirm("", queue, true, false, p)
		if err == nil {
			assert.True(t, d.Wait())
		}
		return err
	}))
}

// letter waits for the one dead letter and returns its headers and its text.
func letter(t testing.TB, a *arrivals) (headers map[string]string, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return a.distinct() == 1 }, await.Patience, pollEvery, "no dead letter")
	a.mu.Lock()
	defer a.mu.Unlock()
	for text = range a.counts {
	}
	return a.headers, text
}

// TestTooLarge: what a sink, or its server, does not take for its size is a dead letter,
// a stub where the letter itself is too large, and the rest goes on in order.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	kafka, rabbit, pulsar := newKafka(stack.Kafka(t)), newRabbit(stack.RabbitMQ(t)), newPulsar(stack.Pulsar(t))
	narrow := kafka.server.TopicWith(t, 3, map[string]string{"max.message.bytes": "20000"})
	for _, test := range []struct {
		name   string
		to     system
		sink   string
		target string
		size   int
		stub   bool
	}{
		{"kafka", kafka, fmt.Sprintf("kafka: {brokers: [%q], max_message_bytes: 10KiB}", kafka.broker), kafka.place(t), 20 << 10, true},
		{"kafka_server", kafka, kafka.sink(), narrow, 50_000, false},
		{"rabbitmq", rabbit, fmt.Sprintf("rabbitmq: {url: %q, max_message_bytes: 10KiB}", rabbit.url), rabbit.place(t), 20 << 10, true},
		{"pulsar_server", pulsar, pulsar.sink(), pulsar.place(t), 8 << 20, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			queue, dead, noise := rabbit.place(t), test.to.place(t), random(t)
			source := rabbit.source(queue)
			if test.stub { // of a stream, which keeps the message
				queue = rabbit.server.Name(t)
				require.NoError(t, rabbit.with(func(c *amqp.Channel) error {
					_, err := c.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "stream"})
					return err
				}))
				t.Cleanup(func() { _ = rabbitmq.Delete(rabbit.server.URL(), queue) })
				source = fmt.Sprintf("rabbitmq: {url: %q, queues: [{name: %q, type: stream}]}", rabbit.url, queue)
			}
			s := run(t, one("large", source, test.sink, test.target, "set: {key: \"text.split(':')[0]\"}", fmt.Sprintf("dead_letter: {to: %q}", dead)))
			large := make([]byte, test.size) // not to be compressed
			for i := range large {
				large[i] = byte(' ' + noise.IntN(95))
			}
			copy(large, "k1:")
			rabbit.put(t, queue, 0, 100)
			rabbit.publish(t, queue, amqp.Publishing{Body: large})
			rabbit.put(t, queue, 100, 200)
			arriving(t, test.to, test.target).all(200)
			headers, text := letter(t, arriving(t, test.to, dead))
			assert.Equal(t, "too_large", headers["dead-letter-reason"])
			assert.Equal(t, test.target, headers["dead-letter-to"])
			assert.Contains(t, headers[message.EntryOrigin], "rabbitmq;rabbitmq;"+queue)
			if test.stub {
				assert.Empty(t, text)
				assert.Contains(t, headers["dead-letter-omitted"], fmt.Sprintf("value=%d ", test.size))
			} else {
				assert.Equal(t, string(large), text)
			}
			s.await("large", func(st pigeonhole.Status) bool { return st.Refused == 1 && st.InFlight == 0 })
		})
	}
}

// TestTooLargeForDeadLetters: a queue does not keep a message that is acknowledged, so the route
// stops, and the message stays where it is.
func TestTooLargeForDeadLetters(t *testing.T) {
	t.Parallel()
	rabbit := newRabbit(stack.RabbitMQ(t))
	queue, target, dead := rabbit.place(t), rabbit.place(t), rabbit.place(t)
	sink := fmt.Sprintf("rabbitmq: {url: %q, max_message_bytes: 10KiB}", rabbit.url)
	s := run(t, one("large", rabbit.source(queue), sink, target, fmt.Sprintf("dead_letter: {to: %q}", dead)))
	rabbit.publish(t, queue, amqp.Publishing{Body: make([]byte, 20<<10)})
	st := s.await("large", func(st pigeonhole.Status) bool { return st.State == "failed" })
	assert.Contains(t, st.LastError, "a refused message cannot be stored as a dead letter")
	s.Stop()
	require.NoError(t, rabbit.with(func(c *amqp.Channel) error {
		left, err := c.QueueDeclarePassive(queue, true, false, false, false, nil)
		assert.Equal(t, 1, left.Messages)
		return err
	}))
}

// TestTenThousandHeaders: Kafka and Pulsar hold them, RabbitMQ does not.
func TestTenThousandHeaders(t *testing.T) {
	t.Parallel()
	kafka := newKafka(stack.Kafka(t))
	for name, to := range map[string]system{"kafka": kafka, "pulsar": newPulsar(stack.Pulsar(t)), "rabbitmq": newRabbit(stack.RabbitMQ(t))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, target, dead := kafka.place(t), to.place(t), to.place(t)
			run(t, one("headers", kafka.source(source), to.sink(), target, fmt.Sprintf("dead_letter: {to: %q}", dead)))
			var headers []sarama.RecordHeader
			for i := range 10_000 {
				headers = append(headers, sarama.RecordHeader{Key: []byte(fmt.Sprint("header", i)), Value: []byte(fmt.Sprint(i))})
			}
			kafka.send(t, &sarama.ProducerMessage{Topic: source, Key: sarama.StringEncoder("k"), Value: sarama.StringEncoder("many"), Headers: headers})
			if name == "rabbitmq" {
				got, text := letter(t, arriving(t, to, dead))
				assert.Equal(t, "bad_header", got["dead-letter-reason"])
				assert.Regexp(t, `the message has 100\d\d headers`, got["dead-letter-error"])
				assert.Contains(t, got["dead-letter-omitted"], "headers=10000")
				assert.Empty(t, text)
				return
			}
			got, text := letter(t, arriving(t, to, target))
			assert.Equal(t, "many", text)
			for i := range 10_000 {
				require.Equal(t, fmt.Sprint(i), got[fmt.Sprint("header", i)])
			}
		})
	}
}

// TestHeaderThatTheSinkRefuses: RabbitMQ has no NaN.
func TestHeaderThatTheSinkRefuses(t *testing.T) {
	t.Parallel()
	kafka, rabbit := newKafka(stack.Kafka(t)), newRabbit(stack.RabbitMQ(t))
	source, target, dead := kafka.place(t), rabbit.place(t), kafka.place(t)
	run(t, one("nan", kafka.source(source), rabbit.sink(), target, fmt.Sprintf("dead_letter: {to: %q, sink: {%s}}", dead, kafka.sink())))
	kafka.put(t, source, 0, 50)
	refused := &sarama.ProducerMessage{Topic: source, Key: sarama.StringEncoder("k1"), Value: sarama.StringEncoder("number")}
	_, _, headers := (&message.Message{Headers: []message.Header{{Name: "n", Typed: math.NaN()}}}).Kafka()
	for _, h := range headers {
		refused.Headers = append(refused.Headers, sarama.RecordHeader{Key: []byte(h.Name), Value: h.Value})
	}
	kafka.send(t, refused)
	kafka.put(t, source, 50, 100)
	arriving(t, rabbit, target).all(100)
	got, text := letter(t, arriving(t, kafka, dead))
	assert.Equal(t, "number", text)
	assert.Equal(t, "bad_header", got["dead-letter-reason"])
	assert.Contains(t, got["dead-letter-error"], "NaN")
}

// TestRefusals: each reason that a route itself has, in the dead letter and in the
// route's count, while other messages pass.
func TestRefusals(t *testing.T) {
	t.Parallel()
	kafka, pulsar := newKafka(stack.Kafka(t)), newPulsar(stack.Pulsar(t))
	header := func(name, value string) []sarama.RecordHeader {
		return []sarama.RecordHeader{{Key: []byte(name), Value: []byte(value)}}
	}
	for _, test := range []struct {
		name, to, more string
		good, bad      []sarama.RecordHeader
		reason, err    string
	}{
		{name: "missing header", to: "%s{header.suffix}", good: header("suffix", "-a"), bad: header("other", "x"), reason: "template", err: "header"},
		{name: "filter", to: "%s-a", more: `filter: "int(headers['n']) > 0"`, good: header("n", "1"), bad: header("n", "one"), reason: "expression", err: "filter"},
		{name: "filter without header", to: "%s-a", more: `filter: "int(headers['n']) > 0"`, good: header("n", "1"), bad: header("m", "1"), reason: "expression", err: "filter"},
		{name: "set", to: "%s-a", more: `set: {value: "text + string(100 / int(headers['n']))"}`, good: header("n", "1"), bad: header("n", "0"), reason: "expression", err: "set.value"},
		{name: "hops", to: "%s-a", good: header(message.EntryHops, "a,b,c,d,e,f,g"), bad: header(message.EntryHops, "a,b,c,d,e,f,g,h"), reason: "hops", err: "a, b, c"},
		{name: "topic", to: "%s{header.suffix}", good: header("suffix", "-a"), bad: header("suffix", "?"), reason: "bad_topic", err: "?"},
		{name: "structure", to: "%s{header.suffix}", good: header("suffix", "-a"), bad: header("suffix", "/other"), reason: "template", err: "'/'"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			source := kafka.place(t)
			namespace := pulsar.server.Namespace(t)
			prefix := "persistent://" + namespace + "/t"
			target, dead := prefix+"-a", pulsar.place(t)
			to := strings.ReplaceAll(test.to, "%s", prefix)
			s := run(t, one("refuses", kafka.source(source), pulsar.sink(), to, test.more, fmt.Sprintf("dead_letter: {to: %q}", dead)))
			for i := range 3 {
				kafka.send(t,
					&sarama.ProducerMessage{Topic: source, Key: sarama.StringEncoder("k"), Value: sarama.StringEncoder(fmt.Sprint("good", i)), Headers: test.good},
					&sarama.ProducerMessage{Topic: source, Key: sarama.StringEncoder("k"), Value: sarama.StringEncoder("bad"), Headers: test.bad})
			}
			s.await("refuses", func(st pigeonhole.Status) bool { return st.Refused == 3 && st.Stored == 3 && st.InFlight == 0 })
			headers, text := letter(t, arriving(t, pulsar, dead))
			assert.Equal(t, "bad", text, "as it came")
			assert.Equal(t, test.reason, headers["dead-letter-reason"])
			assert.Contains(t, headers["dead-letter-error"], test.err)
			assert.Contains(t, headers[message.EntryOrigin], "kafka;kafka;"+source)
			good := arriving(t, pulsar, target)
			good.some(3)
		})
	}
}

// TestRefusedStops: the first refusal stops the route, and no other, until somebody
// resumes it. Nothing is passed over.
func TestRefusedStops(t *testing.T) {
	t.Parallel()
	kafka, rabbit := newKafka(stack.Kafka(t)), newRabbit(stack.RabbitMQ(t))
	source, other, near := kafka.place(t), kafka.place(t), rabbit.place(t)
	queue := rabbit.server.Name(t)
	s := run(t, "routes:\n"+route("stops", kafka.source(source), rabbit.sink(), queue)+route("near", kafka.source(other), rabbit.sink(), near))
	kafka.put(t, source, 0, 200)
	failed := func(st pigeonhole.Status) bool { return st.State == "failed" }
	st := s.await("stops", failed)
	assert.Contains(t, st.LastError, "no queue takes a message")
	kafka.put(t, other, 0, 100)
	arriving(t, rabbit, near).all(100)
	status, _ := s.Ask(http.MethodGet, "/-/ready")
	assert.Equal(t, http.StatusOK, status, "the other route runs")

	status, body := s.Ask(http.MethodPost, "/routes/stops/resume")
	require.Equal(t, http.StatusOK, status, "%s", body)
	again := s.await("stops", func(now pigeonhole.Status) bool { return failed(now) && now.Since.After(st.Since) })
	assert.Contains(t, again.LastError, "no queue takes a message", "the cause is still there")

	require.NoError(t, rabbit.with(func(c *amqp.Channel) error {
		_, err := c.QueueDeclare(queue, true, false, false, false, nil)
		return err
	}))
	t.Cleanup(func() {
		_ = rabbit.with(func(c *amqp.Channel) error { _, err := c.QueueDelete(queue, false, false, false); return err })
	})
	status, body = s.Ask(http.MethodPost, "/routes/stops/resume")
	require.Equal(t, http.StatusOK, status, "%s", body)
	arriving(t, rabbit, queue).all(200)
	assert.Equal(t, "running", s.route("stops").State)
}

// TestGaps: messages that were deleted before they were read are noticed.
func TestGaps(t *testing.T) {
	t.Parallel()
	kafka, pulsar := newKafka(stack.Kafka(t)), newPulsar(stack.Pulsar(t))
	for _, onGap := range []string{"alarm", "fail"} {
		t.Run(onGap, func(t *testing.T) {
			t.Parallel()
			source, target := kafka.server.Topic(t, 1), pulsar.place(t)
			s := run(t, one("gap", kafka.alone(source, ", on_gap: "+onGap), pulsar.sink(), target))
			kafka.put(t, source, 0, 100)
			got := arriving(t, pulsar, target)
			got.all(100)
			s.await("gap", func(st pigeonhole.Status) bool { return st.InFlight == 0 })
			s.Stop()
			kafka.put(t, source, 100, 200)
			admin, err := sarama.NewClusterAdmin(kafka.server.Brokers(), sarama.NewConfig())
			require.NoError(t, err)
			defer admin.Close()
			require.NoError(t, admin.DeleteRecords(source, map[int32]int64{0: 150}))
			s.Start()
			if onGap == "fail" {
				st := s.await("gap", func(st pigeonhole.Status) bool { return st.State == "failed" })
				assert.Contains(t, st.LastError, "the committed offset 100 is outside the log, which now begins at 150 and ends before 200")
				assert.Zero(t, st.Stored)
				return
			}
			got.some(150)
			assert.Contains(t, s.Log(), "messages were deleted before they were read")
			_, metrics := s.Ask(http.MethodGet, "/metrics")
			assert.Regexp(t, `pigeonhole_kafka_gaps_total\{[^}]*\} 1\n`, string(metrics))
			assert.Zero(t, got.copies())
		})
	}
}

// TestConfigurationIsChecked: all faults at once, each by its path in the file.
func TestConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pigeonhole.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
name: "not a name"
routez: []
in_flight: {messages: 0}
routes:
- name: a
  source: {kafka: {brokers: [], group: "", topics: ["a b"], pattern: "(", on_gap: maybe}}
  sink: {pulsar: {url: "http://x"}}
  to: "{header.}-{what}"
  filter: "key +"
  set: {value: "1 + 1", colour: "'x'"}
- name: a
  source: {rabbitmq: {url: "amqp://user:hunter2@h", queues: []}}
  sink: {kafka: {brokers: ["h:1"], compression: zip}}
  guarantee: effectively_once
  dead_letter: {sink: {pulsar: {}}}
- name: b
  source: {kafka: {brokers: ["h:1"], group: g, topics: [t], instance_id: "a b"}, pulsar: {url: "pulsar://h", topics: [t], subscription: s}}
  sink: {}
  filter: "1"
  headers: {include: [""]}
  provenance: some
`), 0o600))
	out, err := systems.Command(t.Context(), []string{"-config.file", file, "-config.check"}, nil).CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", out)
	assert.Equal(t, 1, exit.ExitCode())
	text := string(out)
	for _, path := range []string{
		"name", "routez", "in_flight.messages",
		"routes[0].source.kafka.brokers", "routes[0].source.kafka.group", "routes[0].source.kafka.topics", "routes[0].source.kafka.pattern",
		"routes[0].source.kafka.on_gap", "routes[0].sink.pulsar.url", "routes[0].to", "routes[0].filter", "routes[0].set.value", "routes[0].set.colour",
		"routes[1].name", "routes[1].source.rabbitmq.queues", "routes[1].sink.kafka.compression", "routes[1].guarantee", "routes[1].dead_letter.to",
		"routes[2].source", "routes[2].source.kafka.instance_id", "routes[2].sink", "routes[2].filter", "routes[2].headers.include[0]",
		"routes[2].provenance",
	} {
		assert.Contains(t, text, "\n  "+path+": ")
	}
	assert.NotContains(t, text, "hunter2")
}
