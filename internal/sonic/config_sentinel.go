package sonic

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/sonic/sentinel"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// SentinelConfig names the Sentinels that know the address of the zone's primary.
type SentinelConfig struct {
	// Master is the name under which the Sentinels watch the primary. Default: none; url says where
	// Redis is.
	Master string `yaml:"master"`
	// Addresses of the Sentinels, host:port. Sonic asks all of them.
	Addresses []string `yaml:"addresses"`
	// Username and Password, or the file that holds the password, log in to the Sentinels, not to
	// Redis. Default: none.
	Username     string        `yaml:"username"`
	Password     secret.String `yaml:"password"`
	PasswordFile string        `yaml:"password_file"`
	// TLS encrypts the connections to the Sentinels, with the settings in redis.tls. Default false.
	TLS bool `yaml:"tls"`
}

func (c SentinelConfig) isSet() bool {
	return c.Master != "" || len(c.Addresses) > 0 || c.Username != "" || c.Password != "" || c.PasswordFile != "" || c.TLS
}

// Validate returns every fault of the section.
func (c SentinelConfig) Validate() error {
	if !c.isSet() {
		return nil
	}
	var errs []error
	fault := func(path, format string, args ...any) { errs = append(errs, config.Fault(path, format, args...)) }
	if c.Master == "" || strings.ContainsAny(c.Master, " \t\r\n") {
		fault("master", "must be the name under which the Sentinels watch the primary, got %q", c.Master)
	}
	if len(c.Addresses) == 0 {
		fault("addresses", "must name at least one Sentinel")
	}
	first := map[string]int{}
	for i, address := range c.Addresses {
		path := fmt.Sprintf("addresses[%d]", i)
		host, port, err := net.SplitHostPort(address)
		if j, taken := first[address]; taken {
			fault(path, "must be unique, %q is addresses[%d] too", address, j)
		} else if first[address] = i; err != nil || host == "" || !validPort(port) {
			fault(path, "must be host:port, got %q", address)
		}
	}
	if _, err := secret.Resolve(c.Password, c.PasswordFile); err != nil {
		fault("password_file", "%s", err)
	}
	return errors.Join(errs...)
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

// sentinelTimeout bounds one request to one Sentinel. Sonic asks all of them at the same time.
const sentinelTimeout = time.Second

// sentinels returns a client of the configured Sentinels. The section must be valid.
func (c RedisConfig) sentinels(log *zap.Logger) (*sentinel.Sentinels, error) {
	password, err := secret.Resolve(c.Sentinel.Password, c.Sentinel.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("redis.sentinel.password_file: %w", err)
	}
	cfg := sentinel.Config{
		Master: c.Sentinel.Master, Addresses: c.Sentinel.Addresses, Username: c.Sentinel.Username, Password: password.Reveal(),
		Timeout: min(c.ConnectTimeout, sentinelTimeout),
	}
	if c.Sentinel.TLS {
		if cfg.TLS, err = c.TLS.client(); err != nil {
			return nil, fmt.Errorf("redis.tls.ca_file: %w", err)
		}
	}
	return sentinel.New(cfg, log), nil
}
