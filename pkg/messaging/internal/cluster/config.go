package cluster

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// Config says how to reach one Pulsar cluster. The zero value of each field means its default.
type Config struct {
	// URL is the address of the brokers: pulsar://host:port[,host:port], or pulsar+ssl:// for TLS.
	// Default pulsar://127.0.0.1:6650.
	URL string `yaml:"url"`
	// AdminURL is the address of the brokers' admin API: http://host:port or https://host:port of
	// one broker, or of a Pulsar proxy. With several brokers and credentials it must be a proxy. It
	// gets the credentials of Auth. Only [Consumer.Backlog], [Client.Clusters] and the methods of
	// [Topic], [Subscription], [Namespace] and [Tenant] use it. Default: none.
	AdminURL string `yaml:"admin_url"`
	// ConnectTimeout bounds one TCP and TLS connection attempt. Default 5s.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// OperationTimeout bounds one request to a broker (lookup, create, subscribe,
	// close). Recovery after an outage may take this long. Default 10s.
	OperationTimeout time.Duration `yaml:"operation_timeout"`
	// KeepAlive is the interval of protocol pings. A connection is replaced after two intervals
	// without an answer. Default 10s.
	KeepAlive time.Duration `yaml:"keep_alive"`
	// ConnectionsPerBroker is the number of connections to each broker, for publishing and again
	// for consuming. Topics are spread over them. One connection uses about one core for decoding.
	// Default 1.
	ConnectionsPerBroker int `yaml:"connections_per_broker"`
	// ListenerName selects one of the advertised listeners of the brokers. Default: the brokers
	// choose.
	ListenerName string `yaml:"listener_name"`
	// TLS applies to pulsar+ssl URLs, and to an https AdminURL.
	TLS TLS `yaml:"tls"`
	// Auth says how the client authenticates. Default: without authentication.
	Auth Auth `yaml:"auth"`
}

// TLS configures the transport of pulsar+ssl and https URLs, version 1.2 or newer. A server's
// certificate must be for the host that is connected to, unless Insecure is set.
type TLS struct {
	// CAFile holds the PEM certificates of the authorities to trust. Default: the system's.
	CAFile string `yaml:"ca_file"`
	// Insecure switches verification of certificates off. It is for tests only: anybody on the
	// network path can then read and change all data.
	Insecure bool `yaml:"insecure"`
}

// Auth holds at most one way of authenticating.
type Auth = auth.Config

// OAuth2 configures the client credentials flow (RFC 6749, section 4.4).
type OAuth2 = auth.OAuth2

// DefaultConfig is the configuration of a broker on this machine.
func DefaultConfig() Config { return WithDefaults(Config{}) }

// WithDefaults is c with the default of each field that is zero.
func WithDefaults(c Config) Config {
	c.URL = cmp.Or(c.URL, "pulsar://127.0.0.1:6650")
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 5*time.Second)
	c.OperationTimeout = cmp.Or(c.OperationTimeout, 10*time.Second)
	c.KeepAlive = cmp.Or(c.KeepAlive, 10*time.Second)
	c.ConnectionsPerBroker = cmp.Or(c.ConnectionsPerBroker, 1)
	return c
}

// Validate reports every fault at once, each as "path: what would be right". It connects to
// nothing.
func (c Config) Validate() error {
	c = WithDefaults(c)
	var errs []error
	fault := func(path, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{path}, args...)...))
	}
	secure, err := checkURL(c.URL)
	if err != nil {
		fault("url", "%w", err)
	}
	adminSecure := c.checkAdmin(secure, fault)
	if c.ConnectTimeout < 0 {
		fault("connect_timeout", "must be > 0, got %s", c.ConnectTimeout)
	}
	if c.OperationTimeout < time.Second {
		fault("operation_timeout", "must be at least 1s, got %s", c.OperationTimeout)
	}
	if c.KeepAlive < time.Second {
		fault("keep_alive", "must be at least 1s, got %s", c.KeepAlive)
	}
	if c.ConnectionsPerBroker < 1 || c.ConnectionsPerBroker > 64 {
		fault("connections_per_broker", "must be from 1 to 64, got %d", c.ConnectionsPerBroker)
	}
	check := func(path, file string, read func(string) error) {
		if file == "" {
			return
		}
		// The value is not repeated: it may be what was meant for the file.
		if err := read(file); err != nil {
			fault(path, "must name a readable file: %w", auth.Bare(err))
		}
	}
	readCA := func(file string) error { _, err := auth.ReadCA(file); return err }
	check("tls.ca_file", c.TLS.CAFile, readCA)
	check("auth.token_file", c.Auth.TokenFile, func(file string) error { _, err := secret.ReadFile(file); return err })
	check("auth.cert_file", c.Auth.CertFile, readable)
	check("auth.key_file", c.Auth.KeyFile, readable)
	check("auth.oauth2.ca_file", c.Auth.OAuth2.CAFile, readCA)
	if methods := auth.Methods(c.Auth); len(methods) > 1 {
		fault("auth", "must hold one method, got %s", strings.Join(methods, " and "))
	}
	if (c.Auth.CertFile == "") != (c.Auth.KeyFile == "") {
		fault("auth", "must have both cert_file and key_file")
	}
	if a := c.Auth; readable(a.CertFile) == nil && readable(a.KeyFile) == nil {
		if _, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile); err != nil {
			fault("auth", "cert_file and key_file: %w", err)
		}
	}
	if c.Auth.CertFile != "" && !secure && err == nil {
		fault("auth.cert_file", "needs a pulsar+ssl url")
	}
	if o := c.Auth.OAuth2; o != (OAuth2{}) {
		var issuer error
		if o.IssuerURL != "" { // else the key file's
			issuer = auth.CheckIssuer(o.IssuerURL)
		}
		if issuer != nil {
			fault("auth.oauth2.issuer_url", "%w", issuer)
		}
		if o.KeyFile == "" {
			fault("auth.oauth2.key_file", "must be set")
		} else if err := auth.CheckKeyFile(o); err != nil && issuer == nil {
			fault("auth.oauth2", "%w", err)
		}
	}
	if c.TLS != (TLS{}) && !secure && !adminSecure && err == nil {
		fault("tls", "needs a pulsar+ssl url, or an https admin_url, got %q", c.URL)
	}
	return errors.Join(errs...)
}

// checkAdmin finds the faults of AdminURL and reports whether it asks for TLS; secure is
// whether URL does.
func (c Config) checkAdmin(secure bool, fault func(path, format string, args ...any)) bool {
	if c.AdminURL == "" {
		return false
	}
	u, err := checkAdminURL(c.AdminURL)
	if err != nil {
		fault("admin_url", "%w", err)
		return false
	}
	switch {
	case u.Scheme == "https":
		return true
	case c.Auth.CertFile != "":
		fault("admin_url", "must be https with auth.cert_file, got %q", c.AdminURL)
	case secure && len(auth.Methods(c.Auth)) > 0 && !auth.Local(u.Hostname()):
		// Otherwise what url protects would be sent for everybody to read.
		fault("admin_url", "must be https, or http to this machine, with credentials and a pulsar+ssl url, got %q", c.AdminURL)
	}
	return false
}

// checkURL reports whether a service URL asks for TLS, or what is wrong with it.
func checkURL(s string) (secure bool, err error) {
	rest, plain := strings.CutPrefix(s, "pulsar://")
	if !plain {
		rest, secure = strings.CutPrefix(s, "pulsar+ssl://")
	}
	if strings.Contains(s, "@") { // not repeated: what stands before it may be a password
		return secure, errors.New("must not hold credentials: they belong under auth")
	}
	if !plain && !secure {
		return false, fmt.Errorf("must start with pulsar:// or pulsar+ssl://, got %q", s)
	}
	for host := range strings.SplitSeq(rest, ",") {
		u, err := url.Parse("pulsar://" + host)
		if err != nil || u.Hostname() == "" || (u.Path != "" && u.Path != "/") || !validPort(u.Port()) {
			return secure, fmt.Errorf("must be host:port[,host:port...] after the scheme, got %q", s)
		}
	}
	return secure, nil
}

// addressesOf are the hosts of a service URL that is valid, with their ports.
func addressesOf(serviceURL string) (addresses []string) {
	scheme, rest, _ := strings.Cut(serviceURL, "://")
	port := "6650"
	if scheme == "pulsar+ssl" {
		port = "6651"
	}
	for host := range strings.SplitSeq(rest, ",") {
		if u, err := url.Parse("pulsar://" + host); err == nil {
			addresses = append(addresses, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port)))
		}
	}
	return addresses
}

// checkAdminURL returns the parts of an admin URL, or what is wrong with it.
func checkAdminURL(s string) (*url.URL, error) {
	if strings.Contains(s, "@") { // not repeated: what stands before it may be a password
		return nil, errors.New("must not hold credentials: they belong under auth")
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || !validPort(u.Port()) ||
		u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return nil, fmt.Errorf("must be http://host:port or https://host:port, got %q", s)
	}
	return u, nil
}

// validPort accepts no port, which means Pulsar's own.
func validPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return s == "" || err == nil && n > 0
}

// readable reports why a file cannot be read.
func readable(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	return f.Close()
}

// OneOf reports a fault unless got is one of want.
func OneOf[T ~string](fault func(string, ...any), path string, got T, want ...T) {
	if !slices.Contains(want, got) {
		fault("%s: must be one of %v, got %q", path, want, string(got))
	}
}

// Positive reports a fault unless got is above zero.
func Positive[T int | int64 | time.Duration](fault func(string, ...any), path string, got T) {
	if got <= 0 {
		fault("%s: must be > 0, got %v", path, got)
	}
}
