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
	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// pigeonholeFlow shows messages that are put into Kafka and into RabbitMQ and arrive
// on one Pulsar topic.
func pigeonholeFlow() flow {
	return flow{service: "pigeonhole", servers: []string{"pulsar", "kafka", "rabbitmq"}, start: startPigeonhole}
}

type pigeonhole struct {
	env           *environment
	source, queue string // the topic of Kafka, the queue of RabbitMQ
	topic         string
	service       *child
	stopFeeding   context.CancelFunc
	feeding       context.Context
	feeders       sync.WaitGroup

	mu      sync.Mutex
	sent    map[string]int64 // by system
	arrived map[string]*arrivals
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
	}
	p.feeding, p.stopFeeding = context.WithCancel(context.Background())
	if err := p.createTopic(); err != nil {
		return p, err
	}
	binary, err := build(ctx, env, "pigeonhole")
	if err != nil {
		return p, err
	}
	admin, err := listenAddress(9302)
	if err != nil {
		return p, err
	}
	file := filepath.Join(env.dir, "pigeonhole.yaml")
	if err := os.WriteFile(file, []byte(p.config()), 0o600); err != nil {
		return p, err
	}
	if p.service, err = spawn(env, "pigeonhole", binary, []string{"PIGEONHOLE_ADMIN_LISTEN=" + admin}, "-config.file", file); err != nil {
		return p, err
	}
	if admin, err = p.service.address(ctx, "admin"); err != nil {
		return p, err
	}
	if err := p.service.await(ctx, "not ready", 30*time.Second, func(ctx context.Context) error { return ready(ctx, admin) }); err != nil {
		return p, err
	}
	env.screen.note("kafka     topic %s   every %s", p.source, feedEvery)
	env.screen.note("rabbitmq  queue %s  every %s", p.queue, feedEvery)
	if err := env.curves.scrape("pigeonhole", admin); err != nil {
		return p, err
	}
	env.screen.note("pigeonhole  http://%s/routes", admin)
	env.screen.note("topic  %s  at %s", p.topic, env.servers["PULSAR_URL"])
	return p, nil
}

func (p *pigeonhole) config() string {
	return fmt.Sprintf(`
routes:
  - name: orders
    source: {kafka: {brokers: [%q], group: demo, topics: [%q]}}
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
	admin, err := sarama.NewClusterAdmin(p.brokers(), sarama.NewConfig())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, admin.Close()) }()
	return admin.CreateTopic(p.source, &sarama.TopicDetail{NumPartitions: 4, ReplicationFactor: 1}, false)
}

// watch feeds both systems and reads the topic.
func (p *pigeonhole) watch(ctx context.Context) error {
	p.env.screen.status(p.status())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return readTopic(ctx, p.env.servers["PULSAR_URL"], p.topic, p.receive)
	})
	p.feeders.Add(2)
	group.Go(func() error { return p.feed(ctx, "kafka", p.kafka) })
	group.Go(func() error { return p.feed(ctx, "rabbitmq", p.rabbitmq) })
	return group.Wait()
}

// feed puts a numbered message into a system again and again until verify or the end.
// put returns when the system has stored it.
func (p *pigeonhole) feed(ctx context.Context, system string, open func() (put func(ctx context.Context, key string, value []byte) error, done func() error, err error)) error {
	defer p.feeders.Done()
	put, done, err := open()
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
		value := binary.BigEndian.AppendUint64(nil, uint64(n))
		if err := put(ctx, "customer-"+strconv.FormatInt(n%feedKeys, 10), value); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", system, err), done())
		}
		p.mu.Lock()
		p.sent[system]++
		p.mu.Unlock()
	}
}

func (p *pigeonhole) kafka() (func(context.Context, string, []byte) error, func() error, error) {
	cfg := sarama.NewConfig()
	cfg.Producer.RequiredAcks, cfg.Producer.Return.Successes = sarama.WaitForAll, true
	producer, err := sarama.NewSyncProducer(p.brokers(), cfg)
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

func (p *pigeonhole) rabbitmq() (func(context.Context, string, []byte) error, func() error, error) {
	connection, err := amqp.Dial(p.env.servers["RABBITMQ_URL"])
	if err != nil {
		return nil, nil, err
	}
	channel, err := connection.Channel()
	if err == nil {
		err = channel.Confirm(false)
	}
	if err != nil {
		return nil, nil, errors.Join(err, connection.Close())
	}
	return func(ctx context.Context, key string, value []byte) error {
		confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", p.queue, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, MessageId: key, Body: value, Headers: amqp.Table{"kind": "parcel"},
		})
		if err != nil {
			return err
		}
		if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
			return fmt.Errorf("not confirmed: %w", err)
		}
		return nil
	}, connection.Close, nil
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
	switch last, known := a.last[key]; {
	case known && n == last:
		a.duplicates++
	case known && n < last:
		a.disordered++
	default:
		a.last[key] = n
	}
	p.env.screen.sample("pigeonhole", func() string {
		return fmt.Sprintf("%s  %-60s number %d  kind %s", time.Now().Format("15:04:05.000"), origin, n, d.Properties["kind"])
	})
}

// status returns the rate line.
func (p *pigeonhole) status() func() string {
	at, before := time.Now(), int64(0)
	return func() string {
		p.mu.Lock()
		kafka, rabbitmq := p.arrived["kafka"].messages, p.arrived["rabbitmq"].messages
		p.mu.Unlock()
		rate := float64(kafka+rabbitmq-before) / time.Since(at).Seconds()
		at, before = time.Now(), kafka+rabbitmq
		return fmt.Sprintf("pigeonhole  %.0f messages/s  %d from Kafka  %d from RabbitMQ", rate, kafka, rabbitmq)
	}
}

// verify compares what was put into the systems with what the topic has.
func (p *pigeonhole) verify(ctx context.Context) ([]check, error) {
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
	_ = p.service.await(ctx, "messages are missing at the topic's consumer", 30*time.Second, func(context.Context) error {
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
	var checks []check
	for _, system := range []string{"kafka", "rabbitmq"} {
		a := p.arrived[system]
		checks = append(checks,
			check{system + ": put into it = received from the Pulsar topic", p.sent[system], a.messages},
			check{system + ": duplicates", 0, a.duplicates},
			check{system + ": out of order within a key", 0, a.disordered},
			check{system + ": some flowed", 1, min(1, p.sent[system])},
		)
	}
	return append(checks, check{"messages without their header or origin", 0, p.arrived["kafka"].malformed}), nil
}

func (p *pigeonhole) stop(ctx context.Context) error {
	p.stopFeeding()
	if p.service == nil {
		return nil
	}
	p.env.screen.note("stopping pigeonhole")
	return p.service.stop(ctx)
}
