package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
)

var (
	errStopped = errors.New("the sink has stopped")
	errLost    = errors.New("lost the connection to RabbitMQ, or the channel, before the message was confirmed")
)

// confirmTimeout is how long a stop waits for confirms.
const confirmTimeout = 2 * time.Second

// Sink publishes messages and has them confirmed. Run is called once; Send at any time, from any
// goroutine.
type Sink struct {
	*client
	cfg SinkConfig

	publishers []*publisher // a destination has always the same one
	seed       maphash.Seed
	inFlight   *window       // of bytes
	noAlarm    chan struct{} // holds a token unless the broker has a memory or disk alarm

	running     context.Context // until Run has ended
	stop        context.CancelFunc
	activeSends sync.RWMutex // read-held by each Send; taken by Run's end
}

// NewSink implements [connector.SinkConfig].
func (c SinkConfig) NewSink(o connector.Options) connector.Sink {
	s := &Sink{
		client: newClient(c.Connection, "sink", o), cfg: c,
		seed: maphash.MakeSeed(), inFlight: newWindow(int64(c.WindowBytes)), noAlarm: make(chan struct{}, 1),
	}
	s.noAlarm <- struct{}{}
	s.running, s.stop = context.WithCancel(context.Background())
	for i := range c.Channels {
		s.publishers = append(s.publishers, newPublisher(s, i))
	}
	return s
}

// NameRules implements [connector.SinkConfig]. With an exchange the destination is a routing key,
// and nothing is reserved about it.
func (c SinkConfig) NameRules() connector.NameRules {
	if c.Exchange != "" {
		return connector.NameRules{}
	}
	return connector.NameRules{Reserved: func(queue string) string {
		if strings.HasPrefix(queue, "amq.") {
			return `it begins with "amq.", which RabbitMQ reserves for its own queues`
		}
		return ""
	}}
}

// Run keeps the connection until ctx ends; then it waits a moment for confirms. When it returns,
// done has been called for every message.
func (s *Sink) Run(ctx context.Context) error {
	s.connect(ctx, func(conn *brokerConnection) error { return s.serve(ctx, conn) })
	s.stop()
	s.activeSends.Lock() // until each Send that was waiting has returned
	defer s.activeSends.Unlock()
	return nil
}

// serve publishes through one connection until it or ctx ends. Every message that was published on
// it has its outcome when it returns.
func (s *Sink) serve(ctx context.Context, conn *brokerConnection) (err error) {
	// The library gives up a notification that is not taken within five seconds.
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 64))
	publishing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	for _, p := range s.publishers {
		wg.Go(func() { p.run(publishing, conn) })
	}
	wg.Go(func() { s.watchAlarms(blocked, conn.address) })
	select {
	case reason := <-conn.lost:
		err = conn.lostError(reason)
	case <-ctx.Done():
		confirms, cancel := context.WithTimeout(s.drainCtx, confirmTimeout)
		defer cancel()
		s.inFlight.waitEmpty(confirms)
	}
	stop()
	conn.close()
	wg.Wait()
	return err
}

// watchAlarms stops Send while the broker has an alarm. It returns when the connection has ended.
func (s *Sink) watchAlarms(blocked <-chan amqp.Blocking, address string) {
	const part = " alarm"
	alarm := false
	for open := true; open; {
		var b amqp.Blocking // the end of the connection ends an alarm
		b, open = <-blocked
		if b.Active == alarm {
			continue
		}
		if alarm = b.Active; alarm {
			<-s.noAlarm
			s.metrics.blocked.Set(1)
			s.health.Set(part, fmt.Errorf("RabbitMQ at %s has an alarm and accepts no messages: %s", address, b.Reason))
		} else {
			s.noAlarm <- struct{}{}
			s.metrics.blocked.Set(0)
			s.health.Set(part, nil)
		}
	}
}

// PlaceName names the queue to in the hops of messages, or with an exchange that and the routing
// key: which queues it leads to is not known here.
func (s *Sink) PlaceName(to string) string {
	if s.cfg.Exchange != "" {
		to = s.cfg.Exchange + "/" + to
	}
	return message.PlaceName(system, s.cfg.Cluster, to)
}

// Send publishes m with the routing key to; see pipeline.Sink. Messages of one destination are
// published in the order of the calls. It blocks while there is no connection, while the broker has
// an alarm, and while the window is full, until ctx ends.
func (s *Sink) Send(ctx context.Context, to string, m *message.Message, done func(error)) {
	s.activeSends.RLock()
	defer s.activeSends.RUnlock()
	pub, size, err := s.cfg.toPublishing(to, m)
	if err == nil {
		p := s.publishers[maphash.String(s.seed, to)%uint64(len(s.publishers))]
		err = p.publish(ctx, pendingMessage{key: to, pub: pub, size: size, done: done})
	}
	if err != nil {
		done(err)
	}
}
