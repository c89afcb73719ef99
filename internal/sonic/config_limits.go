package sonic

import (
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
)

// Limits of clients. They are there so that one client can neither take all memory nor hold others up.
type Limits struct {
	// Clients at the same time. Further ones get the error that Redis has for it, and are disconnected. Default 10000, as Redis has it.
	Clients int `yaml:"clients"`
	// BulkBytes is the longest argument. Redis takes no more than its proto-max-bulk-len, which is 512MiB unless it is configured. From 1KiB to
	// 512MiB. Default 512MiB.
	BulkBytes config.Bytes `yaml:"bulk_bytes"`
	// Arguments of one command, its name among them. From 16 to 1048576. Default 1048576.
	Arguments int64 `yaml:"arguments"`
	// QueryBytes of one command, and of all commands that wait in a transaction. From bulk_bytes to 1GiB. Default 1GiB.
	QueryBytes config.Bytes `yaml:"query_bytes"`
	// OutputBytes of replies and messages that a client has not read. One with more is disconnected. At least output_pause_bytes. Default 1GiB.
	OutputBytes config.Bytes `yaml:"output_bytes"`
	// OutputPauseBytes is from where on no further command of a client is read until it reads. At least 1KiB. Default 1MiB.
	OutputPauseBytes config.Bytes `yaml:"output_pause_bytes"`
	// Pipeline is how many commands of a client may be under way before no further one is read. From 1 to 65536. Default 1024.
	Pipeline int `yaml:"pipeline"`
	// AuthBulkBytes is the longest argument before a client has logged in. From 64B to bulk_bytes. Default 16KiB, as Redis has it.
	AuthBulkBytes config.Bytes `yaml:"auth_bulk_bytes"`
	// AuthArguments of one command before a client has logged in. From 5 to arguments. Default 10, as Redis has it.
	AuthArguments int64 `yaml:"auth_arguments"`
	// AuthTimeout bounds how long a client may take to log in, and how long the handshake of TLS may take. Default 30s.
	AuthTimeout time.Duration `yaml:"auth_timeout"`
	// IdleTimeout disconnects a client that sends nothing for so long. One that waits in a blocking command or has subscriptions is not idle. 0:
	// never. Default 0.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
}

func defaultLimits() Limits {
	return Limits{
		Clients: 10_000, BulkBytes: 512 * config.MiB, Arguments: 1 << 20, QueryBytes: config.GiB, OutputBytes: config.GiB, OutputPauseBytes: config.MiB,
		Pipeline: 1024, AuthBulkBytes: 16 * config.KiB, AuthArguments: 10, AuthTimeout: 30 * time.Second,
	}
}

// Validate returns every fault of the section.
func (l Limits) Validate() error {
	var errs []error
	between := func(path string, value, least, most int64) {
		if value < least || value > most {
			errs = append(errs, config.Fault(path, "must be from %d to %d, got %d", least, most, value))
		}
	}
	size := func(path string, value, least, most config.Bytes) {
		if value < least || value > most {
			errs = append(errs, config.Fault(path, "must be from %s to %s, got %s", least, most, value))
		}
	}
	between("clients", int64(l.Clients), 1, 1_000_000)
	size("bulk_bytes", l.BulkBytes, config.KiB, 512*config.MiB)
	between("arguments", l.Arguments, 16, 1<<20)
	size("query_bytes", l.QueryBytes, max(l.BulkBytes, config.KiB), config.GiB)
	size("output_pause_bytes", l.OutputPauseBytes, config.KiB, config.GiB)
	size("output_bytes", l.OutputBytes, max(l.OutputPauseBytes, config.KiB), 1024*config.GiB)
	between("pipeline", int64(l.Pipeline), 1, 65_536)
	size("auth_bulk_bytes", l.AuthBulkBytes, 64, max(l.BulkBytes, 64))
	between("auth_arguments", l.AuthArguments, 5, max(l.Arguments, 5))
	if l.AuthTimeout <= 0 {
		errs = append(errs, config.Fault("auth_timeout", "must be > 0, got %s", l.AuthTimeout))
	}
	if l.IdleTimeout < 0 {
		errs = append(errs, config.Fault("idle_timeout", "must be >= 0, got %s", l.IdleTimeout))
	}
	return errors.Join(errs...)
}

// proxy is what the endpoint is told.
func (l Limits) proxy() proxy.Limits {
	return proxy.Limits{
		Clients: l.Clients, BulkBytes: int64(l.BulkBytes), Arguments: l.Arguments, QueryBytes: int64(l.QueryBytes),
		OutputBytes: int64(l.OutputBytes), OutputPause: int64(l.OutputPauseBytes), Pipeline: l.Pipeline,
		AuthBulkBytes: int64(l.AuthBulkBytes), AuthArguments: l.AuthArguments, AuthTimeout: l.AuthTimeout, IdleTimeout: l.IdleTimeout,
	}
}
