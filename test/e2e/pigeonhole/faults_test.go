package pigeonhole

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/pigeonhole"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// flow keeps a source supplied from the side until stopped.
type flow struct {
	stop func() (n int) // and returns how many messages have been put
}

// flowing puts messages, about two hundred a second, until stopped: the servers of all tests share
// the processors.
func flowing(t testing.TB, s system, place string) flow {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	go func() {
		n := 0
		for ctx.Err() == nil {
			s.put(t, place, n, n+20)
			n += 20
			select {
			case <-time.After(100 * time.Millisecond): // the rate
			case <-ctx.Done():
			}
		}
		done <- n
	}()
	stop := sync.OnceValue(func() int { cancel(); return <-done })
	t.Cleanup(func() { stop() })
	return flow{stop}
}

// moved waits until each of the routes has stored that many more messages.
func (s *service) moved(more int64, names ...string) {
	s.t.Helper()
	before := make([]int64, len(names))
	for i, name := range names {
		before[i] = s.route(name).Stored
	}
	for i, name := range names {
		s.await(name, func(st pigeonhole.Status) bool { return st.Stored >= before[i]+more })
	}
}

// traffic is a route under load.
type traffic struct {
	name      string
	from, to  system
	once      bool      // its guarantee is effectively_once
	more      string    // of its configuration
	came, got *arrivals // came only where nothing may come twice
	flow      flow
}

// everyPairOf is a route from each system to each other, and one that stores nothing
// twice.
func everyPairOf(k *kafkaSystem, r *rabbitSystem, p *pulsarSystem) []*traffic {
	return []*traffic{
		{name: "kafka_pulsar", from: k, to: p}, {name: "rabbitmq_pulsar", from: r, to: p}, {name: "pulsar_kafka", from: p, to: k},
		{name: "pulsar_rabbitmq", from: p, to: r}, {name: "kafka_rabbitmq", from: k, to: r}, {name: "rabbitmq_kafka", from: r, to: k},
		{name: "kafka_pulsar_once", from: k, to: p, once: true},
	}
}

// privateSystems are servers of the test's own. They can be killed, and are also reached by lines
// which can be cut.
type privateSystems struct {
	kafka  *stack.KafkaServer
	rabbit *stack.RabbitMQServer
	pulsar *stack.PulsarServer

	broker, rabbitURL, pulsarURL string         // by the lines
	lines                        []*proxy.Proxy // of each of the three
}

func startPrivateSystems(t *testing.T) *privateSystems {
	t.Helper()
	p := &privateSystems{lines: make([]*proxy.Proxy, 3)}
	p.broker, p.kafka, p.lines[0] = proxy.Kafka(t)
	p.rabbitURL, p.rabbit, p.lines[1] = proxy.RabbitMQ(t)
	p.pulsarURL, p.pulsar, p.lines[2] = proxy.Pulsar(t)
	return p
}

// everyPair is everyPairOf the servers.
func (p *privateSystems) everyPair() []*traffic {
	return everyPairOf(newKafka(p.kafka), newRabbit(p.rabbit), newPulsar(p.pulsar))
}

// everyPairBehindProxies is everyPairOf the servers, reached by the lines.
func (p *privateSystems) everyPairBehindProxies() []*traffic {
	return everyPairOf(&kafkaSystem{server: p.kafka, broker: p.broker}, &rabbitSystem{server: p.rabbit, url: bare(p.rabbitURL)},
		&pulsarSystem{server: p.pulsar, url: p.pulsarURL, listener: proxy.Listener})
}

// load runs the routes in one service and keeps them supplied.
func load(t *testing.T, all []*traffic) *service {
	t.Helper()
	config, sources := "routes:\n", make([]string, len(all))
	for i, r := range all {
		sources[i] = r.from.place(t)
		var target string
		sink, more := r.to.sink(), keyed(r.from)
		if p, ok := r.to.(*pulsarSystem); ok && r.once {
			target, sink, more = p.exactPlace(t), p.section("partition: source"), "guarantee: effectively_once"
			r.came = arriving(t, r.from, sources[i])
		} else {
			target = r.to.place(t)
		}
		config += route(r.name, r.from.source(sources[i]), sink, target, more, r.more)
		r.got = arriving(t, r.to, target)
	}
	s := run(t, config)
	for i, r := range all {
		r.flow = flowing(t, r.from, sources[i])
	}
	return s
}

// allMoved waits until each route has stored something.
func (s *service) allMoved(all []*traffic) {
	s.t.Helper()
	names := make([]string, len(all))
	for i, r := range all {
		names[i] = r.name
	}
	s.moved(50, names...)
}

// stopAndCount stops the supply and counts what has come.
func stopAndCount(t *testing.T, all []*traffic) {
	t.Helper()
	for _, r := range all {
		n := r.flow.stop()
		r.got.all(n)
		if r.once {
			// A producer that lost its connection may have stored something twice at the source.
			r.came.all(n)
			assert.Equal(t, r.came.copies(), r.got.copies(), "copies")
		}
		t.Logf("%s: %d copies of %d", r.name, r.got.copies(), n)
	}
}

// TestKills: at random moments under the load of every pair; 20 times, or for longer, in the long
// form. In effectively_once nothing comes twice either.
func TestKills(t *testing.T) {
	t.Parallel()
	all := everyPairOf(newKafka(stack.Kafka(t)), newRabbit(stack.RabbitMQ(t)), newPulsar(stack.Pulsar(t)))
	s, moments := load(t, all), random(t)
	n := 4
	if long(t) > 0 {
		n = 20
	}
	rounds(t, n, func(int) {
		more := make([]int, len(all))
		for i, r := range all {
			more[i] = r.got.distinct() + 1 + moments.IntN(200)
		}
		for i, r := range all {
			require.Eventually(t, func() bool { return r.got.distinct() >= more[i] }, await.Patience, time.Millisecond, "%s", r.name)
		}
		s.Kill()
		s.Start()
	})
	stopAndCount(t, all)
}

// TestFaults is what the servers and the connections to them do on a bad day, under the load of
// every pair.
func TestFaults(t *testing.T) {
	t.Parallel()
	servers := startPrivateSystems(t)
	t.Run("connections cut and slowed", func(t *testing.T) { connectionsCutAndSlowed(t, servers) })
	t.Run("sinks unavailable", func(t *testing.T) { sinksUnavailable(t, servers) })
	t.Run("brokers restart", func(t *testing.T) { brokersRestart(t, servers) })
}

// brokersRestart: each of the three ends at once and comes back, under the load of
// every route that it is the source or the sink of.
func brokersRestart(t *testing.T, servers *privateSystems) {
	t.Helper()
	all := servers.everyPair()
	s := load(t, all)
	servers.rabbit.WriteDefinitions(t)
	s.allMoved(all)
	for _, broker := range []interface {
		Kill() error
		Start(ctx context.Context) error
	}{servers.kafka, servers.rabbit, servers.pulsar} {
		require.NoError(t, broker.Kill())
		require.NoError(t, broker.Start(t.Context()))
		s.allMoved(all)
	}
	stopAndCount(t, all)
}

// sinksUnavailable: each of the three for a while under load, within the bounds, and the other
// route of the process does not notice.
func sinksUnavailable(t *testing.T, servers *privateSystems) {
	t.Helper()
	near := everyPairOf(newKafka(stack.Kafka(t)), newRabbit(stack.RabbitMQ(t)), newPulsar(stack.Pulsar(t)))
	far := servers.everyPairBehindProxies()
	const bound = 300
	for i, r := range far { // from near to far
		r.from, r.more = near[i].from, fmt.Sprintf("in_flight: {messages: %d}", bound)
	}
	other := &traffic{name: "near", from: near[1].from, to: near[0].from}
	all := append(slices.Clone(far), other)
	s := load(t, all)
	s.allMoved(far)
	for _, line := range servers.lines {
		line.Cut()
	}
	outage := max(5*time.Second, long(t))
	for until := time.Now().Add(outage); time.Now().Before(until); {
		before := other.got.distinct()
		require.Eventually(t, func() bool { return other.got.distinct() > before }, await.Patience, pollEvery, "the other route stands still")
		for _, r := range far {
			require.LessOrEqual(t, s.route(r.name).InFlight, bound, r.name)
		}
	}
	assert.Less(t, s.memory(), 256<<20)
	t.Logf("%d MiB", s.memory()>>20)
	for _, line := range servers.lines {
		require.NoError(t, line.Restore())
	}
	stopAndCount(t, all)
	assert.Zero(t, other.got.copies())
}

// connectionsCutAndSlowed: of sources and sinks, again and again.
func connectionsCutAndSlowed(t *testing.T, servers *privateSystems) {
	t.Helper()
	all, lines := servers.everyPairBehindProxies(), servers.lines
	s := load(t, all)
	s.allMoved(all)
	rounds(t, 3, func(i int) {
		cut, slow := lines[i%3], lines[(i+1)%3]
		for _, line := range lines {
			line.Heal()
		}
		cut.Cut()
		require.NoError(t, cut.Restore())
		require.NoError(t, slow.Latency(5*time.Millisecond))
		require.NoError(t, slow.Bandwidth(1024))
		s.allMoved(all)
	})
	for _, line := range lines {
		line.Heal()
	}
	stopAndCount(t, all)
}

// TestRebalances: a second instance joins and leaves, again and again.
func TestRebalances(t *testing.T) {
	t.Parallel()
	kafka := newKafka(stack.Kafka(t))
	pulsar := newPulsar(stack.Pulsar(t))
	for _, guarantee := range []string{pigeonhole.AtLeastOnce, pigeonhole.EffectivelyOnce} {
		t.Run(guarantee, func(t *testing.T) {
			t.Parallel()
			source, target := kafka.place(t), pulsar.exactPlace(t)
			// A member learns of the other at a heartbeat, of which a session has ten.
			config := one("group", kafka.alone(source, ", session_timeout: 10s"), pulsar.section("partition: source"), target, "guarantee: "+guarantee)
			first := run(t, config)
			got := arriving(t, pulsar, target)
			f := flowing(t, kafka, source)
			first.moved(100, "group")
			second := run(t, config)
			rounds(t, 3, func(int) {
				second.await("group", func(st pigeonhole.Status) bool { return st.Pipelines > 0 && st.Stored > 0 })
				second.Stop()
				first.await("group", func(st pigeonhole.Status) bool { return st.Pipelines == 3 })
				second.Start()
			})
			got.all(f.stop())
			if guarantee == pigeonhole.EffectivelyOnce {
				assert.Zero(t, got.copies())
			}
			t.Logf("%d copies of %d", got.copies(), got.distinct())
		})
	}
}

// TestStopWithTheSinksUnavailable ends in order within shutdown_timeout, however much longer the parts'
// own timeouts are: what is in flight stays at the sources.
func TestStopWithTheSinksUnavailable(t *testing.T) {
	t.Parallel()
	kafka, rabbit, pulsar := newKafka(stack.Kafka(t)), newRabbit(stack.RabbitMQ(t)), newPulsar(stack.Pulsar(t))
	places := []string{kafka.place(t), rabbit.place(t), pulsar.place(t)}
	s := run(t, "shutdown_timeout: 20s\nroutes:\n"+
		route("kafka", kafka.alone(places[0], ", drain_timeout: 25s"), `pulsar: {url: "pulsar://127.0.0.1:1"}`, "persistent://public/default/x")+
		route("rabbitmq", fmt.Sprintf("rabbitmq: {url: %q, queues: [{name: %q}], drain_timeout: 10m}", rabbit.url, places[1]), `kafka: {brokers: ["127.0.0.1:1"]}`, "x")+
		route("pulsar", pulsar.section(fmt.Sprintf("topics: [%q], subscription: route, type: failover, drain_timeout: 10m", places[2])), `rabbitmq: {url: "amqp://127.0.0.1:1/"}`, "x"))
	for i, from := range []system{kafka, rabbit, pulsar} {
		from.put(t, places[i], 0, 50)
	}
	for _, name := range []string{"kafka", "rabbitmq", "pulsar"} {
		s.await(name, func(st pigeonhole.Status) bool { return st.InFlight > 0 })
	}
	s.Stop() // with an error when it takes longer
	assert.NotContains(t, s.Log(), "has not stopped")
}

// TestPartitionsAdded: a source topic grows under load.
func TestPartitionsAdded(t *testing.T) {
	t.Parallel()
	kafka, pulsar := newKafka(stack.Kafka(t)), newPulsar(stack.Pulsar(t))
	source, target := kafka.place(t), pulsar.place(t)
	s := run(t, one("grows", fmt.Sprintf("kafka: {brokers: [%q], group: %s-g, topics: [%s], discover_every: 1s}", kafka.broker, source, source), pulsar.sink(), target))
	got := arriving(t, pulsar, target)
	kafka.put(t, source, 0, 200)
	got.all(200)
	admin, err := sarama.NewClusterAdmin(kafka.server.Brokers(), sarama.NewConfig())
	require.NoError(t, err)
	defer admin.Close()
	require.NoError(t, admin.CreatePartitions(source, 6, nil, false))
	s.await("grows", func(st pigeonhole.Status) bool { return st.Pipelines == 6 })
	kafka.put(t, source, 200, 1000)
	got.some(1000)
}

// TestMemoryAlarm: RabbitMQ takes nothing for a while; the route waits and says why.
func TestMemoryAlarm(t *testing.T) {
	t.Parallel()
	server := stack.PrivateRabbitMQ(t)
	rabbit, kafka := newRabbit(server), newKafka(stack.Kafka(t))
	source, target := kafka.place(t), rabbit.place(t)
	s := run(t, one("alarm", kafka.source(source), rabbit.sink(), target, "in_flight: {messages: 100}"))
	f := flowing(t, kafka, source)
	s.moved(50, "alarm")
	_, err := server.Ctl(t.Context(), "set_vm_memory_high_watermark", "absolute", "1MiB")
	require.NoError(t, err)
	st := s.await("alarm", func(st pigeonhole.Status) bool { return st.State == "unhealthy" && st.LagMessages > 200 })
	assert.Contains(t, fmt.Sprint(st.Unhealthy), "low on memory")
	assert.Positive(t, st.InFlight)
	assert.LessOrEqual(t, st.InFlight, 100)
	_, err = server.Ctl(t.Context(), "set_vm_memory_high_watermark", "0.6")
	require.NoError(t, err)
	s.moved(50, "alarm")
	got := arriving(t, rabbit, target)
	got.all(f.stop())
}

// TestReload: routes come, go and change without the others noticing, and a faulty file
// changes nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	kafka, pulsar := newKafka(stack.Kafka(t)), newPulsar(stack.Pulsar(t))
	stays, goes, target := kafka.place(t), kafka.place(t), pulsar.place(t)
	staying := route("stays", kafka.source(stays), pulsar.sink(), target)
	s := run(t, "routes:\n"+staying+route("goes", kafka.source(goes), pulsar.sink(), target))
	s.await("stays", func(st pigeonhole.Status) bool { return st.Pipelines == 3 })
	since := s.route("stays").Since

	s.reload("routes:\n" + staying + "- name: broken\n  source: {kafka: {brokrs: [x]}}\n")
	require.Eventually(t, func() bool { return strings.Contains(s.Log(), "routes[1].source.kafka.brokrs") }, await.Patience, pollEvery)
	require.Contains(t, s.Log(), "configuration not changed")
	require.Equal(t, "goes", s.route("goes").Name, "nothing has changed")

	comes := pulsar.place(t)
	s.reload("routes:\n" + staying + route("comes", kafka.source(goes), pulsar.sink(), comes))
	s.await("comes", func(st pigeonhole.Status) bool { return st.Pipelines == 3 })
	require.Empty(t, s.route("goes").Name)
	require.True(t, s.route("stays").Since.Equal(since), "undisturbed")
	kafka.put(t, stays, 0, 50)
	kafka.put(t, goes, 0, 60)
	arriving(t, pulsar, target).all(50)
	arriving(t, pulsar, comes).all(60)
}

// TestTwoWays: two Pigeonholes replicate a pair of topics both ways, and no message
// goes round.
func TestTwoWays(t *testing.T) {
	t.Parallel()
	kafka, pulsar := newKafka(stack.Kafka(t)), newPulsar(stack.Pulsar(t))
	one, other := kafka.place(t), pulsar.place(t)
	s := run(t, "routes:\n"+route("there", kafka.source(one), pulsar.sink(), other)+route("back", pulsar.source(other), kafka.sink(), one))
	kafka.put(t, one, 0, 70)
	arriving(t, pulsar, other).all(70)
	s.await("back", func(st pigeonhole.Status) bool { return st.Filtered == 70 })
	assert.Zero(t, s.route("back").Stored)
}

// TestRoutesAreAlone: what is wrong with some is said and does not touch the others.
func TestRoutesAreAlone(t *testing.T) {
	t.Parallel()
	kafka, pulsar, rabbit := newKafka(stack.Kafka(t)), newPulsar(stack.Pulsar(t)), newRabbit(stack.RabbitMQ(t))
	good, target := kafka.place(t), pulsar.place(t)
	s := run(t, "routes:\n"+
		route("unreachable", `kafka: {brokers: ["127.0.0.1:1"], group: g, topics: [x]}`, pulsar.sink(), target)+
		route("missing_topic", fmt.Sprintf("kafka: {brokers: [%q], group: g, topics: [no-such-topic]}", kafka.broker), pulsar.sink(), target)+
		route("missing_queue", rabbit.source("no-such-queue"), pulsar.sink(), target)+
		route("credentials", fmt.Sprintf("rabbitmq: {url: %q, username: nobody, password: hunter2, queues: [{name: q}]}", rabbit.url), pulsar.sink(), target)+
		route("sink_away", kafka.alone(good, ", drain_timeout: 1s"), `pulsar: {url: "pulsar://127.0.0.1:1"}`, target)+
		route("good", fmt.Sprintf("kafka: {brokers: [%q], group: good, topics: [%s]}", kafka.broker, good), pulsar.sink(), target))
	kafka.put(t, good, 0, 100)
	arriving(t, pulsar, target).all(100)
	for _, name := range []string{"unreachable", "missing_topic", "missing_queue", "credentials", "sink_away"} {
		st := s.await(name, func(st pigeonhole.Status) bool { return st.State == "unhealthy" })
		assert.NotEmpty(t, st.LastError, name)
		assert.NotContains(t, st.LastError, "hunter2", name)
		t.Log(name, st.LastError)
	}
	assert.Equal(t, "running", s.route("good").State)
}
