package sonic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/retry"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// backend is how to reach the zone's Redis.
type backend struct {
	address, username, password string
	tls                         *tls.Config
}

// backend reads the section, which is valid.
func (c RedisConfig) backend() (backend, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return backend{}, err
	}
	port := u.Port()
	if port == "" {
		port = "6379"
	}
	password, err := secret.Resolve(c.Password, c.PasswordFile)
	if err != nil {
		return backend{}, err
	}
	b := backend{address: net.JoinHostPort(u.Hostname(), port), username: c.Username, password: password.Reveal()}
	if u.User != nil {
		b.username = u.User.Username()
		b.password, _ = u.User.Password()
	}
	if u.Scheme == "rediss" {
		if b.tls, err = c.TLS.client(u); err != nil {
			return backend{}, fmt.Errorf("redis.tls.ca_file: %w", err)
		}
	}
	return b, nil
}

// control is the client for all that is not a client's command. It never sends anything twice by itself.
func (c RedisConfig) control(b backend) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: b.address, Username: b.username, Password: b.password, TLSConfig: b.tls, DialTimeout: c.ConnectTimeout,
		MaxRetries: -1, ClientName: "sonic", Protocol: 2, DisableIdentity: true,
	})
}

// endpoint is what the proxy needs to know.
func (c RedisConfig) endpoint(b backend) proxy.Backend {
	return proxy.Backend{Address: b.address, Username: b.username, Password: b.password, TLS: b.tls, DialTimeout: c.ConnectTimeout, Wait: c.Wait}
}

// errUnfit says that a Redis cannot be this zone's backend.
var errUnfit = errors.New("this Redis cannot be the backend")

// awaitRedis waits until the Redis answers, and checks that it is fit.
func awaitRedis(ctx context.Context, db *redis.Client, trouble *retry.Trouble) error {
	var pause retry.Pause
	for {
		err := checkRedis(ctx, db)
		if err == nil || errors.Is(err, errUnfit) {
			trouble.Note(nil)
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		trouble.Note(err)
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
	case err != nil:
		return fmt.Errorf("cannot reach Redis: %w", err)
	}
	info := map[string]string{}
	for line := range strings.SplitSeq(text, "\r\n") {
		if key, value, ok := strings.Cut(line, ":"); ok {
			info[key] = value
		}
	}
	var errs []error
	unfit := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{errUnfit}, args...)...))
	}
	if major, _, _ := strings.Cut(info["redis_version"], "."); !atLeast(major, 7) {
		unfit("its version is %s, and Sonic needs 7.0 or newer", info["redis_version"])
	}
	if info["role"] != "master" {
		unfit("its role is %s, of %s:%s: give the address of the master", info["role"], info["master_host"], info["master_port"])
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" {
		unfit("its maxmemory-policy is %s, which drops keys, Sonic's own too: set it to noeviction", policy)
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
