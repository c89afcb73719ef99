// Package sentinel follows the primary of a Redis that Sentinels watch over: it asks all of them, again and again, and believes the newest answer.
package sentinel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/retry"
	"github.com/aviaryhq/aviary/internal/trouble"
)

// Config says whom to ask for what.
type Config struct {
	// Master is the name under which the Sentinels watch the primary.
	Master string
	// Addresses of the Sentinels, host:port.
	Addresses []string
	// Username and Password for AUTH to the Sentinels. Default: none.
	Username, Password string
	// TLS to the Sentinels. Default: nil, plain.
	TLS *tls.Config
	// Timeout bounds one connect and one question. Default 1s.
	Timeout time.Duration
}

// Sentinels know where the primary is. All methods are safe for concurrent use.
type Sentinels struct {
	cfg Config
	log *zap.Logger

	mu      sync.Mutex
	moved   []func(address string)
	answers map[string]answer // by the Sentinel's address, of those that answer now
	faults  map[string]error  // of the others
	current answer            // the newest that was ever believed
	told    time.Time         // when a Sentinel said so last, or something newer
	known   chan struct{}     // closed once there is one
}

// answer is what a Sentinel says.
type answer struct {
	address string
	// epoch counts failovers: each has one of its own, and the highest is the newest.
	epoch int64
}

// New makes one. It asks nobody before [Sentinels.Run].
func New(cfg Config, log *zap.Logger) *Sentinels {
	if cfg.Timeout <= 0 {
		cfg.Timeout = time.Second
	}
	return &Sentinels{
		cfg: cfg, log: log.Named("sentinel").With(zap.String("master", cfg.Master)),
		answers: map[string]answer{}, faults: map[string]error{}, known: make(chan struct{}),
	}
}

// OnMove has f called with the address of each primary that takes the place of another one, in their order. It must return soon and call no method.
func (s *Sentinels) OnMove(f func(address string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved = append(s.moved, f)
}

// Run asks until ctx ends.
func (s *Sentinels) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	for _, address := range s.cfg.Addresses {
		asking.Go(func() { s.follow(ctx, address) })
	}
	asking.Wait()
	return nil
}

// Master returns the primary's address as the newest answer has it, and waits for the first one. While no Sentinel answers it is the last one known.
func (s *Sentinels) Master(ctx context.Context) (string, error) {
	select {
	case <-s.known:
	case <-ctx.Done():
		return "", fmt.Errorf("no Sentinel tells where %q is: %w", s.cfg.Master, errors.Join(s.problem(), ctx.Err()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.address, nil
}

// problem is why Sentinels do not answer.
func (s *Sentinels) problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, address := range s.cfg.Addresses {
		if err := s.faults[address]; err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", address, err))
		}
	}
	return errors.Join(errs...)
}

// believedFor is how long an answer is believed that no Sentinel gives any more while others give older ones. Sentinels hear of a failover from each
// other within 2 s.
const believedFor = 10 * time.Second

// askEvery is how often each Sentinel is asked. A failover takes seconds; a Sentinel tells the new address before it announces +switch-master.
const askEvery = 250 * time.Millisecond

// client is that of one Sentinel.
func (s *Sentinels) client(address string) *redis.SentinelClient {
	return redis.NewSentinelClient(&redis.Options{
		Addr: address, Username: s.cfg.Username, Password: s.cfg.Password, TLSConfig: s.cfg.TLS, ClientName: "sonic", DisableIdentity: true,
		MaxRetries: -1, DialerRetries: 1, PoolSize: 1, Protocol: 2,
		DialTimeout: s.cfg.Timeout, ReadTimeout: s.cfg.Timeout, WriteTimeout: s.cfg.Timeout, ContextTimeoutEnabled: true,
	})
}

// Ask asks the Sentinel at an address once where the primary is.
func (s *Sentinels) Ask(ctx context.Context, address string) (primary string, err error) {
	c := s.client(address)
	defer func() { _ = c.Close() }()
	a, err := s.ask(ctx, c)
	return a.address, err
}

// follow asks one Sentinel.
func (s *Sentinels) follow(ctx context.Context, address string) {
	c := s.client(address)
	defer func() { _ = c.Close() }()
	health := trouble.New(s.log.With(zap.String("sentinel", address)))
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	var pause retry.Pause
	for {
		a, err := s.ask(ctx, c)
		if ctx.Err() != nil {
			return
		}
		s.take(address, a, err)
		health.Note(err)
		if err != nil {
			pause.Wait(ctx)
			continue
		}
		pause.Reset()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// ask asks one Sentinel once. The epoch comes first: when a failover ends between both questions the answer is newer than its epoch says, and the
// next one is right. SENTINEL MASTER alone gives the old address until all replicas follow the new primary.
func (s *Sentinels) ask(ctx context.Context, c *redis.SentinelClient) (a answer, err error) {
	state, err := c.Master(ctx, s.cfg.Master).Result()
	if err != nil {
		return a, err
	}
	if a.epoch, err = strconv.ParseInt(state["config-epoch"], 10, 64); err != nil {
		return a, fmt.Errorf("its config-epoch is %q", state["config-epoch"])
	}
	at, err := c.GetMasterAddrByName(ctx, s.cfg.Master).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return a, fmt.Errorf("it knows no master %q", s.cfg.Master)
	case err != nil:
		return a, err
	case len(at) != 2:
		return a, fmt.Errorf("its answer has %d values", len(at))
	}
	a.address = net.JoinHostPort(at[0], at[1])
	return a, nil
}

// take keeps what a Sentinel said, or that it says nothing, and finds out where the primary is.
//
// A Sentinel that was cut off from the others gives an old address, and so do all that have not heard of a failover yet. So an answer of a lower epoch
// than one that was believed before counts only when more than half of the Sentinels answer, and none has told of the higher epoch for a while: those
// that were set up anew begin at 0.
func (s *Sentinels) take(from string, a answer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.answers, from)
		s.faults[from] = err
		return
	}
	delete(s.faults, from)
	s.answers[from] = a
	var newest answer
	for _, address := range s.cfg.Addresses {
		if one, ok := s.answers[address]; ok && (newest.address == "" || one.epoch > newest.epoch) {
			newest = one
		}
	}
	before, now := s.current, time.Now()
	if newest.epoch >= before.epoch {
		s.told = now
	} else if 2*len(s.answers) <= len(s.cfg.Addresses) || now.Sub(s.told) < believedFor {
		return
	}
	if newest == before {
		return
	}
	s.current = newest
	switch before.address {
	case newest.address:
		return
	case "":
		s.log.Info("found the primary", zap.String("address", newest.address), zap.Int64("epoch", newest.epoch))
		close(s.known)
		return
	default:
		s.log.Warn("another Redis is the primary now", zap.String("address", newest.address), zap.String("before", before.address), zap.Int64("epoch", newest.epoch))
	}
	for _, moved := range s.moved {
		moved(newest.address)
	}
}
