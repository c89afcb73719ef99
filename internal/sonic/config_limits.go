package sonic

import (
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
)

// Limits of clients. They prevent one client from taking all memory or delaying the others.
type Limits struct {
	// Clients is how many clients may be connected at the same time. Each further client gets the
	// error that Redis gives in this case, and is disconnected. Default 10000, as in Redis.
	Clients int `yaml:"clients"`
	// BulkBytes is the maximum length of an argument. Redis itself accepts no more than its
	// proto-max-bulk-len, which is 512MiB by default. From 1KiB to 512MiB. Default 512MiB.
	BulkBytes config.Bytes `yaml:"bulk_bytes"`
	// Arguments is the maximum number of arguments of one command, including its name. From 16 to
	// 1048576. Default 1048576.
	Arguments int64 `yaml:"arguments"`
	// QueryBytes is the maximum size of one command, and of all queued commands of a transaction.
	// From bulk_bytes to 1GiB. Default 1GiB.
	QueryBytes config.Bytes `yaml:"query_bytes"`
	// OutputBytes is how many bytes of replies and messages a client may leave unread. Sonic
	// disconnects a client that exceeds it. At least output_pause_bytes. Default 1GiB.
	OutputBytes config.Bytes `yaml:"output_bytes"`
	// OutputPauseBytes is how many bytes of replies and messages a client may leave unread before
	// Sonic stops reading its commands. Sonic continues when the client has read enough of them. At
	// least 1KiB. Default 1MiB.
	OutputPauseBytes config.Bytes `yaml:"output_pause_bytes"`
	// Pipeline is how many commands of one client may be in flight. Sonic reads no further command
	// until some are answered. From 1 to 65536. Default 1024.
	Pipeline int `yaml:"pipeline"`
	// AuthBulkBytes is the maximum length of an argument before a client has logged in. From 64B to
	// bulk_bytes. Default 16KiB, as in Redis.
	AuthBulkBytes config.Bytes `yaml:"auth_bulk_bytes"`
	// AuthArguments is the maximum number of arguments of one command before a client has logged
	// in. From 5 to arguments. Default 10, as in Redis.
	AuthArguments int64 `yaml:"auth_arguments"`
	// AuthTimeout is how long a client may take to log in, and how long the TLS handshake may take.
	// Default 30s.
	AuthTimeout time.Duration `yaml:"auth_timeout"`
	// IdleTimeout is after how long Sonic disconnects a client that sends nothing. A client that
	// waits in a blocking command or has subscriptions is not idle. 0: never. Default 0.
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
	errs := []error{
		config.CheckRange("clients", l.Clients, 1, 1_000_000),
		config.CheckRange("bulk_bytes", l.BulkBytes, config.KiB, 512*config.MiB),
		config.CheckRange("arguments", l.Arguments, 16, 1<<20),
		config.CheckRange("query_bytes", l.QueryBytes, max(l.BulkBytes, config.KiB), config.GiB),
		config.CheckRange("output_pause_bytes", l.OutputPauseBytes, config.KiB, config.GiB),
		config.CheckRange("output_bytes", l.OutputBytes, max(l.OutputPauseBytes, config.KiB), 1024*config.GiB),
		config.CheckRange("pipeline", l.Pipeline, 1, 65_536),
		config.CheckRange("auth_bulk_bytes", l.AuthBulkBytes, 64, max(l.BulkBytes, 64)),
		config.CheckRange("auth_arguments", l.AuthArguments, 5, max(l.Arguments, 5)),
		config.CheckPositive("auth_timeout", l.AuthTimeout),
	}
	if l.IdleTimeout < 0 {
		errs = append(errs, config.Fault("idle_timeout", "must be >= 0, got %s", l.IdleTimeout))
	}
	return errors.Join(errs...)
}

// proxy converts the limits to those of the proxy.
func (l Limits) proxy() proxy.Limits {
	return proxy.Limits{
		Clients: l.Clients, BulkBytes: int64(l.BulkBytes), Arguments: l.Arguments, QueryBytes: int64(l.QueryBytes),
		OutputBytes: int64(l.OutputBytes), OutputPause: int64(l.OutputPauseBytes), Pipeline: l.Pipeline,
		AuthBulkBytes: int64(l.AuthBulkBytes), AuthArguments: l.AuthArguments, AuthTimeout: l.AuthTimeout, IdleTimeout: l.IdleTimeout,
	}
}
