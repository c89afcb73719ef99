package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/aviaryhq/aviary/test/demo/display"
	"github.com/aviaryhq/aviary/test/systems/kafka"
	"github.com/aviaryhq/aviary/test/systems/pulsar"
	"github.com/aviaryhq/aviary/test/systems/rabbitmq"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// pigeonholeFlow shows messages that are put into Kafka and into RabbitMQ and arrive
// on one Pulsar topic.
func pigeonholeFlow() flow {
	return flow{service: "pigeonhole", binary: "pigeonhole", servers: []string{"pulsar", "kafka", "rabbitmq"}, start: startPigeonhole}
}

type pigeonhole struct {
	env           *environment
	source, queue string // the topic of Kafka, the queue of RabbitMQ
	topic         string
	service       *service
	stopFeeding   context.CancelFunc
	feeding       context.Context
	feeders       sync.WaitGroup

	mu      sync.Mutex
	sent    map[string]int64 // by system
	arrived map[string]*arrivals
	ledgers map[string]*ledger // by system
}

// arrivals is what has come from one system.
type arrivals struct {
	messages, duplicates, disordered, malformed int64
	last                                        map[string]int64 // number by key: a key's messages are on one partition
}

const (
	feedEvery = 5 * time.Millisecond // each of the two systems
	feedKeys  = 50
)

func startPigeonhole(ctx context.Context, env *environment) (running, error) {
	p := &pigeonhole{
		env: env, source: "orders-" + env.run, queue: "parcels-" + env.run, topic: "persistent://public/default/shipments-" + env.run,
		sent: map[string]int64{}, arrived: map[string]*arrivals{"kafka": {last: map[string]int64{}}, "rabbitmq": {last: map[string]int64{}}},
		ledgers: map[string]*ledger{"kafka": newLedger(0), "rabbitmq": newLedger(0)},
	}
	p.feeding, p.stopFeeding = context.WithCancel(context.Background())
	if err := p.createTopic(); err != nil {
		return p, err
	}
	binary, err := env.binaries.path(ctx, "pigeonhole")
	if err != nil {
		return p, err
	}
	admin, err := env.ports.listen("pigeonhole", 9302)
	if err != nil {
		return p, err
	}
	file := filepath.Join(env.dir, "pigeonhole.yaml")
	if err := os.WriteFile(file, []byte(p.config()), 0o600); err != nil {
		return p, err
	}
	if p.service, err = startService(env, "pigeonhole", admin, binary, []string{"PIGEONHOLE_ADMIN_LISTEN=" + admin}, "-config.file", file); err != nil {
		return p, err
	}
	if err := p.service.ready(ctx); err != nil {
		return p, err
	}
	if err := env.curves.scrape("pigeonhole", admin); err != nil {
		return p, err
	}
	env.screen.Address("pigeonhole", "routes", "http://"+admin+"/routes")
	env.screen.Address("pigeonhole", "admin", "http://"+admin)
	env.screen.Address("pigeonhole", "kafka", "topic "+p.source+" at "+env.servers["KAFKA_BROKERS"])
	env.screen.Address("pigeonhole", "rabbitmq", "queue "+p.queue)
	env.screen.Address("pigeonhole", "topic", p.topic+" at "+env.servers["PULSAR_URL"])
	return p, nil
}

func (p *pigeonhole) config() string {
	return fmt.Sprintf(`
routes:
  - name: orders
    source: {kafka: {brokers: [%q], group: demo, instance_id: demo-0, topics: [%q]}} # the id: when it was killed it goes on at once
    sink: {pulsar: {url: %q}}
    to: %s
  - name: parcels
    source: {rabbitmq: {url: %q, queues: [{name: %q}], declare: create}}
    sink: {pulsar: {url: %q}}
    to: %s
`, p.env.servers["KAFKA_BROKERS"], p.source, p.env.servers["PULSAR_URL"], p.topic,
		strings.Replace(p.env.servers["RABBITMQ_URL"], "guest:guest@", "", 1), p.queue, p.env.servers["PULSAR_URL"], p.topic)
}

func (p *pigeonhole) brokers() []string { return strings.Split(p.env.servers["KAFKA_BROKERS"], ",") }

func (p *pigeonhole) createTopic() (err error) {
	cfg := sarama.NewConfig()
	cfg.Admin.Timeout, cfg.Net.ReadTimeout = patience, patience
	admin, err := sarama.NewClusterAdmin(p.brokers(), cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, admin.Close()) }()
	return admin.CreateTopic(p.source, &sarama.TopicDetail{NumPartitions: 4, ReplicationFactor: 1}, false)
}

// watch feeds both systems and reads the topic.
func (p *pigeonhole) watch(ctx context.Context) error {
	p.env.screen.Status("pigeonhole", p.figures)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return pulsar.Read(ctx, p.env.servers["PULSAR_URL"], p.topic, subscription, p.receive)
	})
	p.feeders.Add(2)
	group.Go(func() error { return p.feed(ctx, "kafka", p.kafka) })
	group.Go(func() error { return p.feed(ctx, "rabbitmq", p.rabbitmq) })
	return group.Wait()
}

// feed puts a numbered message into a system again and again until verify or the end.
// put returns when the system has stored it.
func (p *pigeonhole) feed(ctx context.Context, system string, open func(ctx context.Context) (put func(ctx context.Context, key string, value []byte) error, done func() error, err error)) error {
	defer p.feeders.Done()
	put, done, err := open(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", system, err)
	}
	tick := time.NewTicker(feedEvery)
	defer tick.Stop()
	for n := int64(0); ; n++ {
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), done())
		case <-p.feeding.Done():
			return done()
		case <-tick.C:
		}
		value, began := binary.BigEndian.AppendUint64(nil, uint64(n)), time.Now()
		if err := put(ctx, "customer-"+strconv.FormatInt(n%feedKeys, 10), value); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", system, err), done())
		}
		p.mu.Lock()
		p.sent[system]++
		p.ledgers[system].send(n, began)
		p.mu.Unlock()
	}
}

func (p *pigeonhole) kafka(context.Context) (func(context.Context, string, []byte) error, func() error, error) {
	producer, err := sarama.NewSyncProducer(p.brokers(), kafka.Durable())
	if err != nil {
		return nil, nil, err
	}
	return func(_ context.Context, key string, value []byte) error {
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{
			Topic: p.source, Key: sarama.StringEncoder(key), Value: sarama.ByteEncoder(value),
			Headers: []sarama.RecordHeader{{Key: []byte("kind"), Value: []byte("order")}},
		})
		return err
	}, producer.Close, nil
}

func (p *pigeonhole) rabbitmq(ctx context.Context) (func(context.Context, string, []byte) error, func() error, error) {
	url := p.env.servers["RABBITMQ_URL"]
	// Pigeonhole declares the queue, maybe after it says that it is ready. RabbitMQ drops, and
	// confirms, what no queue takes.
	err := p.service.await(ctx, "did not declare the queue "+p.queue, func(context.Context) error {
		return rabbitmq.With(url, func(c *amqp.Channel) error {
			_, err := c.QueueDeclarePassive(p.queue, true, false, false, false, nil)
			return err
		})
	})
	if err != nil {
		return nil, nil, err
	}
	publisher, err := rabbitmq.NewPublisher(url, p.queue)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context, key string, value []byte) error {
		return publisher.Publish(ctx, amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: key, Body: value, Headers: amqp.Table{"kind": "parcel"},
		})
	}, publisher.Close, nil
}

// receive counts a message and shows it if there is room on the screen.
func (p *pigeonhole) receive(d *messaging.Delivery) {
	origin, ok := message.Place(d.Properties)
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.arrived[origin.System]
	if !ok || a == nil || len(d.Payload) != 8 || d.Properties["kind"] == "" {
		p.arrived["kafka"].malformed++
		return
	}
	n := int64(binary.BigEndian.Uint64(d.Payload))
	key := strconv.FormatInt(n%feedKeys, 10)
	a.messages++
	p.ledgers[origin.System].arrive(n)
	switch last, known := a.last[key]; {
	case known && n == last:
		a.duplicates++
	case known && n < last:
		a.disordered++
	default:
		a.last[key] = n
	}
	p.env.first.from("pigeonhole")
	p.env.screen.Sample("pigeonhole", func() string {
		return fmt.Sprintf("%s  %-60s number %d  kind %s", time.Now().Format("15:04:05.000"), origin, n, d.Properties["kind"])
	})
}

// figures are those of both systems together.
func (p *pigeonhole) figures() display.Figures {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := display.Figures{Unit: "messages", From: "Kafka and RabbitMQ", To: "a Pulsar topic", Sent: new(int64), Missing: new(int64), Twice: new(int64)}
	for _, l := range p.ledgers {
		missing, lag := l.behind()
		*f.Sent, f.Arrived = *f.Sent+l.sent, f.Arrived+l.arrived
		*f.Missing, *f.Twice, f.Lag = *f.Missing+missing, *f.Twice+l.twice, max(f.Lag, lag)
	}
	f.More = []string{fmt.Sprintf("%d from Kafka", p.ledgers["kafka"].arrived), fmt.Sprintf("%d from RabbitMQ", p.ledgers["rabbitmq"].arrived)}
	return f
}

// verify compares what was put into the systems with what the topic has.
func (p *pigeonhole) verify(ctx context.Context) ([]display.Check, error) {
	p.stopFeeding()
	fed := make(chan struct{})
	go func() {
		p.feeders.Wait() // a message that is being put may arrive before it is counted
		close(fed)
	}()
	missing := func() (sum int64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for system, a := range p.arrived {
			sum += max(0, p.sent[system]-a.messages)
		}
		return sum
	}
	// What does not come within the time is lost, and shows as a difference.
	_ = p.service.await(ctx, "messages are missing at the topic's consumer", func(context.Context) error {
		select {
		case <-fed:
		default:
			return errors.New("the last ones are being put")
		}
		if n := missing(); n > 0 {
			return fmt.Errorf("%d have not arrived", n)
		}
		return nil
	})
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var checks []display.Check
	for _, system := range []string{"kafka", "rabbitmq"} {
		a := p.arrived[system]
		checks = append(checks,
			display.Check{What: system + ": put into it = received from the Pulsar topic", Want: p.sent[system], Got: a.messages},
			display.Check{What: system + ": duplicates", Want: 0, Got: a.duplicates},
			display.Check{What: system + ": out of order within a key", Want: 0, Got: a.disordered},
			display.Check{What: system + ": some flowed", Want: 1, Got: min(1, p.sent[system])},
		)
	}
	return append(checks, display.Check{What: "messages without their header or origin", Want: 0, Got: p.arrived["kafka"].malformed}), nil
}

func (p *pigeonhole) stop(ctx context.Context) error {
	p.stopFeeding()
	if p.service == nil {
		return nil
	}
	p.env.screen.Note("stopping pigeonhole")
	return p.service.stop(ctx)
}
