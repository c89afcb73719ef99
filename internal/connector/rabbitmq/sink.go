package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

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
	cfg     SinkConfig
	health  *connector.Health
	metrics *metrics
	log     *zap.Logger
	// drainCtx ends when a stop must not wait any longer.
	drainCtx context.Context

	publishers []*publisher // a destination has always the same one
	seed       maphash.Seed
	inFlight   *byteWindow
	alarm      *gate // closed while the broker has a memory or disk alarm

	running     context.Context // until Run has ended
	stop        context.CancelFunc
	activeSends sync.RWMutex // read-held by each Send; taken by Run's end
	started     atomic.Bool
}

// NewSink checks the configuration. It does not connect.
func NewSink(cfg SinkConfig, o connector.Options) (*Sink, error) {
	if err := faults(&cfg); err != nil {
		return nil, err
	}
	o = o.WithDefaults()
	s := &Sink{
		cfg: cfg, health: connector.NewHealth(o.Report), metrics: newMetrics(o.Metrics), log: o.Log.Named("rabbitmq"), drainCtx: o.DrainContext,
		seed: maphash.MakeSeed(), inFlight: newByteWindow(int64(cfg.WindowBytes)), alarm: newGate(true),
	}
	s.running, s.stop = context.WithCancel(context.Background())
	for i := range cfg.Channels {
		s.publishers = append(s.publishers, newPublisher(s, i))
	}
	return s, nil
}

// Run keeps the connection until ctx ends; then it waits a moment for confirms. When it returns,
// done has been called for every message.
func (s *Sink) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		return errors.New("rabbitmq: Run was called before")
	}
	pause := connector.Reconnect()
	for ctx.Err() == nil {
		began := time.Now()
		conn, err := s.cfg.dial(ctx, "sink")
		if err == nil {
			err = s.serve(ctx, conn)
		}
		if ctx.Err() == nil {
			s.health.Set(connector.Connection, err)
			pause.Held(time.Since(began))
			pause.Wait(ctx)
		}
	}
	s.stop()
	s.activeSends.Lock() // until each Send that was waiting has returned
	defer s.activeSends.Unlock()
	return nil
}

// serve publishes through one connection until it or ctx ends. Every message that was published on
// it has its outcome when it returns.
func (s *Sink) serve(ctx context.Context, conn *brokerConnection) error {
	lost := conn.NotifyClose(make(chan *amqp.Error, 1))
	// The library gives up a notification that is not taken within five seconds. Alarms come in
	// pairs and are taken at once.
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 64))
	s.metrics.connections.Inc()
	s.metrics.connected.Set(1)
	defer s.metrics.connected.Set(0)
	defer s.unblock()
	s.health.Set(connector.Connection, nil)
	publishing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	for _, p := range s.publishers {
		wg.Go(func() { p.run(publishing, conn) })
	}
	var err error
	for ended := false; !ended; {
		select {
		case b, ok := <-blocked:
			switch {
			case !ok:
				blocked = nil
			case b.Active:
				s.block(b.Reason)
			default:
				s.unblock()
			}
		case reason := <-lost:
			err, ended = conn.lostError(s.cfg.address(), reason), true
		case <-ctx.Done():
			confirms, cancel := context.WithTimeout(s.drainCtx, confirmTimeout)
			s.inFlight.waitEmpty(confirms)
			cancel()
			ended = true
		}
	}
	stop()
	conn.close()
	wg.Wait()
	return err
}

const partAlarm = " alarm"

func (s *Sink) block(reason string) {
	s.alarm.close()
	s.metrics.blocked.Set(1)
	s.health.Set(partAlarm, fmt.Errorf("RabbitMQ at %s accepts no messages at present: %s", s.cfg.address(), reason))
}

func (s *Sink) unblock() {
	s.alarm.open()
	s.metrics.blocked.Set(0)
	s.health.Set(partAlarm, nil)
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
	if err != nil {
		done(err)
		return
	}
	p := s.publishers[0]
	if len(s.publishers) > 1 {
		p = s.publishers[maphash.String(s.seed, to)%uint64(len(s.publishers))]
	}
	epoch := p.epoch.Load()
	if err := s.inFlight.acquire(ctx, s.running, size); err != nil {
		done(err)
		return
	}
	if err := p.publish(ctx, epoch, pendingMessage{key: to, pub: pub, size: size, done: done}); err != nil {
		s.inFlight.release(size)
		done(err)
	}
}
