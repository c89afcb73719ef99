package sonic

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"

	"go.uber.org/zap"
)

// certificates holds the certificates of the server. It reads the files again when one of them has
// changed: operators renew certificates while the process runs.
type certificates struct {
	cfg TLSConfig
	log *zap.Logger

	mu    sync.Mutex
	seen  string // versions at the last attempt to read the files, successful or not
	valid *tls.Config
}

// newCertificates reads the files.
func newCertificates(cfg TLSConfig, log *zap.Logger) (*certificates, error) {
	c := &certificates{cfg: cfg, log: log.Named("tls")}
	c.seen = c.versions()
	var err error
	c.valid, err = cfg.server()
	return c, err
}

// config returns the server's TLS configuration. At each handshake it uses the present content of
// the files.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current(), nil },
	}
}

// current returns the configuration from the present files. It is safe for concurrent use.
func (c *certificates) current() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.versions()
	if now == c.seen {
		return c.valid
	}
	c.seen = now
	changed, err := c.cfg.server()
	if err != nil {
		c.log.Error("cannot use the changed certificates, the previous ones stay in use", zap.Error(err))
		return c.valid
	}
	c.log.Info("the certificates have changed")
	c.valid = changed
	return changed
}

// versions returns a text that changes when one of the files changes.
func (c *certificates) versions() (all string) {
	for _, file := range []string{c.cfg.CertFile, c.cfg.KeyFile, c.cfg.ClientCAFile} {
		if info, err := os.Stat(file); err == nil {
			all += fmt.Sprint(info.ModTime().UnixNano(), " ", info.Size())
		}
		all += "\n"
	}
	return all
}
