// Package sentinel finds the primary of a Redis that Sentinels monitor, and follows failovers. It
// polls all Sentinels and uses the newest answer. It imports no other package of Sonic.
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

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Config says which Sentinels to ask, and for which primary.
type Config struct {
	// Master is the name under which the Sentinels watch the primary.
	Master string
	// Addresses of the Sentinels, host:port.
	Addresses []string
	// Username and Password for AUTH to the Sentinels. Default: none.
	Username, Password string
	// TLS to the Sentinels. Default: nil, plain.
	TLS *tls.Config
}

// Sentinels is a client of all Sentinels of one primary. All methods are safe for concurrent use.
type Sentinels struct {
	cfg Config
	log *zap.Logger

	mu       sync.Mutex
	moved    []func(address string)
	answers  map[string]answer // by Sentinel address, only of Sentinels whose last request succeeded
	faults   map[string]error  // by Sentinel address, of the other Sentinels
	current  answer            // the answer in use
	answered time.Time         // when a Sentinel last gave this answer, or a newer one
	known    chan struct{}     // closed once there is a current answer
}

// answer is the answer of one Sentinel.
type answer struct {
	address string
	// epoch is the configuration epoch: each failover has its own, and the highest is the newest.
	epoch int64
}

// New returns a client. It sends no request before [Sentinels.Run].
func New(cfg Config, log *zap.Logger) *Sentinels {
	return &Sentinels{
		cfg: cfg, log: log.Named("sentinel").With(zap.String("master", cfg.Master)),
		answers: map[string]answer{}, faults: map[string]error{}, known: make(chan struct{}),
	}
}

// OnMove makes Sentinels call f with the address of each primary that replaces another one, in
// order. f must return soon and must not call a method of Sentinels.
func (s *Sentinels) OnMove(f func(address string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moved = append(s.moved, f)
}

// Run polls all Sentinels until ctx ends.
func (s *Sentinels) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	for _, address := range s.cfg.Addresses {
		asking.Go(func() { s.follow(ctx, address) })
	}
	asking.Wait()
	return nil
}

// Master returns the primary's address according to the newest answer. It waits for the first
// answer. While no Sentinel answers, it returns the last known address.
func (s *Sentinels) Master(ctx context.Context) (string, error) {
	select {
	case <-s.known:
	case <-ctx.Done():
		return "", fmt.Errorf("no Sentinel reports the address of %q: %w", s.cfg.Master, errors.Join(s.problem(), ctx.Err()))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.address, nil
}

// problem returns why Sentinels do not answer.
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

// Timeout bounds one connect and one request to a Sentinel. All are asked at the same time.
const Timeout = time.Second

// believedFor is how long the current answer stays in use when no Sentinel gives it any more, and
// others give older ones. Sentinels tell each other about a failover within 2 s.
const believedFor = 10 * time.Second

// askEvery is how often each Sentinel is asked. A failover takes seconds. A Sentinel returns the
// new address before it publishes +switch-master.
const askEvery = 250 * time.Millisecond

// client returns a Redis client for one Sentinel.
func (s *Sentinels) client(address string) *redis.SentinelClient {
	return redis.NewSentinelClient(&redis.Options{
		Addr: address, Username: s.cfg.Username, Password: s.cfg.Password, TLSConfig: s.cfg.TLS, ClientName: "sonic", DisableIdentity: true,
		MaxRetries: -1, DialerRetries: 1, PoolSize: 1, Protocol: 2,
		DialTimeout: Timeout, ReadTimeout: Timeout, WriteTimeout: Timeout, ContextTimeoutEnabled: true,
	})
}

// Ask asks the Sentinel at address once for the address of the primary.
func (s *Sentinels) Ask(ctx context.Context, address string) (primary string, err error) {
	c := s.client(address)
	defer func() { _ = c.Close() }()
	a, err := s.ask(ctx, c)
	return a.address, err
}

// follow polls one Sentinel until ctx ends.
func (s *Sentinels) follow(ctx context.Context, address string) {
	c := s.client(address)
	defer func() { _ = c.Close() }()
	state := health.New(s.log.With(zap.String("sentinel", address)))
	var pause backoff.Backoff
	for {
		a, err := s.ask(ctx, c)
		if ctx.Err() != nil {
			return
		}
		s.take(address, a, err)
		state.Set(err)
		if err != nil {
			pause.Wait(ctx)
			continue
		}
		pause.Reset()
		if !backoff.Sleep(ctx, askEvery) {
			return
		}
	}
}

// ask asks one Sentinel once. It asks for the epoch first: if a failover ends between the two
// requests, the address is newer than its epoch, and the next answer is right. SENTINEL MASTER
// alone does not suffice: it returns the old address until all replicas follow the new primary.
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
	}
	a.address = net.JoinHostPort(at[0], at[1])
	return a, nil
}

// take stores the answer or the error of a Sentinel, and decides which primary is current.
//
// A Sentinel that was cut off from the others gives an old address. So do Sentinels that do not
// know of a failover yet. So an answer with a lower epoch than the current one is used only if more
// than half of the Sentinels answer, and none has given the higher epoch for a while. Such an
// answer can be right: Sentinels that were installed anew begin with epoch 0.
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
		s.answered = now
	} else if 2*len(s.answers) <= len(s.cfg.Addresses) || now.Sub(s.answered) < believedFor {
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
