package sonic

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/sonic/sentinel"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// SentinelConfig says which Sentinels know where the zone's Redis is.
type SentinelConfig struct {
	// Master is the name under which the Sentinels watch the primary. Default: none; url says where Redis is.
	Master string `yaml:"master"`
	// Addresses of the Sentinels, host:port. All are asked.
	Addresses []string `yaml:"addresses"`
	// Username and Password, or the file that holds the password, are for the Sentinels themselves. Default: none.
	Username     string        `yaml:"username"`
	Password     secret.String `yaml:"password"`
	PasswordFile string        `yaml:"password_file"`
	// TLS has the Sentinels reached by TLS, with what tls of redis says. Default false.
	TLS bool `yaml:"tls"`
}

func (c SentinelConfig) given() bool {
	return c.Master != "" || len(c.Addresses) > 0 || c.Username != "" || c.Password != "" || c.PasswordFile != "" || c.TLS
}

// Validate returns every fault of the section.
func (c SentinelConfig) Validate() error {
	if !c.given() {
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

// defaultURL is that of a Redis on this machine.
const defaultURL = "redis://127.0.0.1:6379"

// url is where Redis is; with Sentinels the user and whether there is TLS: the default counts as none.
func (c RedisConfig) url() string {
	if c.URL == defaultURL && c.Sentinel.given() {
		return "redis://"
	}
	return c.URL
}

// sentinelTimeout bounds one question to one Sentinel: all are asked at the same time.
const sentinelTimeout = time.Second

// sentinels are those of the section, which is valid.
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
		if cfg.TLS, err = c.TLS.client(&url.URL{}); err != nil {
			return nil, fmt.Errorf("redis.tls.ca_file: %w", err)
		}
	}
	return sentinel.New(cfg, log), nil
}
