package sonic

import (
	"crypto/tls"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// certificates are those of the endpoint. They are read again when one of the files has changed: certificates are renewed while the process runs.
type certificates struct {
	cfg TLSConfig
	log *zap.Logger

	mu    sync.Mutex
	seen  [3]stamp // of the files when they were read last, with success or without
	valid *tls.Config
}

// stamp tells one version of a file from another.
type stamp struct {
	modified time.Time
	size     int64
}

// newCertificates reads the files.
func newCertificates(cfg TLSConfig, log *zap.Logger) (*certificates, error) {
	c := &certificates{cfg: cfg, log: log.Named("tls")}
	c.seen = c.stamps()
	var err error
	c.valid, err = cfg.server()
	return c, err
}

// config is the endpoint's, which asks for the files' present content at each handshake.
func (c *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12, // each handshake has the one of the section
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current(), nil },
	}
}

// current is safe for concurrent use.
func (c *certificates) current() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.stamps()
	if now == c.seen {
		return c.valid
	}
	c.seen = now
	changed, err := c.cfg.server()
	if err != nil {
		c.log.Error("the changed certificates cannot be used, those before stay in force", zap.Error(err))
		return c.valid
	}
	c.log.Info("the certificates have changed")
	c.valid = changed
	return changed
}

// stamps looks at the files. One that is missing has the zero stamp.
func (c *certificates) stamps() (all [3]stamp) {
	for i, file := range []string{c.cfg.CertFile, c.cfg.KeyFile, c.cfg.ClientCAFile} {
		if info, err := os.Stat(file); err == nil {
			all[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return all
}
