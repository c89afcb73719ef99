package sonic

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/internal/config"
)

// errNotRedisURL says that a text is not a URL of Redis. It does not hold the text, which may hold
// a password.
var errNotRedisURL = errors.New("not a URL of Redis")

// splitURL splits redis.url into the URL without addresses, and its addresses: host or host:port,
// or one empty text where the URL names no host. url.Parse refuses several addresses.
func splitURL(text string) (*url.URL, []string, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return nil, nil, errNotRedisURL
	}
	authority, path := rest, ""
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		authority, path = rest[:end], rest[end:]
	}
	at := strings.LastIndexByte(authority, '@') + 1
	user, addresses := authority[:at], authority[at:]
	if strings.Contains(user, ",") && strings.Count(user, "@") > 1 {
		return nil, nil, errNotRedisURL // a user in front of each address would become one long password
	}
	u, err := url.Parse(scheme + "://" + user + path)
	if err != nil {
		return nil, nil, errNotRedisURL
	}
	return u, strings.Split(addresses, ","), nil
}

// hostAndPort splits an address of redis.url. The port is 6379 where the address names none.
func hostAndPort(address string) (host, port string, err error) {
	u, err := url.Parse("redis://" + address)
	if err != nil || u.Host != address || u.Hostname() == "" {
		return "", "", errNotRedisURL
	}
	return u.Hostname(), cmp.Or(u.Port(), "6379"), nil
}

// checkAddresses returns a fault of url for each address that is none. It does not show them: where
// the URL has mistakes, a part of a password may look like an address.
func checkAddresses(addresses []string) error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, config.Fault("url", format, args...)) }
	first := map[string]int{}
	for i, address := range addresses {
		where := ""
		if len(addresses) > 1 {
			where = fmt.Sprintf(" as address %d", i+1)
		}
		host, port, err := hostAndPort(address)
		full := net.JoinHostPort(host, port)
		if j, taken := first[full]; err == nil && taken {
			fault("must name each address once, address %d is address %d again", i+1, j+1)
			continue
		}
		first[full] = i
		switch {
		case err != nil && len(addresses) > 1:
			fault("must name host or host:port%s", where)
		case err != nil:
			fault("must be redis://host:port or rediss://host:port")
		case !validPort(port):
			fault("must name a port from 1 to 65535, got %s%s", port, where)
		}
	}
	return errors.Join(errs...)
}

// isCluster reports whether the section leads to a Redis Cluster.
func (c RedisConfig) isCluster() bool {
	_, addresses, _ := splitURL(c.url()) // of an invalid URL there are none
	return c.Cluster || len(addresses) > 1
}

// checkCluster returns a fault for each key that does not go with a Redis Cluster.
func (c Config) checkCluster() error {
	var errs []error
	fault := func(path, problem string) { errs = append(errs, config.Fault(path, "%s", problem)) }
	if !c.Redis.isCluster() {
		return errors.Join(errs...)
	}
	if c.isAlone() && slices.ContainsFunc(c.Conflicts, func(one Conflict) bool { return one != Conflict{Policy: policyLWW} }) {
		fault("conflicts", "must be left at lww for all keys in front of a Redis Cluster without other zones: nothing is replicated")
	}
	if c.Publish == publishReplicate {
		fault("publish", "must be relay in front of a Redis Cluster: messages to other zones are not built yet")
	}
	if !c.isAlone() {
		errs = append(errs, c.checkReplicatedCluster())
	}
	return errors.Join(errs...)
}

// checkReplicatedCluster returns a fault for each key that does not go with a Redis Cluster whose
// effects are replicated.
func (c Config) checkReplicatedCluster() error {
	var errs []error
	fault := func(path, problem string) { errs = append(errs, config.Fault(path, "%s", problem)) }
	if c.Ack == ackPublished {
		fault("ack", "must be local in front of a Redis Cluster with other zones: published is not built yet")
	}
	if c.Flush != flushRefuse {
		fault("flush", "must be refuse in front of a Redis Cluster with other zones: FLUSHDB and FLUSHALL are not built yet")
	}
	if c.Outbox.Full == fullDrop {
		fault("outbox.full", "must be block or fail in front of a Redis Cluster: drop is not built yet")
	}
	if c.Outbox.Age > 0 {
		fault("outbox.age", "must be 0 in front of a Redis Cluster: only the bytes of its outbox are bounded")
	}
	return errors.Join(errs...)
}
