package sonic

import (
	"crypto/tls"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
)

// certificates holds the certificates of the server. It reads the files again when one of them has
// changed: operators renew certificates while the process runs.
type certificates struct {
	cfg TLSConfig
	log *zap.Logger

	mu    sync.Mutex
	seen  [3]fileVersion // of the files at the last attempt to read them, successful or not
	valid *tls.Config
}

// fileVersion identifies a version of a file.
type fileVersion struct {
	modified time.Time
	size     int64
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

// versions returns the versions of the files. A missing file has the zero version.
func (c *certificates) versions() (all [3]fileVersion) {
	for i, file := range []string{c.cfg.CertFile, c.cfg.KeyFile, c.cfg.ClientCAFile} {
		if info, err := os.Stat(file); err == nil {
			all[i] = fileVersion{info.ModTime(), info.Size()}
		}
	}
	return all
}
