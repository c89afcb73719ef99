package sonic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/sentinel"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// backend says how to reach the zone's Redis.
type backend struct {
	address            string              // host:port; empty with sentinels and with a cluster
	nodes              []string            // of a Redis Cluster, host:port; none: it is no cluster
	sentinels          *sentinel.Sentinels // nil: address is that of the primary
	username, password string
	tls                *tls.Config
}

// String names the Redis for logs and errors.
func (b backend) String() string {
	if b.sentinels != nil {
		return "the primary that the Sentinels name"
	}
	if len(b.nodes) > 0 {
		return "the Redis Cluster of " + strings.Join(b.nodes, ", ")
	}
	return b.address
}

// resolve returns the address of the primary.
func (b backend) resolve(ctx context.Context) (string, error) {
	if b.sentinels != nil {
		return b.sentinels.Master(ctx)
	}
	return b.address, nil
}

// backend reads the section, which must be valid. It does not ask the Sentinels: see follow.
func (c RedisConfig) backend(log *zap.Logger) (backend, error) {
	u, addresses, err := splitURL(c.url())
	if err != nil {
		return backend{}, fmt.Errorf("redis.url: %w", err)
	}
	password, err := secret.Resolve(c.Password, c.PasswordFile)
	if err != nil {
		return backend{}, err
	}
	b := backend{username: c.Username, password: password.Reveal()}
	if u.User != nil {
		b.username = u.User.Username()
		b.password, _ = u.User.Password()
	}
	if u.Scheme == "rediss" {
		if b.tls, err = c.TLS.client(); err != nil {
			return backend{}, fmt.Errorf("redis.tls.ca_file: %w", err)
		}
	}
	if c.Sentinel.isSet() {
		b.sentinels, err = c.sentinels(log)
		return b, err
	}
	for _, address := range addresses {
		host, port, err := hostAndPort(address)
		if err != nil {
			return backend{}, fmt.Errorf("redis.url: %w", err)
		}
		b.nodes = append(b.nodes, net.JoinHostPort(host, port))
	}
	if !c.isCluster() {
		b.address, b.nodes = b.nodes[0], nil
	}
	return b, nil
}

// follow asks the Sentinels, if any are configured, until the process stops.
func (b backend) follow(rt *app.Runtime, zone string) {
	if b.sentinels != nil {
		rt.Go("sentinels of zone "+zone, b.sentinels.Run)
	}
}

// endpoint returns the proxy's configuration for connecting to Redis.
func (c RedisConfig) endpoint(b backend) upstream.Config {
	p := upstream.Config{Address: b.address, Username: b.username, Password: b.password, TLS: b.tls, DialTimeout: c.ConnectTimeout, Wait: c.Wait}
	if b.sentinels != nil {
		p.Resolve = b.resolve
	}
	return p
}

// errUnsuitable says that a Redis cannot be this zone's backend.
var errUnsuitable = errors.New("this Redis cannot be the backend")

// awaitRedis waits until Redis answers, and checks that it can be the backend. A replica cannot be
// the backend. With Sentinels awaitRedis goes on waiting: they may soon name another primary.
func awaitRedis(ctx context.Context, db *redis.Client, b backend, state *health.State) error {
	var pause backoff.Backoff
	for {
		err := checkRedis(ctx, db)
		if errors.Is(err, errReplica) && b.sentinels == nil {
			err = fmt.Errorf("%w: %w", errUnsuitable, err)
		}
		if err == nil || errors.Is(err, errUnsuitable) {
			state.Set(nil)
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		state.Set(err)
		pause.Wait(ctx)
	}
}

// checkRedis returns errUnsuitable for a Redis that cannot be the backend. Other errors mean that
// it could not find out.
func checkRedis(ctx context.Context, db *redis.Client) error {
	info, err := askInfo(ctx, db)
	if err != nil {
		return err
	}
	if info["cluster_enabled"] == "1" {
		err = fmt.Errorf("%w: it is part of a Redis Cluster: set redis.cluster: true", errUnsuitable)
	}
	return errors.Join(checkServer(info), err)
}

// askInfo returns what INFO says. Its error is errUnsuitable if Redis refuses INFO until somebody
// changes its settings or Sonic's: a wrong password for instance. Any other error may pass.
func askInfo(ctx context.Context, db *redis.Client) (map[string]string, error) {
	text, err := db.Info(ctx).Result()
	switch {
	case refusedForGood(err):
		return nil, fmt.Errorf("%w: it refuses INFO: %w", errUnsuitable, err)
	case errors.Is(err, errReplica):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("cannot reach Redis: %w", err)
	default:
		return infoOf(text), nil
	}
}

// refusedForGood reports whether Redis refused a command because of its user, its password, or
// because it does not have the command.
func refusedForGood(err error) bool {
	return script.IsReply(err, "WRONGPASS", "NOAUTH", "NOPERM", "ERR AUTH", "ERR unknown command")
}

// checkServer returns errUnsuitable for a Redis with a version or maxmemory-policy that Sonic
// cannot use.
func checkServer(info map[string]string) error {
	var errs []error
	unsuitable := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{errUnsuitable}, args...)...))
	}
	if major, _, _ := strings.Cut(info["redis_version"], "."); !atLeast(major, 7) {
		unsuitable("its version is %s, and Sonic needs 7.0 or newer", info["redis_version"])
	}
	if problem := evictionProblem(info); problem != "" {
		unsuitable("%s", problem)
	} else if info["maxmemory_policy"] == "" {
		unsuitable("it does not report its maxmemory-policy, which has to be %s", noEviction)
	}
	return errors.Join(errs...)
}

func atLeast(number string, least int) bool {
	n, err := strconv.Atoi(number)
	return err == nil && n >= least
}
