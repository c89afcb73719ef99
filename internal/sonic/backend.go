package sonic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/sentinel"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// backend says how to reach the zone's Redis.
type backend struct {
	address            string              // host:port; empty with sentinels and with a cluster
	nodes              []string            // of a Redis Cluster, host:port; empty with one Redis
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
		if b.tls, err = c.TLS.Client(""); err != nil { // the dialer sets the host
			return backend{}, fmt.Errorf("redis.%w", err)
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
	p := upstream.Config{Address: b.address, Username: b.username, Password: b.password, TLS: b.tls, Wait: c.Wait}
	if b.sentinels != nil {
		p.Resolve = b.resolve
	}
	return p
}

const (
	// connectTimeout bounds one attempt to connect to a single Redis.
	connectTimeout = 5 * time.Second
	// nodeConnectTimeout is connectTimeout for a node of a Redis Cluster: one that cannot be reached
	// must not hold up the others.
	nodeConnectTimeout = time.Second
	// nodeTimeout bounds one reply of such a node. A call of a function of the library that takes
	// longer is made again, and finds what is done already.
	nodeTimeout = 5 * time.Second
)

// cluster returns what follows the Redis Cluster. It sends no request before its Run.
func (b backend) cluster(log *zap.Logger) *cluster.Cluster {
	return cluster.New(cluster.Config{Addresses: b.nodes, Username: b.username, Password: b.password, TLS: b.tls}, log)
}

// options are those of all clients. They never send a command twice.
func (b backend) options(address string) *redis.Options {
	return &redis.Options{
		Addr: address, Username: b.username, Password: b.password, DialTimeout: connectTimeout,
		DialerRetries: 1, MaxRetries: -1, ClientName: "sonic", Protocol: 2, DisableIdentity: true,
	}
}

// nodeClient returns a client of one node of a Redis Cluster. It follows no redirection.
func (b backend) nodeClient(address string) *redis.Client {
	o := b.options(address)
	o.TLSConfig, o.DialTimeout = b.tls, nodeConnectTimeout
	o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = nodeTimeout, nodeTimeout, true
	return redis.NewClient(o)
}

// errUnsuitable says that a Redis cannot be this zone's backend.
var errUnsuitable = errors.New("this Redis cannot be the backend")

// repeatCheck repeats check until it returns nil or errUnsuitable, or ctx ends. errNoMap is not
// logged: the first answer is on its way.
func repeatCheck(ctx context.Context, state *health.State, check func() error) error {
	var pause backoff.Backoff
	for {
		err := check()
		switch {
		case err == nil:
			state.Set(nil)
			return nil
		case errors.Is(err, errUnsuitable):
			state.Forget()
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, errNoMap):
			state.Set(err)
		}
		pause.Wait(ctx)
	}
}

// awaitRedis waits until Redis answers, and checks that it can be the backend. A replica cannot be
// the backend. With Sentinels awaitRedis goes on waiting: they may soon name another primary.
func (b backend) awaitRedis(ctx context.Context, db *redis.Client, state *health.State) error {
	return repeatCheck(ctx, state, func() error {
		err := checkRedis(ctx, db)
		if errors.Is(err, errReplica) && b.sentinels == nil {
			err = fmt.Errorf("%w: %w", errUnsuitable, err)
		}
		return err
	})
}

// awaitCluster waits until a primary of the cluster answers that can be the backend. Primaries that
// cannot be reached do not hold up the start: the other ones serve their slots. One that cannot be
// the backend ends the wait with errUnsuitable.
func (b backend) awaitCluster(ctx context.Context, c *cluster.Cluster, state *health.State) error {
	return repeatCheck(ctx, state, func() error {
		if m := c.Map(); m != nil {
			return b.checkPrimaries(ctx, m)
		}
		if err := c.Err(); err != nil {
			return errors.Join(err, b.checkEnabled(ctx))
		}
		return errNoMap
	})
}

// checkRedis returns errUnsuitable for a Redis that cannot be the backend. Other errors mean that
// it could not find out.
func checkRedis(ctx context.Context, db *redis.Client) error {
	info, err := askInfo(ctx, db)
	if err != nil {
		return err
	}
	return checkServer(info, false)
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
// cannot use, and for one that is part of a Redis Cluster, or is not, against the configuration.
func checkServer(info map[string]string, cluster bool) error {
	var errs []error
	unsuitable := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{errUnsuitable}, args...)...))
	}
	version, _, _ := strings.Cut(info["redis_version"], ".")
	if major, _ := strconv.Atoi(version); major < 7 {
		unsuitable("its version is %s, and Sonic needs 7.0 or newer", info["redis_version"])
	}
	if problem := evictionProblem(info); problem != "" {
		unsuitable("%s", problem)
	} else if info["maxmemory_policy"] == "" {
		unsuitable("it does not report its maxmemory-policy, which must be %s", noEviction)
	}
	switch enabled := info["cluster_enabled"]; {
	case cluster && enabled == "0":
		unsuitable("it is not part of a Redis Cluster: set redis.cluster: false, and one address in redis.url")
	case !cluster && enabled == "1":
		unsuitable("it is part of a Redis Cluster: set redis.cluster: true")
	}
	return errors.Join(errs...)
}

// checkPrimaries returns nil if at least one primary answers and all that answer can be the
// backend.
func (b backend) checkPrimaries(ctx context.Context, m *cluster.Map) error {
	addresses := m.Addresses()
	if len(addresses) == 0 {
		return errors.New("no primary of the Redis Cluster has slots")
	}
	unsuitable, unknown := b.checkNodes(ctx, addresses, true)
	if len(unsuitable) == 0 && len(unknown) < len(addresses) {
		return nil
	}
	return errors.Join(append(unsuitable, unknown...)...)
}

// checkEnabled returns errUnsuitable if one of the nodes cannot be part of the backend, such as a
// Redis without a cluster. Nothing else is an error: who follows the cluster says why it gets no
// answer.
func (b backend) checkEnabled(ctx context.Context) error {
	unsuitable, _ := b.checkNodes(ctx, b.nodes, false)
	return errors.Join(unsuitable...)
}

// checkNodes checks nodes at the same time: see checkNode. It returns the errors that are
// errUnsuitable, and the other ones.
func (b backend) checkNodes(ctx context.Context, addresses []string, primaries bool) (unsuitable, unknown []error) {
	errs := make([]error, len(addresses))
	var checks sync.WaitGroup
	for i, address := range addresses {
		checks.Go(func() { errs[i] = b.checkNode(ctx, address, primaries) })
	}
	checks.Wait()
	for _, err := range errs {
		switch {
		case errors.Is(err, errUnsuitable):
			unsuitable = append(unsuitable, err)
		case err != nil:
			unknown = append(unknown, err)
		}
	}
	return unsuitable, unknown
}

// checkNode returns errUnsuitable for a node that cannot be part of the backend. With primary a
// replica is an error, too: the map of the cluster is about to change.
func (b backend) checkNode(ctx context.Context, address string, primary bool) error {
	db := b.nodeClient(address)
	defer func() { _ = db.Close() }()
	info, err := askInfo(ctx, db)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	err = checkServer(info, true)
	if primary && info["role"] != "master" {
		err = errors.Join(err, replicaError{role: info["role"], host: info["master_host"], port: info["master_port"]})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	return nil
}
