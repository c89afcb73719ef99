package app

import (
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
)

// Common is the part of the configuration that every binary has. A service's configuration embeds
// it with the tag `yaml:",inline"`.
type Common struct {
	// Log configures the log, which goes to standard error.
	Log LogConfig `yaml:"log"`
	// Admin configures the HTTP server of metrics, health, readiness, effective configuration and
	// profiles.
	Admin AdminConfig `yaml:"admin"`
	// ShutdownTimeout bounds the time of an ordered stop, from the first signal to the exit. Default
	// 30s.
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout"`
}

// LogConfig configures the log, which goes to standard error.
type LogConfig struct {
	Level  string `yaml:"level"`  // lowest level that is logged: debug, info, warn or error. Default info.
	Format string `yaml:"format"` // json, console (text for people), or auto: console on a terminal, else json. Default auto.
}

// The formats of a log.
const (
	formatAuto    = "auto"
	formatJSON    = "json"
	formatConsole = "console"
)

// AdminConfig is the admin server's: metrics, health, readiness, effective configuration, profiles.
type AdminConfig struct {
	// Listen is the address, "host:port"; port 0 lets the system choose. The default is on the
	// loopback interface: the server has no authentication.
	Listen string `yaml:"listen"`
}

// DefaultCommon returns the defaults, with the service's own admin address.
func DefaultCommon(adminListen string) Common {
	return Common{
		Log:             LogConfig{Level: "info", Format: formatAuto},
		Admin:           AdminConfig{Listen: adminListen},
		ShutdownTimeout: 30 * time.Second,
	}
}

// Validate returns every fault of the common part.
func (c Common) Validate() error {
	var errs []error
	errs = append(errs,
		config.CheckOneOf("log.level", c.Log.Level, "debug", "info", "warn", "error"),
		config.CheckOneOf("log.format", c.Log.Format, formatAuto, formatJSON, formatConsole),
		config.CheckListen("admin.listen", c.Admin.Listen))
	errs = append(errs, config.CheckPositive("shutdown_timeout", c.ShutdownTimeout))
	return errors.Join(errs...)
}

func (c Common) common() Common { return c }

// Configuration is the configuration of a service: a struct that embeds [Common].
type Configuration interface{ common() Common }
