package sonic

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/retry"
	"github.com/aviaryhq/aviary/internal/sonic/sentinel"
	"github.com/aviaryhq/aviary/internal/trouble"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// backend is how to reach the zone's Redis.
type backend struct {
	address            string              // host:port; empty with sentinels
	sentinels          *sentinel.Sentinels // nil: the address is the primary's
	username, password string
	tls                *tls.Config
}

// String names the Redis for people.
func (b backend) String() string {
	if b.sentinels != nil {
		return "the primary that the Sentinels name"
	}
	return b.address
}

// resolve returns where the primary is.
func (b backend) resolve(ctx context.Context) (string, error) {
	if b.sentinels != nil {
		return b.sentinels.Master(ctx)
	}
	return b.address, nil
}

// backend reads the section, which is valid. Its Sentinels are asked once they run, see follow.
func (c RedisConfig) backend(log *zap.Logger) (backend, error) {
	u, err := url.Parse(c.url())
	if err != nil {
		return backend{}, err
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
		if b.tls, err = c.TLS.client(u); err != nil {
			return backend{}, fmt.Errorf("redis.tls.ca_file: %w", err)
		}
	}
	if c.Sentinel.Master == "" {
		b.address = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "6379"))
		return b, nil
	}
	b.sentinels, err = c.sentinels(log)
	return b, err
}

// follow asks the Sentinels, where there are some, until the process stops.
func (b backend) follow(rt *app.Runtime, zone string) {
	if b.sentinels != nil {
		rt.Go("sentinels of zone "+zone, b.sentinels.Run)
	}
}

// endpoint is what the proxy needs to know.
func (c RedisConfig) endpoint(b backend) proxy.Backend {
	p := proxy.Backend{Address: b.address, Username: b.username, Password: b.password, TLS: b.tls, DialTimeout: c.ConnectTimeout, Wait: c.Wait}
	if b.sentinels != nil {
		p.Resolve = b.resolve
	}
	return p
}

// errUnfit says that a Redis cannot be this zone's backend.
var errUnfit = errors.New("this Redis cannot be the backend")

// awaitRedis waits until the Redis answers, and checks that it is fit. A replica is unfit, but where Sentinels may be about to name another one.
func awaitRedis(ctx context.Context, db *redis.Client, b backend, health *trouble.State) error {
	var pause retry.Pause
	for {
		err := checkRedis(ctx, db)
		if errors.Is(err, errReplica) && b.sentinels == nil {
			err = fmt.Errorf("%w: %w", errUnfit, err)
		}
		if err == nil || errors.Is(err, errUnfit) {
			health.Note(nil)
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		health.Note(err)
		pause.Wait(ctx)
	}
}

// checkRedis returns errUnfit for a Redis that cannot be the backend, and other errors when it cannot be told.
func checkRedis(ctx context.Context, db *redis.Client) error {
	text, err := db.Info(ctx).Result()
	var refused redis.Error
	switch {
	case errors.As(err, &refused) && !strings.HasPrefix(refused.Error(), "LOADING") && !strings.HasPrefix(refused.Error(), "MASTERDOWN"):
		return fmt.Errorf("%w: it refuses INFO: %w", errUnfit, err)
	case errors.Is(err, errReplica):
		return err
	case err != nil:
		return fmt.Errorf("cannot reach Redis: %w", err)
	}
	info := infoOf(text)
	var errs []error
	unfit := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{errUnfit}, args...)...))
	}
	if major, _, _ := strings.Cut(info["redis_version"], "."); !atLeast(major, 7) {
		unfit("its version is %s, and Sonic needs 7.0 or newer", info["redis_version"])
	}
	if problem := evictionOf(info); problem != "" {
		unfit("%s", problem)
	} else if info["maxmemory_policy"] == "" {
		unfit("it does not tell its maxmemory-policy, which has to be %s", noEviction)
	}
	if info["cluster_enabled"] == "1" {
		unfit("it is part of a Redis Cluster, which this version of Sonic does not support")
	}
	return errors.Join(errs...)
}

func atLeast(number string, least int) bool {
	n, err := strconv.Atoi(number)
	return err == nil && n >= least
}
