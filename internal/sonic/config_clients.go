package sonic

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/access"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// TLSConfig encrypts the connections of clients. All files are PEM. Sonic reads them again when
// they have changed. If the new files cannot be used, the previous ones stay in use, and Sonic logs
// an error.
type TLSConfig struct {
	// CertFile holds the server's certificate, followed by the intermediate certificates up to its
	// authority. Default: none, connections are not encrypted.
	CertFile string `yaml:"cert_file"`
	// KeyFile holds the private key of the certificate. Default: none.
	KeyFile string `yaml:"key_file"`
	// ClientCAFile holds authorities: only clients with a certificate of one of them may connect.
	// Default: none, clients need no certificate.
	ClientCAFile string `yaml:"client_ca_file"`
}

func (c TLSConfig) enabled() bool { return c.CertFile != "" }

// Validate returns every fault of the section.
func (c TLSConfig) Validate() error {
	return errors.Join(
		checkPair(c.CertFile, c.KeyFile),
		config.Require(c.CertFile != "" || c.KeyFile != "" || c.ClientCAFile == "", "client_ca_file", "is of no use without cert_file and key_file"),
		config.CheckAuthorities("client_ca_file", c.ClientCAFile),
	)
}

// checkPair returns a fault of cert_file or key_file. Both may be empty. The fault does not contain
// their values: by mistake they may hold a private key itself instead of a file name.
func checkPair(certFile, keyFile string) error {
	if certFile == "" && keyFile == "" {
		return nil
	}
	if certFile == "" || keyFile == "" {
		return config.Fault("cert_file", "must be given together with key_file")
	}
	certificate, err := os.ReadFile(certFile)
	if err != nil {
		return config.Fault("cert_file", "must name a readable file: %s", config.WithoutPath(err))
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return config.Fault("key_file", "must name a readable file: %s", config.WithoutPath(err))
	}
	if _, err := tls.X509KeyPair(certificate, key); err != nil {
		return config.Fault("cert_file", "must name a PEM certificate, and key_file its key: %s", err)
	}
	return nil
}

// server reads the files and returns the TLS configuration of the server.
func (c TLSConfig) server() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if c.ClientCAFile != "" {
		if conf.ClientCAs, err = config.ReadAuthorities(c.ClientCAFile); err != nil {
			return nil, err
		}
		conf.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return conf, nil
}

// User is a user that may log in with AUTH or HELLO.
type User struct {
	// Name of the user. AUTH with a password alone logs in as "default".
	Name string `yaml:"name"`
	// Password is the user's password. Each user needs password or password_file.
	Password secret.String `yaml:"password"`
	// PasswordFile is a file that holds the user's password. Sonic reads it at the start and at SIGHUP.
	PasswordFile string `yaml:"password_file"`
	// ReadOnly makes Sonic refuse the user's commands that change data, functions or consumer groups,
	// and PUBLISH. Default false.
	ReadOnly bool `yaml:"read_only"`
	// Keys are prefixes: commands of the user may name only keys that begin with one of these
	// prefixes. Default: none, all keys.
	Keys []string `yaml:"keys"`
}

// Validate returns every fault of the entry.
func (u User) Validate() error {
	errs := []error{
		config.Require(u.Name != "" && !strings.ContainsAny(u.Name, " \t\r\n\x00"), "name", "must be a name without white space, got %q", u.Name),
		checkPassword(u.Password, u.PasswordFile),
	}
	if password, err := secret.Resolve(u.Password, u.PasswordFile); err == nil {
		errs = append(errs, config.Require(password != "", "password", "must be set, or password_file"))
	}
	for i, prefix := range u.Keys {
		path := fmt.Sprintf("keys[%d]", i)
		errs = append(errs, config.Require(prefix != "", path, "must not be empty: without keys the user may name all of them"), checkNotOwn(path, prefix))
	}
	return errors.Join(errs...)
}

// users returns the users of the proxy, with their passwords.
func (c Config) users() ([]access.User, error) {
	var users []access.User
	for i, u := range c.Users {
		password, err := secret.Resolve(u.Password, u.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("users[%d]: %w", i, err)
		}
		user := access.User{Name: u.Name, Password: password.Reveal(), ReadOnly: u.ReadOnly}
		if len(u.Keys) > 0 { // an empty list that is not nil would allow no key
			user.Keys = u.Keys
		}
		users = append(users, user)
	}
	return users, nil
}

// Limits of clients. They prevent one client from taking all memory or delaying the others.
type Limits struct {
	// Clients is the maximum number of connected clients. Default 10000, as in Redis.
	Clients int `yaml:"clients"`
	// BulkBytes is the maximum length of an argument, from 1KiB to 512MiB. Default 512MiB.
	BulkBytes config.Bytes `yaml:"bulk_bytes"`
	// QueryBytes is the maximum size of one command, and of all queued commands of a transaction.
	// From bulk_bytes to 1GiB. Default 1GiB.
	QueryBytes config.Bytes `yaml:"query_bytes"`
	// OutputBytes is how many bytes of replies and messages a client may leave unread before it is
	// disconnected. At least 1KiB. Default 1GiB.
	OutputBytes config.Bytes `yaml:"output_bytes"`
	// AuthTimeout is how long a client may take to log in, and how long the TLS handshake may take.
	// Default 30s.
	AuthTimeout time.Duration `yaml:"auth_timeout"`
	// IdleTimeout is the time after which Sonic disconnects a client that sends nothing; 0s: never. A
	// client that waits in a blocking command or has subscriptions is not idle. Default 0s.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
}

func defaultLimits() Limits {
	return Limits{Clients: 10_000, BulkBytes: 512 * config.MiB, QueryBytes: config.GiB, OutputBytes: config.GiB, AuthTimeout: 30 * time.Second}
}

// Validate returns every fault of the section.
func (l Limits) Validate() error {
	return errors.Join(
		config.CheckRange("clients", l.Clients, 1, 1_000_000),
		config.CheckRange("bulk_bytes", l.BulkBytes, config.KiB, 512*config.MiB),
		config.CheckRange("query_bytes", l.QueryBytes, max(l.BulkBytes, config.KiB), config.GiB),
		config.CheckRange("output_bytes", l.OutputBytes, config.KiB, 1024*config.GiB),
		config.CheckPositive("auth_timeout", l.AuthTimeout),
		config.Require(l.IdleTimeout >= 0, "idle_timeout", "must be >= 0, got %s", l.IdleTimeout),
	)
}

// proxy converts the limits to those of the proxy. Those that no key sets have its defaults.
func (l Limits) proxy() proxy.Limits {
	return proxy.Limits{
		Clients: l.Clients, BulkBytes: int64(l.BulkBytes), QueryBytes: int64(l.QueryBytes), OutputBytes: int64(l.OutputBytes),
		OutputPause: int64(min(l.OutputBytes, config.MiB)), AuthBulkBytes: int64(min(l.BulkBytes, 16*config.KiB)),
		AuthTimeout: l.AuthTimeout, IdleTimeout: l.IdleTimeout,
	}
}
