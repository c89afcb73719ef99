package sonic

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/sonic/sentinel"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// RedisConfig says how to reach the zone's Redis.
type RedisConfig struct {
	// URL is redis://[[user]:password@]host[:port], or rediss:// for TLS. Several addresses,
	// separated by commas, are nodes of a Redis Cluster: redis://user:password@a:6379,b:6379. With
	// Sentinels it must name no host. Default redis://127.0.0.1:6379; with Sentinels redis://.
	URL string `yaml:"url"`
	// Cluster is true if url leads to a Redis Cluster. Default false; several addresses in url mean
	// true.
	Cluster bool `yaml:"cluster"`
	// SplitMSET makes Sonic split an MSET whose keys are in several slots of a Redis Cluster; the MSET
	// is then not atomic. Default false: Sonic refuses such an MSET with CROSSSLOT.
	SplitMSET bool `yaml:"split_mset"`
	// Sentinel says which Sentinels know the address of the primary. Default: none, url says where
	// Redis is.
	Sentinel SentinelConfig `yaml:"sentinel"`
	// Username is the Redis user that runs the commands of all clients. Default: none, the user
	// "default" of Redis.
	Username string `yaml:"username"`
	// Password is the password of the Redis user. Default: none.
	Password secret.String `yaml:"password"`
	// PasswordFile is a file that holds the password of the Redis user. Default: none.
	PasswordFile string `yaml:"password_file"`
	// Wait is how long commands wait for Redis while it cannot be reached; after that they get an
	// error. Default 5s.
	Wait time.Duration `yaml:"wait"`
	// TLS is used with rediss:// in url. Sonic reads ca_file at the start, cert_file and key_file for
	// each connection.
	TLS connector.TLS `yaml:"tls"`
}

// SentinelConfig names the Sentinels that know the address of the zone's primary.
type SentinelConfig struct {
	// Master is the name under which the Sentinels watch the primary. Default: none; url says where
	// Redis is.
	Master string `yaml:"master"`
	// Addresses of the Sentinels, host:port. Sonic asks all of them.
	Addresses []string `yaml:"addresses"`
	// Username is the user for the Sentinels, not for Redis. Default: none.
	Username string `yaml:"username"`
	// Password is the password for the Sentinels, not for Redis. Default: none.
	Password secret.String `yaml:"password"`
	// PasswordFile is a file that holds the password for the Sentinels. Default: none.
	PasswordFile string `yaml:"password_file"`
	// TLS encrypts the connections to the Sentinels, with the settings in redis.tls. Default false.
	TLS bool `yaml:"tls"`
}

func defaultRedis() RedisConfig {
	return RedisConfig{URL: defaultURL, Wait: 5 * time.Second}
}

// Validate returns every fault of the section.
func (c RedisConfig) Validate() error {
	u, addresses, err := splitURL(c.url())
	noHost := len(addresses) == 1 && addresses[0] == ""
	var errs []error
	switch {
	case c.Sentinel.isSet() && c.isCluster():
		errs = append(errs, config.Fault("sentinel", "must not be set with a Redis Cluster, whose nodes say where its primaries are"))
	case err == nil && c.Sentinel.isSet() && !noHost:
		errs = append(errs, config.Fault("url", "must name no host with sentinel, which says where Redis is: redis:// or rediss://"))
	case err != nil || noHost && !c.Sentinel.isSet() || u.Scheme != "redis" && u.Scheme != "rediss" || u.RawQuery != "" || u.Fragment != "":
		errs = append(errs, config.Fault("url",
			"must be redis://host:port or rediss://host:port, of a Redis Cluster redis://host:port,host:port, with a user in front of the first host only"))
	case u.Path != "" && u.Path != "/" && u.Path != "/0":
		errs = append(errs, config.Fault("url", "must name no database: clients choose theirs by SELECT"))
	case u.User != nil && (c.Username != "" || c.Password != "" || c.PasswordFile != ""):
		errs = append(errs, config.Fault("url", "must hold no user with username, password or password_file"))
	}
	if !noHost {
		errs = append(errs, checkAddresses(addresses))
	}
	return errors.Join(append(errs,
		config.Require(!c.SplitMSET || c.isCluster(), "split_mset", "is of no use without a Redis Cluster: set cluster, or give several addresses in url"),
		checkPassword(c.Password, c.PasswordFile),
		c.TLS.Check("tls"),
		config.Require(c.TLS == connector.TLS{} || strings.HasPrefix(c.URL, "rediss:") || c.Sentinel.TLS, "tls", "is of no use without rediss:// in url"),
		config.CheckPositive("wait", c.Wait))...)
}

// checkPassword returns a fault for a password that cannot be read.
func checkPassword(password secret.String, file string) error {
	if _, err := secret.Resolve(password, file); err != nil {
		return config.Fault("password_file", "%s", err)
	}
	return nil
}

// isSet reports whether the section has any key.
func (c SentinelConfig) isSet() bool {
	return c.Master != "" || len(c.Addresses) > 0 || c.Username != "" || c.Password != "" || c.PasswordFile != "" || c.TLS
}

// Validate returns every fault of the section.
func (c SentinelConfig) Validate() error {
	if !c.isSet() {
		return nil
	}
	errs := []error{
		config.Require(c.Master != "" && !strings.ContainsAny(c.Master, " \t\r\n"),
			"master", "must be the name under which the Sentinels watch the primary, got %q", c.Master),
		config.Require(len(c.Addresses) > 0, "addresses", "must name at least one Sentinel"),
		checkUnique("addresses", "", c.Addresses),
		checkPassword(c.Password, c.PasswordFile),
	}
	for i, address := range c.Addresses {
		host, port, err := net.SplitHostPort(address)
		errs = append(errs, config.Require(err == nil && host != "" && validPort(port), fmt.Sprintf("addresses[%d]", i), "must be host:port, got %q", address))
	}
	return errors.Join(errs...)
}

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

// checkAddresses returns a fault of url for each invalid address. It does not show them: where
// the URL has mistakes, a part of a password may look like an address.
func checkAddresses(addresses []string) error {
	var errs []error
	var known []string
	for i, address := range addresses {
		where := ""
		if len(addresses) > 1 {
			where = fmt.Sprintf(" as address %d", i+1)
		}
		host, port, err := hostAndPort(address)
		full := net.JoinHostPort(host, port)
		if err != nil {
			full = ""
		}
		switch j := slices.Index(known, full); {
		case err != nil && len(addresses) > 1:
			errs = append(errs, config.Fault("url", "must name host or host:port%s", where))
		case err != nil:
			errs = append(errs, config.Fault("url", "must be redis://host:port or rediss://host:port"))
		case j >= 0:
			errs = append(errs, config.Fault("url", "must name each address once, address %d is address %d again", i+1, j+1))
		case !validPort(port):
			errs = append(errs, config.Fault("url", "must name a port from 1 to 65535, got %s%s", port, where))
		}
		known = append(known, full)
	}
	return errors.Join(errs...)
}

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// isCluster reports whether the section leads to a Redis Cluster.
func (c RedisConfig) isCluster() bool {
	_, addresses, _ := splitURL(c.url()) // of an invalid URL there are none
	return c.Cluster || len(addresses) > 1
}

// defaultURL is the URL of a Redis on this machine.
const defaultURL = "redis://127.0.0.1:6379"

// url returns the configured URL. With Sentinels it says only the user and whether TLS is used, and
// the default URL becomes one without a host.
func (c RedisConfig) url() string {
	if c.URL == defaultURL && c.Sentinel.isSet() {
		return "redis://"
	}
	return c.URL
}

// sentinels returns a client of the configured Sentinels. The section must be valid.
func (c RedisConfig) sentinels(log *zap.Logger) (*sentinel.Sentinels, error) {
	password, err := secret.Resolve(c.Sentinel.Password, c.Sentinel.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("redis.sentinel.password_file: %w", err)
	}
	cfg := sentinel.Config{
		Master: c.Sentinel.Master, Addresses: c.Sentinel.Addresses, Username: c.Sentinel.Username, Password: password.Reveal(),
	}
	if c.Sentinel.TLS {
		if cfg.TLS, err = c.TLS.Client(""); err != nil {
			return nil, fmt.Errorf("redis.%w", err)
		}
	}
	return sentinel.New(cfg, log), nil
}
